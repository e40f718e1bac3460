"""Every printed duration is in the unit that suits its size."""

import re
from pathlib import Path

import pytest

from conf import ROOT, durations
from conf.durations import duration

PACKAGES = ("conf", "quantize", "serve", "evaluate", "quantline")
# A value with a unit of time, written by hand: `{minutes:.1f} min`, `{seconds:.0f} s left`.
BY_HAND = re.compile(r"\{[^{}]*\} (min|minutes|hours|h|s (left|so far))\b")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1.0 min"),
        (60, "1.0 min"),
        (234, "3.9 min"),
        (7196, "119.9 min"),
        (7199, "2.0 h"),
        (41316, "11.5 h"),
        (3 * 86400 - 1, "3.0 days"),
        (10**6, "11.6 days"),
    ],
)
def test_the_unit_suits_the_size(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_no_module_writes_minutes_or_time_left_by_hand() -> None:
    files = {path for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    files.remove(Path(durations.__file__))
    places = [str(path.relative_to(ROOT)) for path in files if BY_HAND.search(path.read_text())]
    assert places == []
