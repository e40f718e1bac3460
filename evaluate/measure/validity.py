"""Decides whether a run may be ranked, and gives the reasons if not."""

from dataclasses import dataclass, field

from evaluate.measure.metrics import Request, come_at_once
from evaluate.measure.workload import Load
from evaluate.results.summary import PERCENT_99, percentile

MOST_PREFIX_HITS = 0.01
# A generator that sends later than both of these distorts what it measures.
LATEST_SEND_S, LATEST_SEND_SHARE = 0.05, 0.2
LEAST_CLOCK = 0.9


@dataclass
class Observed:
    """Observations of one run beside its times."""

    prefix_hits: float = 0.0
    """Prompt tokens that came from the prefix cache."""
    prefix_queries: float = 0.0
    """Prompt tokens that were looked up there."""
    compiled: list[str] = field(default_factory=list)
    """Kernels or graphs that were compiled inside the window."""
    throttled: list[str] = field(default_factory=list)
    """Reasons for lower clocks that make the run incomparable."""
    clock_share: float | None = None
    """The clock as a share of the fastest clock in the same scenario."""
    power_capped: float = 0.0
    """The share of the time in which the power limit lowered the clock."""
    other_processes: int = 0
    """Processes on the GPU that do not belong to the engine."""


def reasons(requests: list[Request], load: Load, observed: Observed) -> list[str]:
    """Why the run must not be ranked; empty for a valid run."""
    faults = []
    failed = [request.error for request in requests if not request.is_answered]
    if failed:
        faults.append(f"{len(failed)} of {len(requests)} requests failed: {failed[0]}")
    answered = [
        (planned, request)
        for planned, request in zip(load.requests, requests, strict=True)
        if request.is_answered
    ]
    for counts, direction in (
        ([(len(planned.prompt), request.input_tokens) for planned, request in answered], "in"),
        ([(planned.output_tokens, request.output_tokens) for planned, request in answered], "out"),
    ):
        wrong_counts = [(expected, count) for expected, count in counts if count != expected]
        if wrong_counts:
            expected, count = wrong_counts[0]
            faults.append(
                f"{len(wrong_counts)} requests had {count} tokens {direction}, asked for {expected}"
            )
    hits, queries = observed.prefix_hits, observed.prefix_queries
    if queries and hits / queries > MOST_PREFIX_HITS and not load.shares_prefixes:
        faults.append(f"{hits / queries:.0%} of the prompt tokens came from a warm prefix cache")
    if come_at_once([request for _, request in answered]):
        faults.append(
            "all tokens of an answer arrived at once: the server does not stream, or this machine "
            "was too busy to receive them one by one"
        )
    faults += _late_sending([request for _, request in answered])
    if observed.compiled:
        faults.append(f"compiled while it was timed: {observed.compiled[0]}")
    if observed.throttled:
        faults.append(f"the GPU was throttled: {', '.join(observed.throttled)}")
    if observed.clock_share is not None and _is_slow(observed.clock_share, observed.power_capped):
        faults.append(f"the GPU's clock was at {observed.clock_share:.0%} of the other runs'")
    if observed.other_processes:
        faults.append(f"{observed.other_processes} other processes were using the GPU")
    return faults


def _late_sending(answered: list[Request]) -> list[str]:
    if not answered:
        return []
    delay = percentile([request.send_delay for request in answered], PERCENT_99)
    wait = percentile([request.ttft for request in answered], 0.5)
    if delay > max(LATEST_SEND_S, LATEST_SEND_SHARE * wait):
        return [f"the client sent requests {delay * 1e3:.0f} ms too late, it is too slow"]
    return []


def _is_slow(clock_share: float, power_capped: float) -> bool:
    """Whether the clock is lower than the power limit can explain. The limit explains at most a
    loss equal to the share of the time in which it was active."""
    return clock_share < LEAST_CLOCK and power_capped < 1 - clock_share


def constant_output(answers: list[list[int]]) -> str:
    """The fault of a checkpoint that answers every prompt with nothing or with one repeated token;
    empty if there is none."""
    if not any(answers):
        return "it answers nothing"
    distinct_tokens = {token for answer in answers for token in answer}
    if len(distinct_tokens) == 1:
        return f"it answers every prompt with token {distinct_tokens.pop()} alone"
    return ""
