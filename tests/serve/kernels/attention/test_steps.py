"""What requests of a step do is read from vLLM's metadata, and doubts are a no."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from vllm.config import CUDAGraphMode

from serve.kernels.attention.steps import (
    decodes,
    is_fresh,
    largest_decoding_graph,
    metadata_of,
)
from tests.serve.kernels.attention.step import (
    common_of_step,
    context_of,
    graphs_up_to,
    metadata_of_step,
)

ONE_EACH = metadata_of_step([1, 1, 1], [5, 900, 0])
GRAPHS = graphs_up_to(64)


@pytest.mark.parametrize(
    ("mode", "uniform", "right"),
    [
        ("FULL", True, True),
        ("FULL", False, False),
        ("FULL", None, False),
        ("NONE", None, True),
        ("NONE", False, True),
        ("PIECEWISE", True, False),
    ],
)
def test_only_graphs_for_uniform_steps_decode(mode: str, uniform: bool | None, right: bool) -> None:
    assert decodes(ONE_EACH, context_of({}, mode=mode, uniform=uniform), GRAPHS) is right


@pytest.mark.parametrize(("largest", "right"), [(0, False), (2, False), (3, True)])
def test_only_steps_that_graphs_have_decode(largest: int, right: bool) -> None:
    graphs = graphs_up_to(largest)
    assert decodes(ONE_EACH, context_of({}), graphs) is right
    assert decodes(ONE_EACH, context_of({}, mode="NONE", uniform=None), graphs) is right


@pytest.mark.parametrize(
    ("mode", "largest"),
    [
        (CUDAGraphMode.FULL_AND_PIECEWISE, 512),
        (CUDAGraphMode.FULL_DECODE_ONLY, 512),
        (CUDAGraphMode.FULL, 0),
        (CUDAGraphMode.PIECEWISE, 0),
        (CUDAGraphMode.NONE, 0),
        (None, 0),
    ],
)
def test_graphs_of_prompts_and_decoding_alike_are_none_for_decoding(
    mode: Any, largest: int
) -> None:
    """vLLM may capture these with one token of each request, and replay them for prompts."""
    compilation = SimpleNamespace(cudagraph_mode=mode, max_cudagraph_capture_size=512)
    assert largest_decoding_graph(compilation) == largest
    assert largest_decoding_graph(None) == 0


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        metadata_of_step([1, 7], [5, 7]),
        metadata_of_step([1, 1], [5, 7], causal=False),
        metadata_of_step([1, 1], [5, 7], causal=torch.tensor([1, 1])),
        metadata_of_step([1, 1], [5, 7], use_cascade=True),
        metadata_of_step([1, 1], [5, 7], rswa_prefix_lens=torch.tensor([1, 1])),
        metadata_of_step([1, 1], [5, 7], num_actual_tokens=4),
        metadata_of_step([1, 1], [5, 7], query_start_loc=torch.tensor([0, 1])),
        SimpleNamespace(max_query_len=1),
    ],
    ids=[
        *("none", "prompt", "not causal", "some causal", "cascade", "window", "padded", "starts"),
        "another backend",
    ],
)
def test_other_steps_do_not_decode(metadata: Any) -> None:
    assert not decodes(metadata, context_of({}), GRAPHS)


@pytest.mark.parametrize(
    ("queries", "lengths", "right"),
    [
        ([16], [16], True),
        ([16, 3, 200], [16, 3, 200], True),
        ([16], [17], False),
        ([16, 1], [16, 900], False),
        ([1, 1], [1, 1], False),
    ],
)
def test_fresh_steps_have_no_older_tokens(
    queries: list[int], lengths: list[int], right: bool
) -> None:
    assert is_fresh(common_of_step(queries, lengths)) is right


def test_places_of_a_graph_without_a_request_do_not_hide_older_tokens() -> None:
    """Four places and three requests: as many tokens as the padded step, but four of them old."""
    padded = common_of_step([16, 3], [16, 7, 0, 0], num_actual_tokens=23)
    assert not is_fresh(padded)


@pytest.mark.parametrize(
    "changes",
    [
        {"causal": False},
        {"seq_lens_cpu_upper_bound": None},
        {"seq_lens_cpu_upper_bound": torch.tensor([16])},
    ],
)
def test_without_lengths_a_step_is_not_fresh(changes: dict[str, Any]) -> None:
    assert not is_fresh(common_of_step([16, 3], [16, 3], **changes))


def test_steps_that_are_cut_into_parts_have_no_metadata_of_ours() -> None:
    assert metadata_of(context_of([{"a": ONE_EACH}, {"a": ONE_EACH}]), "a") is None
    assert metadata_of(context_of({"a": ONE_EACH}), "a") is ONE_EACH
    assert metadata_of(context_of(None), "a") is None
