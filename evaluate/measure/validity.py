"""Whether a run may be ranked: everything that should not be in its number, by name."""

from dataclasses import dataclass, field

from conf.schema.load import ScenarioConfig
from evaluate.measure.metrics import Request

MOST_PREFIX_HITS = 0.01
LEAST_CLOCK = 0.9


@dataclass
class Observed:
    """What was seen around one run, beside its times."""

    prefix_hits: float = 0.0
    """Prompt tokens that came from the prefix cache."""
    prefix_queries: float = 0.0
    """Prompt tokens that were looked up there."""
    compiled: list[str] = field(default_factory=list)
    """Kernels or graphs that were compiled inside the window."""
    throttled: list[str] = field(default_factory=list)
    """Why the GPU lowered its clocks, where that spoils a comparison."""
    clock_share: float | None = None
    """The clock as a share of the fastest run's of the same scenario."""
    power_capped: float = 0.0
    """The share of the time in which the run's own power lowered the clock."""
    other_processes: int = 0
    """Processes that used the GPU before the engine did."""


def reasons(requests: list[Request], scenario: ScenarioConfig, seen: Observed) -> list[str]:
    """Why the run must not be ranked; empty for a run that counts."""
    found = []
    failed = [request.error for request in requests if request.error or not request.token_times]
    if failed:
        found.append(f"{len(failed)} of {len(requests)} requests failed: {failed[0]}")
    answered = [request for request in requests if request.token_times]
    for asked, counted, what in (
        (scenario.input_tokens, [request.input_tokens for request in answered], "in"),
        (scenario.output_tokens, [request.output_tokens for request in answered], "out"),
    ):
        wrong = [count for count in counted if count != asked]
        if wrong:
            found.append(f"{len(wrong)} requests had {wrong[0]} tokens {what}, asked for {asked}")
    if seen.prefix_queries and seen.prefix_hits / seen.prefix_queries > MOST_PREFIX_HITS:
        share = seen.prefix_hits / seen.prefix_queries
        found.append(f"{share:.0%} of the prompt tokens came from a warm prefix cache")
    if seen.compiled:
        found.append(f"compiled while it was timed: {seen.compiled[0]}")
    if seen.throttled:
        found.append(f"the GPU was throttled: {', '.join(seen.throttled)}")
    if seen.clock_share is not None and _is_slow(seen.clock_share, seen.power_capped):
        found.append(f"the GPU's clock was at {seen.clock_share:.0%} of the other runs'")
    if seen.other_processes:
        found.append(f"{seen.other_processes} other processes were using the GPU")
    return found


def _is_slow(clock_share: float, power_capped: float) -> bool:
    """A clock may fall by its own power; no further than in all of that time to nothing."""
    return clock_share < LEAST_CLOCK and power_capped < 1 - clock_share


def constant_output(answers: list[list[int]]) -> str:
    """What is wrong with a checkpoint that answers every prompt with nothing, or with one token
    over and over; empty for one that answers."""
    if not any(answers):
        return "it answers nothing"
    spoken = {token for answer in answers for token in answer}
    if len(spoken) == 1:
        return f"it answers every prompt with token {spoken.pop()} alone"
    return ""
