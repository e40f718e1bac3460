"""Our class of attention runs steps that decode, reads whole prompts, and leaves the rest to
vLLM's. Only the kernels are stand-ins: vLLM's class is the installed one."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from vllm.config import CUDAGraphMode

from serve.kernels import record
from serve.kernels.attention import deferring, impl, steps
from serve.kernels.attention.conditions import refusal
from serve.kernels.attention.deferring import Modules
from serve.kernels.attention.impl import FlashAttentionImpl, QuantlineAttentionImpl
from serve.kernels.attention.planning import OURS, OWN
from serve.kernels.attention.shape import Shape
from serve.kernels.plans.plan import Plan, plan_of
from serve.kernels.products.product import Unusable
from serve.kernels.record import read_log
from tests.serve.kernels.attention.step import context_of, metadata_of_step

OPTIONS = (("SPLIT", 4),)
PLAN = plan_of({8: (OURS, OPTIONS), 9: (OWN, ())})
DECODING = metadata_of_step([1, 1, 1], [5, 7, 0])
PROMPTS = metadata_of_step([4, 2], [4, 2])
LAYER = SimpleNamespace(layer_name="a")
GRAPHS = SimpleNamespace(
    cudagraph_mode=CUDAGraphMode.FULL_AND_PIECEWISE, max_cudagraph_capture_size=512
)
CACHE = torch.zeros(6, 2, 16, 2, 64, dtype=torch.bfloat16)


class Calls(list[tuple[str, Any]]):
    """What was called, with its arguments."""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls()

    def noted(name: str) -> Any:
        return lambda *arguments, **named: found.append((name, named or arguments))

    for name in ("decode", "store"):
        monkeypatch.setattr(impl, name, noted(name))
    monkeypatch.setattr(FlashAttentionImpl, "forward", noted("vllm forward"))
    monkeypatch.setattr(FlashAttentionImpl, "do_kv_cache_update", noted("vllm store"))
    monkeypatch.setattr(impl.flash_attn, "flash_attn_varlen_func", noted("prompts"), raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    deferring._NOTES.clear()
    return found


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = context_of({"a": DECODING})
    monkeypatch.setattr(impl, "get_forward_context", lambda: made)
    monkeypatch.setattr(impl, "is_forward_context_available", lambda: True)
    return made


def attention(plan: Plan | None = PLAN, **changes: Any) -> QuantlineAttentionImpl:
    made = object.__new__(QuantlineAttentionImpl)
    known = {
        "shape": Shape(4, 2, 64, torch.bfloat16), "plan": plan, "scale": 0.125, "head_size": 64,
        "num_heads": 4, "num_kv_heads": 2, "vllm_flash_attn_version": 3, "attn_type": "decoder",
        "kv_cache_dtype": "auto", "sliding_window": (-1, -1), "alibi_slopes": None, "sinks": None,
        "logits_soft_cap": 0, "kv_sharing_target_layer_name": None, "dcp_world_size": 1,
        "batch_invariant_enabled": False, "compilation": GRAPHS,
    }  # fmt: skip
    for name, value in (known | changes).items():
        setattr(made, name, value)
    return made


def run(one: QuantlineAttentionImpl, metadata: Any, tokens: int, stores: bool = True) -> None:
    """One step of a layer, as vLLM calls it."""
    qkv = torch.zeros(tokens, 8 * 64, dtype=torch.bfloat16)
    q, k, v = (part.view(tokens, -1, 64) for part in qkv.split([256, 128, 128], dim=1))
    if stores:
        one.do_kv_cache_update(LAYER, k, v, CACHE, torch.arange(tokens))
    one.forward(LAYER, q, k, v, CACHE, metadata, torch.empty_like(q))


def test_a_step_that_decodes_runs_our_kernel_alone(calls: Calls, context: Any) -> None:
    run(attention(), DECODING, 4)  # one place more than requests
    assert calls.names == ["decode"]
    new, cache, out, scale, options, rope = calls[0][1][1:]
    assert (options, rope, scale) == (OPTIONS, None, 0.125)
    assert new.queries.shape == (3, 4, 64)
    assert new.slots.tolist() == [0, 1, 2, 3]
    assert new.lengths is DECODING.seq_lens
    assert cache.page == 16
    assert out.shape[0] == 4


def test_queries_that_were_left_are_rotated(calls: Calls, context: Any) -> None:
    made = attention()
    table = torch.zeros(9, 64)
    made.modules = Modules(SimpleNamespace(cos_sin_cache=table))
    run(made, DECODING, 3)
    qkv = torch.zeros(3, 8, 64, dtype=torch.bfloat16)
    deferring.leave(qkv)
    made.forward(LAYER, qkv[:, :4], qkv[:, 4:6], qkv[:, 6:], CACHE, DECODING, qkv)
    ropes = [arguments[-1] for _, arguments in calls]
    assert ropes[0] is None
    assert ropes[1].rotations is table


def test_without_places_nothing_is_kept(calls: Calls, context: Any) -> None:
    run(attention(), DECODING, 3, stores=False)
    assert calls[0][1][1].slots.tolist() == [-1, -1, -1]


def test_more_requests_than_the_plan_has_run_as_vllm_runs_them(calls: Calls, context: Any) -> None:
    many = metadata_of_step([1] * 9, [5] * 9)
    context.attn_metadata = {"a": many}
    run(attention(), many, 9)
    assert calls.names == ["vllm store", "vllm forward"]


def test_whole_prompts_are_read_without_the_cache(calls: Calls, context: Any) -> None:
    fresh = metadata_of_step([4, 2], [4, 2], **{steps.FRESH: True})
    context.attn_metadata = {"a": fresh}
    run(attention(), fresh, 6)
    assert calls.names == ["vllm store", "prompts"]
    given = calls[1][1]
    assert given["k"].shape == (6, 2, 64)
    assert given["cu_seqlens_k"] is given["cu_seqlens_q"] is fresh.query_start_loc
    assert given["causal"]
    assert "block_table" not in given


@pytest.mark.parametrize(
    ("metadata", "version"),
    [
        (PROMPTS, 3),
        (metadata_of_step([4, 2], [4, 9], **{steps.FRESH: False}), 3),
        (metadata_of_step([4, 2], [4, 2], **{steps.FRESH: True}), 2),
    ],
    ids=["not known", "older tokens", "another version"],
)
def test_other_prompts_run_as_vllm_runs_them(
    metadata: Any, version: int, calls: Calls, context: Any
) -> None:
    context.attn_metadata = {"a": metadata}
    run(attention(vllm_flash_attn_version=version), metadata, 6)
    assert calls.names == ["vllm store", "vllm forward"]


def test_a_step_that_is_captured_is_no_whole_prompt(
    calls: Calls, context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM captures steps of several tokens, of drafts and their verification, with requests that
    have no older tokens, and replays them for requests that do."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    made_up = metadata_of_step([4, 4], [4, 4], **{steps.FRESH: True})
    context.attn_metadata = {"a": made_up}
    run(attention(), made_up, 8)
    assert calls.names == ["vllm store", "vllm forward"]


def test_a_graph_that_is_replayed_for_prompts_does_not_hold_our_kernel(
    calls: Calls, context: Any
) -> None:
    graphs = SimpleNamespace(cudagraph_mode=CUDAGraphMode.FULL, max_cudagraph_capture_size=512)
    context.cudagraph_runtime_mode.name, context.batch_descriptor = "NONE", None
    run(attention(compilation=graphs), DECODING, 3)
    assert calls.names == ["vllm store", "vllm forward"]


def test_drafts_fill_their_cache_outside_of_a_step(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(impl, "is_forward_context_available", lambda: False)
    k = torch.zeros(3, 2, 64, dtype=torch.bfloat16)
    attention().do_kv_cache_update(LAYER, k, k, CACHE, torch.arange(3))
    assert calls.names == ["vllm store"]


def test_heads_that_are_not_side_by_side_are_copied(calls: Calls, context: Any) -> None:
    made = attention()
    wide = torch.arange(3 * 8 * 64).reshape(3, 64, 8).transpose(1, 2)
    made.do_kv_cache_update(LAYER, wide[:, :2], wide[:, :2], CACHE, torch.arange(3))
    made.forward(LAYER, wide[:, :4], wide[:, :2], wide[:, :2], CACHE, DECODING, wide)
    new = calls[0][1][1]
    assert new.queries.stride() == (4 * 64, 64, 1)
    assert torch.equal(new.keys, wide[:, :2])


def test_many_tokens_are_stored_by_ours(calls: Calls, context: Any) -> None:
    context.attn_metadata = {"a": PROMPTS}
    run(attention(), PROMPTS, impl.STORED_BY_OURS)
    assert calls.names == ["store", "vllm forward"]


def test_without_a_plan_all_is_vllms(calls: Calls, context: Any) -> None:
    run(attention(plan=None), DECODING, 3)
    context.attn_metadata = None  # vLLM measures its memory
    run(attention(), None, 3, stores=False)
    assert calls.names == ["vllm store", "vllm forward", "vllm forward"]


def test_a_note_that_vllms_attention_would_miss_is_an_error(calls: Calls, context: Any) -> None:
    context.cudagraph_runtime_mode.name = "PIECEWISE"
    qkv = torch.zeros(3, 512, dtype=torch.bfloat16)
    deferring.leave(qkv)
    with pytest.raises(RuntimeError, match="a step changed"):
        attention().forward(LAYER, qkv.view(3, 8, 64), qkv, qkv, CACHE, DECODING, qkv)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, ""),
        ({"attn_type": "encoder_only"}, "it is no decoder"),
        ({"kv_cache_dtype": "fp8"}, "its cache holds fp8"),
        ({"sliding_window": (127, 0)}, "it has a sliding window"),
        ({"alibi_slopes": torch.ones(1)}, "it has ALiBi"),
        ({"logits_soft_cap": 30.0}, "its scores are capped"),
        ({"sinks": torch.ones(1)}, "it has sinks"),
        ({"kv_sharing_target_layer_name": "b"}, "it reads another layer's cache"),
        ({"dcp_world_size": 2}, "its context is spread over GPUs"),
        ({"batch_invariant_enabled": True}, "results must not depend on the batch"),
    ],
)
def test_layers_that_our_kernel_cannot_run_are_refused(
    changes: dict[str, Any], reason: str
) -> None:
    made = attention(**changes)
    assert refusal(made, made.shape) == reason


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (Shape(4, 2, 96, torch.bfloat16), "heads have 96 numbers, not one of 64, 128, 256"),
        (Shape(32, 1, 64, torch.bfloat16), "32 heads of queries and 1 of keys do not fit"),
        (Shape(4, 2, 64, torch.float32), "numbers are torch.float32, not bfloat16 or float16"),
    ],
)
def test_heads_that_do_not_fit_are_refused(shape: Shape, reason: str) -> None:
    assert refusal(attention(), shape) == reason


@pytest.fixture
def _unplanned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impl, "_PLANS", {})
    monkeypatch.setattr(impl, "identity_here", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    record.forget()


@pytest.mark.usefixtures("_unplanned")
def test_a_layer_is_planned_once_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measured = []

    def planned(*arguments: Any) -> Plan:
        measured.append(arguments)
        return PLAN

    monkeypatch.setattr(impl, "planned", planned)
    with caplog.at_level("INFO", "vllm.quantline"):
        for _ in range(2):
            made = attention(plan=None)
            made.process_weights_after_loading(torch.bfloat16)
            assert made.plan is PLAN
    assert len(measured) == 1
    (layer,) = read_log(caplog.text)
    assert (layer.kind, layer.rows, layer.columns) == ("attention", 256, 128)
    assert [(part.up_to, part.product) for part in layer.ranges] == [(8, OURS), (None, OWN)]


@pytest.mark.parametrize(
    "error", [Unusable("vLLM's own attention is the fastest"), OSError("gone")]
)
@pytest.mark.usefixtures("_unplanned")
def test_a_layer_without_a_plan_stays_with_vllm_and_says_why(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def planned(*_: Any) -> Plan:
        raise error

    monkeypatch.setattr(impl, "planned", planned)
    made = attention(plan=None)
    with caplog.at_level("INFO", "vllm.quantline"):
        made.process_weights_after_loading(torch.bfloat16)
    assert made.plan is None
    (layer,) = read_log(caplog.text)
    assert layer.is_left
    assert str(error) in caplog.text
