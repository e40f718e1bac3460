"""Progress and chatter: what a person sees, and where the rest goes."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from conf import ROOT, terminal
from conf.terminal import progress


def test_a_pipe_gets_lines_and_not_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "SECONDS_BETWEEN_LINES", 1000.0)
    screen = io.StringIO()
    with progress(Console(file=screen)) as bars:
        task = bars.add_task("layers", total=4)
        for done in range(1, 5):
            bars.update(task, completed=done)
    assert screen.getvalue().splitlines() == ["layers: 1 of 4", "layers: 4 of 4"]


def test_a_terminal_gets_a_bar() -> None:
    screen = io.StringIO()
    with progress(Console(file=screen, force_terminal=True, width=100)) as bars:
        bars.update(bars.add_task("layers", total=4), completed=4)
    assert "4/4" in screen.getvalue()


SCRIPT = """
import logging, os, sys
from conf.terminal import library_output_to
from pathlib import Path
logging.basicConfig()
try:
    with library_output_to(Path(sys.argv[1])) as console:
        print("printed")
        print("complained", file=sys.stderr)
        os.write(2, b"from C\\n")
        logging.warning("logged")
        console.print("for the person")
        raise ValueError
except ValueError:
    print("afterwards")
"""


def test_chatter_goes_to_the_log_and_the_console_to_the_screen(tmp_path: Path) -> None:
    """In a process of its own: pytest moves the streams that this is about."""
    log = tmp_path / "run.log"
    command = [sys.executable, "-c", SCRIPT, str(log)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    written = log.read_text()
    assert all(word in written for word in ("printed", "complained", "from C", "logged"))
    assert result.stderr == "for the person\n"
    assert result.stdout == "afterwards\n"


def test_only_one_place_makes_consoles() -> None:
    """A console of rich takes `[x]` in a name for markup, and fails on `[/x]`."""
    packages = ("conf", "quantize", "evaluate", "serve", "quantline")
    files = [path for name in packages for path in (ROOT / name).rglob("*.py")]
    makers = [path for path in files if re.search(r"\bConsole\(", path.read_text())]
    assert makers == [ROOT / "conf" / "terminal.py"]


@pytest.mark.parametrize(("columns", "is_whole"), [(None, True), ("60", False)])
def test_tables_in_a_pipe_are_as_wide_as_their_content(
    columns: str | None,
    is_whole: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    name = "a-checkpoint-" + "x" * 200
    table = Table("checkpoint", "verdict")
    table.add_row(name, "faster")
    terminal.table_console(100).print(table)
    printed = capsys.readouterr().out
    assert (name in printed) == is_whole
    assert len(printed.splitlines()[0]) == (len(name) + 14 if is_whole else 100)
