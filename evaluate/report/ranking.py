"""Who is faster, and whether that can be told: ranks with ties, and the noise between starts."""

import math
import statistics
from collections import defaultdict
from itertools import combinations

from conf.models import ORIGINAL
from evaluate.report.grounds import Entry, Ground, Load
from evaluate.summary import Ratio, compare

MAD_TO_SIGMA = 0.6745
LEAST_RUNS = 2


def rank_all(found: list[Ground], max_spread: float) -> None:
    """Fills in ratios and ranks of every entry."""
    for ground in found:
        ground.between = noise_between_starts(ground)
        for load in ground.loads:
            _compare_with_original(load, ground.between or 0.0)
            rank(load, ground.between or 0.0, max_spread)


def noise_between_starts(ground: Ground) -> float | None:
    """The deviation between pairs that are the same to the engine (the same tensors, formats and
    options), as logarithm. The loads of a pair come from the same two starts: together they say
    one thing, the median over pairs another."""
    pairs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for load in ground.loads:
        alike: dict[str, list[Entry]] = defaultdict(list)
        for entry in load.entries:
            alike[_as_the_engine_sees_it(entry)].append(entry)
        for one, other in (pair for same in alike.values() for pair in combinations(same, 2)):
            ratio = ratio_of(one, other, 0.0)
            if ratio is not None:
                first, second = sorted((one.candidate, other.candidate))
                pairs[first, second].append(abs(math.log(ratio.ratio)))
    ground.twins = len(pairs)
    if not pairs:
        return None
    typical = statistics.median(statistics.median(apart) for apart in pairs.values())
    return typical / MAD_TO_SIGMA / math.sqrt(2)


def _as_the_engine_sees_it(entry: Entry) -> str:
    """The same for candidates whose tensors, formats, options and kernels are the same."""
    row = entry.row
    facts = [row.environment.get("quantization_sha256"), row.memory.get("weights_read_gib")]
    return str([sorted(entry.options.items()), sorted(row.kernels.items()), *facts])


def rank(load: Load, between: float, max_spread: float) -> None:
    """Sorts a load's entries by their median, fastest first; who cannot be told from the fastest
    of a group shares its rank. What is not ranked keeps its place and has no rank."""
    by = _ranked_by(load)
    load.entries.sort(key=lambda entry: (not entry.cell.valid, entry.median(by) or 0.0))
    leader: Entry | None = None
    place = 0
    for entry in load.entries:
        entry.rank, entry.tied = None, False
        if not is_ranked(entry, max_spread):
            continue
        place += 1
        ratio = None if leader is None else ratio_of(entry, leader, between)
        if leader is not None and (ratio is None or not ratio.differs):
            entry.rank, entry.tied, leader.tied = leader.rank, True, True
        else:
            leader, entry.rank = entry, place


def is_ranked(entry: Entry, max_spread: float) -> bool:
    """Whether it may be compared: two runs count at the least, and they agree with each other."""
    return len(entry.cell.valid) >= LEAST_RUNS and entry.cell.is_ranked(max_spread)


def tied_with(entry: Entry, other: Entry, between: float) -> bool:
    ratio = ratio_of(entry, other, between)
    return ratio is None or not ratio.differs


def _ranked_by(load: Load) -> str:
    return load.entries[0].cell.ranked_by


def ratio_of(one: Entry, other: Entry, between: float) -> Ratio | None:
    """How many times as fast as the other it is."""
    by = one.cell.ranked_by
    return compare(one.cell.values(by), other.cell.values(by), between)


def _compare_with_original(load: Load, between: float) -> None:
    """Against the original under the most similar options."""
    originals = [e for e in load.entries if e.checkpoint == ORIGINAL and e.cell.valid]
    for entry in load.entries:
        others = [original for original in originals if original is not entry]
        if not others or entry in originals:
            continue
        nearest = min(others, key=lambda original: _differences(entry, original))
        entry.ratio, entry.baseline = ratio_of(entry, nearest, between), nearest.candidate


def _differences(one: Entry, other: Entry) -> int:
    return len(set(one.options.items()) ^ set(other.options.items()))
