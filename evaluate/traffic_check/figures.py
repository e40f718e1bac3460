"""The figures of one run. Both tools' requests are summarized by the same code."""

import statistics
from dataclasses import dataclass

from evaluate.measure.metrics import Request


@dataclass(frozen=True)
class Figures:
    """Medians over the requests of a run, and the throughput."""

    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float

    def of(self, name: str) -> float:
        return float(getattr(self, name))


NAMES = {"ttft_ms": "TTFT (ms)", "tpot_ms": "TPOT (ms)", "tokens_per_s": "output tokens/s"}


def figures_of(requests: list[Request], clients: int) -> Figures:
    """The figures of answered requests after the first one of each client: all of these are sent at
    once, which takes a tool a while. The throughput is that while all clients are busy."""
    later = sorted(requests, key=lambda request: request.start)[clients:]
    begin, end = later[0].start, later[-1].start
    tokens = sum(begin < moment <= end for request in requests for moment in request.token_times)
    return Figures(
        ttft_ms=1e3 * statistics.median(request.ttft for request in later),
        tpot_ms=1e3 * statistics.median(request.tpot or 0.0 for request in later),
        tokens_per_s=tokens / (end - begin),
    )
