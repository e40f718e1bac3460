"""Ranks candidates by speed, with statistical ties."""

from functools import partial

from conf.models import ORIGINAL
from evaluate.report.decide.comparison import ComparisonGroup, Entry, Workload
from evaluate.results.cells import LEAST_RUNS
from evaluate.results.restart_noise import Noise, cell_ratio, machines_of, noise_of
from evaluate.results.significance import Ratio


def rank_all(groups: list[ComparisonGroup], max_spread: float) -> None:
    """Sets the speed-up and rank of every entry."""
    for group in groups:
        cells = {
            workload.name: [entry.cell for entry in workload.entries]
            for workload in group.workloads
        }
        group.noise = noise_of([cells])
        for workload in group.workloads:
            _compare_with_original(workload, group.noise)
            rank(workload, group.noise, max_spread)


def rank(workload: Workload, noise: Noise, max_spread: float) -> None:
    """Sorts a workload's entries by their median, fastest first. Statistical ties share a rank.
    An entry that cannot be ranked keeps its place without a rank."""
    value = _ranked_by(workload)
    workload.entries.sort(key=lambda entry: (not entry.cell.valid, entry.median(value) or 0.0))
    tied_entries: list[Entry] = []
    place = 0
    for entry in workload.entries:
        entry.rank, entry.tied = None, False
        if not is_ranked(entry, max_spread):
            continue
        place += 1
        if tied_entries and all(tied_with(entry, faster, noise) for faster in tied_entries):
            tied_entries.append(entry)
            entry.rank, entry.tied, tied_entries[0].tied = tied_entries[0].rank, True, True
        else:
            tied_entries, entry.rank = [entry], place


def is_ranked(entry: Entry, max_spread: float) -> bool:
    """Whether it may be ranked: at least two valid runs with a small enough spread."""
    timed = entry.cell.values(entry.cell.ranked_by)
    return len(timed) >= LEAST_RUNS and entry.cell.is_ranked(max_spread)


def tied_with(entry: Entry, other: Entry, noise: Noise) -> bool:
    ratio = speed_ratio(entry, other, noise)
    return ratio is None or not ratio.differs


def _ranked_by(workload: Workload) -> str:
    return workload.entries[0].cell.ranked_by


def speed_ratio(entry: Entry, other: Entry, noise: Noise) -> Ratio | None:
    """The speed-up of the entry over the other."""
    return cell_ratio(entry.cell, other.cell, noise, entry.workload.name)


def _compare_with_original(workload: Workload, noise: Noise) -> None:
    """Sets each entry's speed-up over the original with the most similar options. Of several, it is
    one that ran on the same machine."""
    originals = [e for e in workload.entries if e.checkpoint == ORIGINAL and e.cell.valid]
    for entry in workload.entries:
        candidates = [original for original in originals if original is not entry]
        if not candidates or entry in originals:
            continue
        nearest = min(candidates, key=partial(_distance, entry))
        entry.ratio, entry.baseline = speed_ratio(entry, nearest, noise), nearest.candidate


def _distance(entry: Entry, original: Entry) -> tuple[int, bool, bool]:
    """How many options differ, then whether they ran on the same machines, or on some of them."""
    different_options = len(set(entry.options.items()) ^ set(original.options.items()))
    own, others = machines_of(entry.cell), machines_of(original.cell)
    return different_options, own != others, not own & others
