"""Tests wait for what happens, not for a time: a machine may be slow, fast or busy."""

import ast

import pytest

from tests.conftest import ROOT

LEAST_LIMIT_S = 60
SLEEPS, WAITS = ("sleep", "Timer"), ("wait", "join", "communicate", "result")
# By file: why a short time there cannot fail a test, whatever the machine does.
SHORT = {
    "tests/conf/files/test_write_whole.py": "the other thread has time to meddle; it must not",
    "tests/conf/launch/slurm_cluster.py": "a daemon that does not end by then is killed",
    "tests/quantize/calibrate/memory/test_writer.py": "in this time nothing must happen",
}


def short_waits(source: str) -> list[str]:
    """Calls outside of a loop that looks again which go on after a short time."""
    tree = ast.parse(source)
    in_loops = {
        node for loop in ast.walk(tree) if isinstance(loop, ast.While) for node in ast.walk(loop)
    }
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [
        f"line {call.lineno}: {ast.unparse(call)}"
        for call in calls
        if call not in in_loops and any(0 < seconds < LEAST_LIMIT_S for seconds in _seconds(call))
    ]


def _seconds(call: ast.Call) -> list[float]:
    """The numbers of seconds in a call."""
    is_method = isinstance(call.func, ast.Attribute)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    values = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
    if name in SLEEPS or (is_method and name in WAITS):
        values += call.args[:1]
    numbers = [value.value for value in values if isinstance(value, ast.Constant)]
    return [float(number) for number in numbers if type(number) in (int, float)]


@pytest.mark.parametrize(
    ("line", "is_short"),
    [
        ("time.sleep(0.5)", True),
        ("while not done():\n    time.sleep(0.5)", False),
        ("process.wait(10)", True),
        ("process.wait(timeout=10)", True),
        ("process.wait(LIMIT)", False),
        ("event.wait(300)", False),
        ("threading.Timer(2.0, stop).start()", True),
        ("','.join(words)", False),
        ("urlopen(url, timeout=5)", True),
        ("time.sleep(600)", False),
        ("asyncio.sleep(0)", False),
    ],
)
def test_a_short_wait_is_found(line: str, is_short: bool) -> None:
    assert bool(short_waits(line)) == is_short


def test_no_test_depends_on_the_speed_of_the_machine() -> None:
    paths = sorted((ROOT / "tests").rglob("*.py"))
    found = {path.relative_to(ROOT).as_posix(): short_waits(path.read_text()) for path in paths}
    short = {file: lines for file, lines in found.items() if lines}
    assert {file: lines for file, lines in short.items() if file not in SHORT} == {}
    assert short.keys() == SHORT.keys(), "one of the exceptions is none"
