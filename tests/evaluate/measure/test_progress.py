"""What a person sees while an evaluation runs."""

import io
from functools import partial

import pytest

from conf.terminal import plain_console
from evaluate.measure import progress as live
from evaluate.report.show.terminal_tables import speed_table
from evaluate.results.rows import SpeedRow
from tests.evaluate.made_rows import speed_row

TABLE = partial(speed_table, max_spread=0.1)


def row(repeat: int) -> SpeedRow:
    return speed_row(repeat=repeat, values={"latency_s": 1.5})


def test_a_terminal_gets_a_table_that_fills(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    terminal = partial(plain_console, file=screen, force_terminal=True, width=150)
    monkeypatch.setattr(live, "plain_console", lambda stderr: terminal())
    with live.ProgressDisplay(runs=4, starts=1, table=TABLE) as view:
        view.running("original", "base", -1)
        assert "original: base, warming up (4 runs in all)" in screen.getvalue()
        view.row(row(0))
        view.running("original", "base", 1)
        view.note("w8: base failed: no kernel")
    text = screen.getvalue()
    assert "original: base, run 2 (1 of 4 runs done, about" in text
    assert "1.50" in text
    assert "w8: base failed: no kernel" in text


def test_a_log_gets_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with live.ProgressDisplay(runs=2, starts=1, table=TABLE) as view:
        view.running("original", "base", 0)
        view.row(row(0))
        view.judging("original", 0, 32)
        view.judging("original", 1, 32)
        view.judging("original", 8, 32)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "original: base, run 1 (2 runs in all)"
    assert [line.split(" (")[0] for line in lines[1:]] == [
        "original: reading text, window 1 of 32",
        "original: reading text, window 9 of 32",
    ]


def test_the_time_left_counts_starts_of_engines_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(live.time, "monotonic", lambda: now)
    with live.ProgressDisplay(runs=20, starts=2, table=TABLE) as view:
        view.loading("original: loading")
        now = 60.0
        view.running("original", "base", 0)
        now = 62.0
        view.row(row(0))
        view.running("original", "base", 1)
    assert "1 of 20 runs done, about 1.6 min left" in capsys.readouterr().err
