"""The GPU memory that a candidate needs: weights, graphs, and the KV cache of the workload."""

from conf.hardware import CPU
from conf.schema.load import is_beside_others
from evaluate.report.decide.comparison import Entry
from evaluate.results.row_types import Memory, WorkloadSettings

ASSUMED_GRAPHS_GIB = 1.5
"""Where it is not known. Measured alone, Qwen3-8B has 0.94 to 1.04 on an H200 in vLLM 0.25.1."""


def need_gib(entry: Entry) -> float | None:
    """The memory that this workload uses. vLLM reserves nearly all of the GPU, so the reserved
    memory does not show it. For an engine that allocates on demand, it is the peak."""
    memory, settings = entry.row.memory, entry.row.settings
    weights, cached = memory.weights_gib, memory.kv_cache_tokens
    if weights is None or not cached:
        return memory.peak_gib
    requests = settings.batch or settings.concurrency
    if requests is None:
        return None  # the concurrency of an open loop is not known
    tokens = requests * _context(settings)
    fixed = weights + _graphs_gib(entry)
    return fixed + min(tokens, cached) * _kv_token_gib(memory, fixed, cached)


def _graphs_gib(entry: Entry) -> float:
    """Memory of CUDA graphs. Of engines that were loaded together it is not known: vLLM takes all
    memory that disappears while it captures graphs for theirs, which in older rows is that of the
    neighbours, too."""
    environment = entry.row.environment
    options = environment.engine_options
    if not is_beside_others(options):
        return entry.row.memory.graphs_gib or 0.0
    has_graphs = environment.device != CPU and not options.get("enforce_eager")
    return ASSUMED_GRAPHS_GIB if has_graphs else 0.0


def _context(settings: WorkloadSettings) -> float:
    """Tokens of a request; of traffic, in the mean."""
    if settings.traffic is not None:
        inputs, outputs = settings.traffic.input_tokens_mean, settings.traffic.output_tokens_mean
        return (inputs or 0.0) + (outputs or 0.0)
    return (settings.input_tokens or 0) + (settings.output_tokens or 0)


def _kv_token_gib(memory: Memory, fixed: float, cached: float) -> float:
    """KV cache memory per token: as recorded, or else the peak without weights and graphs. The
    latter includes activations, which add a few percent."""
    if memory.kv_token_bytes is not None:
        return memory.kv_token_bytes / 2**30
    peak = fixed if memory.peak_gib is None else memory.peak_gib
    return max(0.0, peak - fixed) / cached
