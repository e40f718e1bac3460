"""Queries and keys are rotated once: in front of attention, or by it."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from serve.kernels.attention import deferring, rotate_op
from serve.kernels.attention.deferring import Modules, defers, is_left, leave
from serve.kernels.attention.steps import decodes
from tests.serve.kernels.attention.step import context_of, graphs_up_to, metadata_of_step

STEP = metadata_of_step([1, 1], [5, 7])


@pytest.fixture(autouse=True)
def _no_notes() -> Iterator[None]:
    deferring._NOTES.clear()
    yield
    deferring._NOTES.clear()


def layer(rotates: bool = True, has_plan: bool = True, runs: bool = True) -> torch.nn.Module:
    made = torch.nn.Module()
    made.impl = SimpleNamespace(
        modules=Modules(None) if rotates else None,
        plan=object() if has_plan else None,
        options=lambda *step: () if runs and decodes(*step, graphs_up_to(8)) else None,
    )
    return made


def context(first: torch.nn.Module, second: torch.nn.Module, **changes: Any) -> Any:
    return context_of({"a": STEP, "b": STEP}, {"a": first, "b": second}, **changes)


def test_a_step_that_decodes_leaves_it_to_attention() -> None:
    assert defers(context(layer(), layer()))
    assert defers(context(layer(), layer(), mode="NONE", uniform=None))


@pytest.mark.parametrize("second", [layer(rotates=False), layer(has_plan=False), torch.nn.Module()])
def test_all_layers_must_rotate(second: torch.nn.Module) -> None:
    assert not defers(context(layer(), second))


def test_a_step_that_vllms_attention_runs_is_rotated_before() -> None:
    assert not defers(context(layer(runs=False), layer(runs=False)))


def test_layers_with_other_caches_are_rotated_before() -> None:
    other = metadata_of_step([1, 1], [5, 7])
    made = context_of({"a": STEP, "b": other}, {"a": layer(), "b": layer()})
    assert not defers(made)


@pytest.mark.parametrize("every", [None, {}, [{"a": STEP}]])
def test_without_metadata_it_is_rotated_before(every: Any) -> None:
    assert not defers(context_of(every, {"a": layer()}))


def test_metadata_of_another_backend_is_no_error() -> None:
    other = SimpleNamespace(max_query_len=1)
    made = context_of({"a": other, "b": STEP}, {"a": torch.nn.Module(), "b": layer()})
    assert not defers(made)
    made = context_of({"a": SimpleNamespace(), "b": STEP}, {"a": layer(), "b": layer()})
    assert not defers(made)


def test_replayed_pieces_are_rotated_before() -> None:
    assert not defers(context(layer(), layer(), mode="PIECEWISE"))


def test_attention_finds_the_note_once() -> None:
    qkv = torch.zeros(2, 8)
    query = qkv[:, :4].view(2, 1, 4)
    assert not is_left(query)
    leave(qkv)
    assert is_left(query)
    assert not is_left(query)


def test_queries_that_were_moved_are_an_error_and_not_a_wrong_answer() -> None:
    qkv = torch.zeros(2, 8)
    leave(qkv)
    with pytest.raises(RuntimeError, match=r"not rotated; use engine\.kernels=vllm"):
        is_left(qkv.clone())


def test_the_op_rotates_or_leaves_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    rotate_op.register()
    rotated: list[int] = []
    monkeypatch.setattr(rotate_op, "rotate", lambda shape, qkv, *_: rotated.append(qkv.data_ptr()))
    monkeypatch.setattr("vllm.forward_context.is_forward_context_available", lambda: True)
    step = context(layer(), layer())
    monkeypatch.setattr("vllm.forward_context.get_forward_context", lambda: step)
    qkv, positions, table = torch.zeros(2, 12), torch.arange(2), torch.zeros(9, 4)

    def call() -> None:
        torch.ops.quantline.rotate(qkv, positions, table, None, None, 0.0, 1, 1)

    call()
    assert not rotated
    assert is_left(qkv)
    step.cudagraph_runtime_mode.name = "PIECEWISE"
    call()
    assert rotated == [qkv.data_ptr()]
    assert not is_left(qkv)
    qkv = torch.zeros(0, 12)
    call()
    assert len(rotated) == 1
