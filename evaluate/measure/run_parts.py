"""The parts of a run's row that are not its times."""

from collections import Counter

from evaluate.measure.events import CompactRequests
from evaluate.measure.gpu_watch import Watched
from evaluate.measure.metrics import Request
from evaluate.results.row_types import Memory
from evaluate.results.row_values import SpeedValues


def add_watched(values: SpeedValues, watched: Watched) -> None:
    """Adds what was seen of the GPUs and of the host."""
    if watched.energy_j and values.output_tokens:
        values.energy_j = watched.energy_j
        values.joules_per_output_token = watched.energy_j / values.output_tokens
    if watched.sm_clock_mhz:
        values.sm_clock_mhz = watched.sm_clock_mhz
    if watched.power_capped is not None:
        values.power_capped_share = watched.power_capped
    if watched.host.stolen_share is not None:
        values.cpu_stolen_share = watched.host.stolen_share
    if watched.host.waiting_share is not None:
        values.cpu_waiting_share = watched.host.waiting_share
    if watched.host.others_share is not None:
        values.cpu_others_share = watched.host.others_share
    if watched.host.server_share is not None:
        values.server_cpu_share = watched.host.server_share
    if watched.host.client_share is not None:
        values.client_cpu_share = watched.host.client_share


def compact_requests(requests: list[Request]) -> CompactRequests:
    """Counts the answered requests by their tokens and by their times in microseconds."""
    answered = [request for request in requests if request.is_answered]
    times = Counter(
        (round(r.start, 6), round(r.token_times[0], 6), round(r.token_times[-1], 6))
        for r in answered
    )
    return CompactRequests(
        input_tokens=dict(Counter(str(request.input_tokens) for request in answered)),
        output_tokens=dict(Counter(str(request.output_tokens) for request in answered)),
        times_s=[(*moments, count) for moments, count in sorted(times.items())],
    )


def own_memory(memory: Memory) -> Memory:
    """The memory of an engine that has neighbours, without that of its graphs. vLLM takes all the
    memory that disappears while it captures them for theirs, and neighbours take some then."""
    sizes = memory.numbers()
    sizes.pop("graphs_gib", None)
    return Memory.model_validate(sizes)
