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


def largest_decoding_graph(compilation: Any) -> int:
    """The most requests of a captured graph that is replayed for steps which decode only; 0 where
    an engine captures none. A graph that is also replayed for prompts may be captured with one
    token of each request."""
    mode = getattr(compilation, "cudagraph_mode", None)
    if mode is None or not mode.separate_routine() or mode.decode_mode().name != "FULL":
        return 0
    return getattr(compilation, "max_cudagraph_capture_size", None) or 0


def decodes(metadata: Any, context: Any, compilation: Any) -> bool:
    """Whether each request of a step has exactly one new token, and a graph for such steps has the
    step: the host waits longer for our launch than for vLLM's. `compilation` is the engine's config
    of graphs. It is asked last, not for prompts, whose kernels the host launches one by one."""
    if getattr(metadata, "max_query_len", None) != 1:
        return False
    if getattr(metadata, "causal", None) is not True:
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
    if requests > largest_decoding_graph(compilation):
        return False
    mode, graph = context.cudagraph_runtime_mode.name, context.batch_descriptor
    if mode == "FULL":
        return graph is not None and bool(graph.uniform)
    # vLLM's newer runner captures whole steps in this mode, and its older one warms them up in it.
    return bool(mode == "NONE")


def is_fresh(common: Any) -> bool:
    """Whether no request of a step has tokens from before it: its keys and values are all there,
    without the cache. No request of a decoder has fewer tokens than its new ones, so equal sums say
    it. Steps that vLLM makes up to capture a graph look so, too."""
    if common.max_query_len <= 1 or common.causal is not True:
        return False
    new, longest = common.query_start_loc_cpu, getattr(common, "seq_lens_cpu_upper_bound", None)
    if longest is None or longest.shape[0] < common.num_reqs:
        return False
    return int(longest[: common.num_reqs].sum()) == int(new[common.num_reqs])
