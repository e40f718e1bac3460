"""Durations in words, in the unit that suits their size."""

MINUTE, HOUR, DAY = 60, 3600, 86400
# From these seconds on, the larger unit reads better.
HOURS_FROM, DAYS_FROM = 2 * HOUR, 3 * DAY


def duration(seconds: float) -> str:
    """The duration in one unit: 38 s, 3.9 min, 11.5 h or 4.2 days. The unit is chosen after
    rounding, so that a text such as 60 s or 120.0 min never occurs."""
    seconds = max(0.0, seconds)
    if round(seconds) < MINUTE:
        return f"{seconds:.0f} s"
    if round(seconds / MINUTE, 1) < HOURS_FROM / MINUTE:
        return f"{seconds / MINUTE:.1f} min"
    if round(seconds / HOUR, 1) < DAYS_FROM / HOUR:
        return f"{seconds / HOUR:.1f} h"
    return f"{seconds / DAY:.1f} days"
