"""Repeats a measurement until its interval is narrow, or the time is up."""

import time
from collections.abc import Callable

from evaluate.results.kernel_values import Times
from evaluate.results.summary import summarize

FEWEST, MOST = 5, 100
NARROW = 0.01
"""Width of the 95 % interval of the mean, as a share of the mean, that is narrow enough."""
SECONDS = 0.2
"""For one measurement."""


def sampled(
    sample: Callable[[], float],
    seconds: float = SECONDS,
    now: Callable[[], float] = time.monotonic,
) -> Times:
    """The median and interval of as many samples as it takes. Outliers are left out."""
    end = now() + seconds
    values = [sample() for _ in range(FEWEST)]
    summary = summarize(values)
    while len(values) < MOST and now() < end and summary.high - summary.low > NARROW * summary.mean:
        values.append(sample())
        summary = summarize(values)
    return Times(
        median_us=summary.median,
        low_us=max(summary.low, min(values) * 1e-3),
        high_us=summary.high,
        repeats=len(values),
    )
