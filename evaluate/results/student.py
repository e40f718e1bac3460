"""Quantiles of Student's t and of the normal distribution, for any level."""

import math
from functools import lru_cache
from statistics import NormalDist

MANY_DEGREES = 1e5  # from here on t is normal to more digits than are shown
PANELS = 200  # of Simpson's rule
HALVINGS = 60


def adjusted(level: float, comparisons: int) -> float:
    """The level for each of several comparisons, so that all of them hold together (Sidak)."""
    return float(level ** (1 / max(1, comparisons)))


def quantile(level: float, degrees: float = math.inf) -> float:
    """The half width of an interval of that level, in standard errors. Fractional degrees of
    freedom are rounded down, which gives the wider interval."""
    if degrees >= MANY_DEGREES:
        return NormalDist().inv_cdf((1 + level) / 2)
    return _student_quantile(level, max(1, math.floor(degrees)))


@lru_cache(maxsize=4096)
def _student_quantile(level: float, degrees: int) -> float:
    low, high = 0.0, 1.0
    while _probability_inside(high, degrees) < level:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _probability_inside(middle, degrees) < level else (low, middle)
        )
    return high


def _probability_inside(limit: float, degrees: int) -> float:
    """The probability that |t| stays below the limit. With t = sqrt(degrees) * tan(angle) the
    density is a power of the cosine, which Simpson's rule integrates well."""
    logarithm = math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)
    factor = 2 * math.exp(logarithm) / math.sqrt(math.pi)
    angle = math.atan(limit / math.sqrt(degrees))
    heights = [math.cos(angle * n / PANELS) ** (degrees - 1) for n in range(PANELS + 1)]
    weighted = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    return factor * weighted * angle / PANELS / 3
