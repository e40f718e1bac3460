"""The requests that decide whether a trial of a capacity search meets targets."""

from collections.abc import Iterable

RequestPace = tuple[float, float]
"""TTFT and TPOT of a request, in one unit. The TPOT is 0 where the answer has one token, and where
the request was cut off after its first one."""


def allowed_misses(requests: int, share: float) -> int:
    """How many requests may miss the targets where this share has to meet them."""
    return int(requests * (1 - share) + 1e-9)


def slowest(paces: Iterable[RequestPace], allowed: int) -> list[RequestPace]:
    """The requests with the longest TTFT and those with the longest TPOT, one more of each than may
    miss. They decide any targets: where no more than `allowed` requests of the trial are late, all
    of the late ones are among them; else more than `allowed` of these are late, too."""
    paces = list(paces)
    places: set[int] = set()
    for of_pace in (0, 1):
        ordered = sorted(range(len(paces)), key=lambda place: -paces[place][of_pace])
        places.update(ordered[: allowed + 1])
    return sorted((paces[place] for place in places), reverse=True)
