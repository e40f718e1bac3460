"""What a search shows: the bar of a terminal, and the sentences at the end."""

import io
import sys
from dataclasses import replace

import pytest
from rich.console import Console

from evaluate.results.significance import Ratio
from evaluate.tune.display import TuneDisplay, sentences, trials_table
from evaluate.tune.search import Outcome
from evaluate.tune.space import DEFAULT
from evaluate.tune.trials import Budget, Judgement, Trial, TrialRequest
from tests.evaluate.tune.made_up import whole

FASTER = (("performance_mode", "throughput"),)
TRIALS = [whole(), whole(FASTER, 0.9), Trial((("custom_ops", "all"),), failure="no [such] op")]


@pytest.mark.parametrize("is_terminal", [True, False])
def test_trial_time_left_and_best_are_shown(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "140")
    with TuneDisplay(Budget(100.0, lambda: 0.0)) as display:
        display.learned(TRIALS[:2], TRIALS[1])
        display.begin(TrialRequest((("custom_ops", "all"),)))
        display.running("original", "base", 0)
        display.begin(TrialRequest(DEFAULT, 1))
        display.running("original", "base", 1)
    shown = screen.getvalue()
    for part in (
        "trial 3 (custom_ops=all): run 1",
        "confirming, start 1 (default settings): run 2",
        "1.7 min left",
        "best so far 1.111 (performance_mode=throughput)",
    ):
        assert part in shown
    assert ("━" in shown) == is_terminal


def test_the_table_has_every_trial_fastest_first() -> None:
    screen = io.StringIO()
    Console(file=screen, width=140).print(trials_table(Outcome(TRIALS), "latency_s"))
    lines = screen.getvalue().splitlines()[3:-1]
    assert "1.111" in lines[0]
    assert "performance_mode=throughput" in lines[0]
    assert "default settings" in lines[1]
    assert "failed: no [such] op" in lines[2]


def test_a_table_without_the_default_has_times_alone() -> None:
    screen = io.StringIO()
    Console(file=screen, width=140).print(trials_table(Outcome(TRIALS[1:]), "latency_s"))
    (line,) = [line for line in screen.getvalue().splitlines() if "throughput" in line]
    assert "0.9" in line
    assert "1.1" not in line


def test_the_gain_is_said_with_its_interval() -> None:
    found = Outcome(TRIALS, FASTER, FASTER, Ratio(1.1, 1.05, 1.15), Judgement(True, "accuracy: x"))
    assert sentences(found) == [
        "accuracy: x",
        "performance_mode=throughput: 1.100 times as fast as the default settings "
        "(1.050 to 1.150 at 95 %, in fresh starts of both)",
    ]
    kept = replace(found, chosen=DEFAULT, reason="no settings are significantly faster")
    assert sentences(kept)[-1].endswith("faster; the default settings are kept")
