"""When the conversations of a run begin."""

import itertools
import random

from conf.errors import bad_input
from conf.schema.load import ScenarioConfig
from conf.schema.traffic import BURSTY, CLOSED, REPLAYED


def arrival_times(
    count: int, scenario: ScenarioConfig, recorded: list[float | None], generator: random.Random
) -> list[float]:
    """Seconds after the run's start, in order. A closed loop begins all at once: the number of
    clients limits how many run. In a capacity search all rates have one pattern."""
    traffic = scenario.traffic
    assert traffic is not None
    if traffic.arrivals == CLOSED:
        return [0.0] * count
    if traffic.arrivals == REPLAYED:
        return replayed(recorded, traffic.speed or 1.0)
    assert scenario.rate is not None
    gaps = _gaps(count, scenario, generator)
    if scenario.capacity is not None:
        gaps = _spanning(scenario.count / scenario.rate, gaps)
    return [0.0, *itertools.accumulate(gaps[:-1])][:count]


def _gaps(count: int, scenario: ScenarioConfig, generator: random.Random) -> list[float]:
    """Random seconds from one beginning to the next, and after the last one."""
    traffic = scenario.traffic
    assert traffic is not None
    assert scenario.rate is not None
    # Of a gamma distribution with this shape the mean is 1; shape 1 is the exponential one.
    shape = (traffic.burstiness or 1.0) if traffic.arrivals == BURSTY else 1.0
    # The rate is that of requests: a conversation of several turns begins less often.
    turns = traffic.requests / traffic.conversations if traffic.conversations else 1.0
    return [generator.gammavariate(shape, 1 / shape) * turns / scenario.rate for _ in range(count)]


def _spanning(seconds: float, gaps: list[float]) -> list[float]:
    """The gaps scaled to so many seconds in all: n requests of a trial take n / rate. Drawn gaps
    miss their mean by 3 % with a thousand requests, and rates are told apart by 5 %."""
    drawn = sum(gaps)
    return [gap * seconds / drawn for gap in gaps] if drawn else gaps


def replayed(recorded: list[float | None], speed: float) -> list[float]:
    """The times of a trace, from its first request on."""
    known = [time for time in recorded if time is not None]
    if len(known) < len(recorded):
        raise bad_input("traffic.arrivals=replayed: the requests have no timestamps")
    return [(time - known[0]) / speed for time in known]
