"""Compares starts of engines: when a trial is beaten, and what the best settings gain.

The search picks the best of many trials, so the times of its own starts flatter it (the winner's
curse). The gain comes from fresh starts, which had no part in the choice.
"""

from collections.abc import Sequence

from evaluate.results.significance import (
    Ratio,
    Sample,
    Start,
    WorkloadNoise,
    compare,
    pooled_variance,
)


def is_slower(start: Start, best: Start) -> bool:
    """Whether a start is significantly slower than the best. The places of runs do not count: each
    engine is started anew, and a wrong verdict only ends a trial early."""
    ratio = compare(Sample((Start(start.logs),)), Sample((Start(best.logs),)))
    return ratio is not None and ratio.high < 1


def gain_of(best: Sequence[Start], default: Sequence[Start]) -> Ratio | None:
    """The speed-up with its interval, by the noise between these starts."""
    means = [[start.mean for start in starts] for starts in (best, default)]
    noise = WorkloadNoise(starts=pooled_variance(means))
    return compare(Sample(tuple(best)), Sample(tuple(default)), noise)
