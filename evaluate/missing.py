"""What the results lack of one scenario: repeats without a row, searches that have not ended."""

from collections.abc import Sequence

from conf.schema.load import ScenarioConfig
from evaluate.results.capacity_search import found, missing_curve
from evaluate.results.rows import Row, TrialRow, of_card


def missing_repeats(
    start: int,
    repeats: int,
    recorded: Sequence[Row],
    trials: Sequence[TrialRow],
    scenario: ScenarioConfig,
) -> list[int]:
    """The repeats of one start that are still to be measured. `recorded` and `trials` are the
    scenario's rows. A search is whole on one GPU: cards of one name have different capacities."""
    capacity = scenario.capacity
    if capacity is None:
        done = {row.repeat for row in recorded if row.start == start}
    else:
        done = set()
        for number in range(repeats):
            own = [row for row in trials if (row.start, row.repeat) == (start, number)]
            curve = 0 if number else capacity.curve
            cards = {row.environment.card for row in own}
            if any(_is_whole(of_card(own, card), capacity.resolution, curve) for card in cards):
                done.add(number)
    return [number for number in range(repeats) if number not in done]


def _is_whole(rows: Sequence[TrialRow], resolution: float, curve: int) -> bool:
    """Whether a search has ended and has all trials of its curve."""
    trials = [row.trial for row in rows]
    is_found = found(trials, resolution) is not None
    return is_found and not missing_curve(trials, resolution, curve)


def trials_of(rows: Sequence[Row], key: str, checkpoint: str) -> list[TrialRow]:
    """The valid trials of one search, on all GPUs of its name."""
    return [
        row
        for row in rows
        if isinstance(row, TrialRow)
        and (row.key, row.checkpoint) == (key, checkpoint)
        and not row.invalid
    ]
