"""What the results lack of one scenario: repeats without a row, searches that have not ended."""

from collections.abc import Sequence

from conf.schema.load import ScenarioConfig
from evaluate.results.capacity_search import found, missing_curve
from evaluate.results.rows import Row, TrialRow


def missing_repeats(
    start: int,
    repeats: int,
    recorded: Sequence[Row],
    trials: Sequence[TrialRow],
    scenario: ScenarioConfig,
) -> list[int]:
    """The repeats of one start that are still to be measured. `recorded` and `trials` are the
    scenario's rows."""
    capacity = scenario.capacity
    if capacity is None:
        done = {row.repeat for row in recorded if row.start == start}
    else:
        done = set()
        for number in range(repeats):
            own = [row.trial for row in trials if (row.start, row.repeat) == (start, number)]
            curve = 0 if number else capacity.curve
            if found(own, capacity.resolution) and not missing_curve(
                own, capacity.resolution, curve
            ):
                done.add(number)
    return [number for number in range(repeats) if number not in done]


def trials_of(rows: Sequence[Row], key: str, checkpoint: str) -> list[TrialRow]:
    """The valid trials of one search."""
    return [
        row
        for row in rows
        if isinstance(row, TrialRow)
        and (row.key, row.checkpoint) == (key, checkpoint)
        and not row.invalid
    ]
