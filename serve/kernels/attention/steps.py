"""What the requests of a step do, as vLLM's metadata of attention says.

Nothing here may wait for the GPU. A wrong answer would be a wrong result, so each is "no" wherever
the metadata leaves a doubt.
"""

from typing import Any

FRESH = "quantline_fresh"
"""A mark on metadata: whether no request of a step has tokens from before it."""


def metadata_of(context: Any, layer: str) -> Any:
    """The metadata of a layer in a step; None where it has none, or where the step is cut into
    parts that run at once."""
    every = context.attn_metadata
    return every.get(layer) if isinstance(every, dict) else None


def decodes(metadata: Any, context: Any) -> bool:
    """Whether each request of a step has exactly one new token, now and in every step that replays
    a graph which is captured here."""
    if metadata is None or metadata.max_query_len != 1 or metadata.causal is not True:
        return False
    if (
        getattr(metadata, "use_cascade", False)
        or getattr(metadata, "rswa_prefix_lens", None) is not None
    ):
        return False
    requests = metadata.seq_lens.shape[0]
    if not requests or requests != metadata.num_actual_tokens:
        return False
    if requests != metadata.query_start_loc.shape[0] - 1:
        return False
    mode, graph = context.cudagraph_runtime_mode.name, context.batch_descriptor
    if mode == "FULL":
        # Such a graph may be captured with one token of each request and replayed for prompts,
        # unless it is one for uniform steps.
        return graph is not None and bool(graph.uniform)
    # Between replayed pieces of a graph, the host waits longer for our launch than for vLLM's.
    # Without graphs vLLM warms up what it captures next.
    return bool(mode == "NONE")


def is_fresh(common: Any) -> bool:
    """Whether no request of a step has tokens from before it: its keys and values are all there,
    without the cache. No request has fewer tokens than its new ones, so equal sums say it."""
    if common.max_query_len <= 1 or common.causal is not True:
        return False
    new, longest = common.query_start_loc_cpu, getattr(common, "seq_lens_cpu_upper_bound", None)
    if longest is None or longest.shape[0] < common.num_reqs:
        return False
    return int(longest[: common.num_reqs].sum()) == int(new[common.num_reqs])
