"""Which rows of earlier commands a search may use.

Cards of one name differ by up to 7 %, and one card differs from day to day. So trials are taken
over from the same card only, and starts that confirm a gain from one command only.
"""

from collections import defaultdict
from collections.abc import Sequence

from evaluate.results.rows import Row, SpeedRow
from evaluate.tune.trials import SEARCH

Starts = dict[str, dict[int, set[int]]]
"""The valid runs by search and number of the start."""


def confirming_starts(
    default: Sequence[Row], best: Sequence[Row], count: int, repeats: int
) -> Sequence[int]:
    """The numbers of the starts that compare the best settings with the default: those of an
    earlier command that measured all of both, the latest first; else new ones. The rows are those
    of the two keys."""
    sides = [_starts_of(default), _starts_of(best)]
    for search in reversed(sides[0]):
        whole = [_whole(side.get(search, {}), repeats) for side in sides]
        numbers = sorted(set.intersection(*whole))
        if len(numbers) >= count:
            return numbers[:count]
    first = 1 + max([SEARCH, *(row.start for row in (*default, *best))])
    return range(first, first + count)


def _starts_of(rows: Sequence[Row]) -> Starts:
    """The confirming starts. Older rows do not say which command measured them."""
    starts: Starts = defaultdict(lambda: defaultdict(set))
    for row in rows:
        search = row.environment.search
        if isinstance(row, SpeedRow) and row.start != SEARCH and search and not row.invalid:
            starts[search][row.start].add(row.repeat)
    return starts


def _whole(starts: dict[int, set[int]], repeats: int) -> set[int]:
    """The starts in which nothing is missing."""
    return {number for number, runs in starts.items() if set(range(repeats)) <= runs}
