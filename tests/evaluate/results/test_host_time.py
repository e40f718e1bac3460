"""CPU time that others took while runs were timed."""

import pytest

from evaluate.results.host_time import OTHERS, STOLEN, busy_share, taken_share
from evaluate.results.rows import SpeedRow
from tests.evaluate.made_rows import speed_row


def run(seconds: float, clock_mhz: float | None = None, **shares: float) -> SpeedRow:
    row = speed_row(values={"latency_s": seconds, **shares})
    row.environment.max_sm_clock_mhz = clock_mhz
    return row


def test_long_runs_count_for_more() -> None:
    rows = [run(6.0, cpu_stolen_share=0.1), run(2.0, cpu_stolen_share=0.5), run(9.0)]
    assert taken_share(rows, STOLEN) == pytest.approx(0.2)


def test_a_short_time_is_not_judged() -> None:
    assert taken_share([run(4.9, cpu_stolen_share=0.5)], STOLEN) is None
    assert taken_share([run(0.9, cpu_others_share=0.5)], OTHERS) is None
    assert taken_share([], OTHERS) is None


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([run(2.0, cpu_others_share=0.5)], 0.5),
        ([run(2.0, cpu_others_share=0.09)], None),
        ([run(2.0, clock_mhz=1980.0, cpu_others_share=0.5)], None),  # a GPU did the work
        ([run(2.0)], None),
        ([], None),
    ],
)
def test_other_processes_matter_on_a_cpu(rows: list[SpeedRow], expected: float | None) -> None:
    assert busy_share(rows) == expected
