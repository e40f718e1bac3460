"""How much of the host's CPU time others took while runs were timed."""

from collections.abc import Iterable

from evaluate.results.rows import Row, SpeedRow

STOLEN, OTHERS = "cpu_stolen_share", "cpu_others_share"
MUCH_BY_OTHERS = 0.1  # of all cores' time; chosen: one other busy process on two cores takes 0.5
# Seconds of runs below which a share is not judged: the system counts in hundredths of a second.
LEAST_WATCHED_S = {STOLEN: 5.0, OTHERS: 1.0}


def taken_share(rows: Iterable[SpeedRow], name: str) -> float | None:
    """The share of the runs together, each by its length; None where too little was watched."""
    runs = [
        (share, seconds)
        for row in rows
        if (share := row.values.figure(name)) is not None
        and (seconds := row.values.latency_s) is not None
    ]
    total = sum(seconds for _, seconds in runs)
    if total < LEAST_WATCHED_S[name]:
        return None
    return sum(share * seconds for share, seconds in runs) / total


def processors_did_the_work(rows: Iterable[Row]) -> bool:
    """Whether the host's processors did the work: no run had a GPU."""
    return not any(row.environment.max_sm_clock_mhz for row in rows)


def busy_share(rows: Iterable[SpeedRow]) -> float | None:
    """Of all cores' time, what other processes took, if it is much and slowed the runs."""
    runs = list(rows)
    share = taken_share(runs, OTHERS) or 0.0
    return share if share >= MUCH_BY_OTHERS and processors_did_the_work(runs) else None
