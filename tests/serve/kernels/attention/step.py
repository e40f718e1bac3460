"""Steps of an engine as vLLM describes them to attention, made up."""

from types import SimpleNamespace
from typing import Any

import torch


def metadata_of_step(queries: list[int], lengths: list[int], **changes: Any) -> SimpleNamespace:
    """`queries` are the new tokens of each request, `lengths` all of them."""
    values = {
        "num_actual_tokens": sum(queries),
        "max_query_len": max(queries),
        "query_start_loc": torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()]),
        "max_seq_len": max(lengths),
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
        "block_table": torch.zeros((len(queries), 4), dtype=torch.int32),
        "causal": True,
    }
    return SimpleNamespace(**(values | changes))


def common_of_step(queries: list[int], lengths: list[int], **changes: Any) -> SimpleNamespace:
    """What vLLM builds such metadata from."""
    starts = torch.tensor([0, *torch.tensor(queries).cumsum(0).tolist()])
    values = {
        "num_reqs": len(queries),
        "max_query_len": max(queries),
        "query_start_loc_cpu": starts,
        "seq_lens_cpu_upper_bound": torch.tensor(lengths),
        "causal": True,
    }
    return SimpleNamespace(**(values | changes))


def graphs_up_to(requests: int) -> SimpleNamespace:
    """An engine's config of graphs, whose largest one has so many requests."""
    full = SimpleNamespace(name="FULL")
    mode = SimpleNamespace(separate_routine=lambda: True, decode_mode=lambda: full)
    return SimpleNamespace(cudagraph_mode=mode, max_cudagraph_capture_size=requests)


def context_of(
    every: Any, layers: Any = None, mode: str = "FULL", uniform: bool | None = True
) -> SimpleNamespace:
    """`uniform` is what the graph says; None for no graph."""
    graph = None if uniform is None else SimpleNamespace(uniform=uniform)
    return SimpleNamespace(
        attn_metadata=every,
        no_compile_layers=layers or {},
        cudagraph_runtime_mode=SimpleNamespace(name=mode),
        batch_descriptor=graph,
    )
