"""A kernel of attention that is wrong in any way is refused before it is used."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from serve.kernels.attention import proof
from serve.kernels.attention.launch import NewTokens, Rope, decode_options
from serve.kernels.attention.proof import check, prepared
from serve.kernels.attention.shape import Cache, Shape
from serve.kernels.products.product import Options, Unusable
from tests.serve.kernels.attention.made import rope_of

SHAPE = Shape(4, 2, 64, torch.bfloat16)
CPU = torch.device("cpu")
Decode = Callable[..., None]


def right(
    shape: Shape,
    new: NewTokens,
    cache: Cache,
    out: torch.Tensor,
    scale: float,
    options: Options,
    rope: Rope | None = None,
) -> None:
    """As the kernel does it, in plain PyTorch."""
    positions = (new.lengths.long() - 1).clamp(min=0)
    queries = prepared(new.queries, positions, rope, is_key=False)
    keys = prepared(new.keys, positions, rope, is_key=True)
    for request, length in enumerate(new.lengths.tolist()):
        out[request] = 0
        if not length:
            continue
        slot = int(new.slots[request])
        cache.keys[slot // cache.page, slot % cache.page] = keys[request].to(shape.dtype)
        cache.values[slot // cache.page, slot % cache.page] = new.values[request]
        token = torch.arange(length)
        places = new.table[request, token // cache.page].long(), token % cache.page
        for head in range(shape.heads):
            of_head = cache.keys[places][:, head // shape.group].double()
            weights = (of_head @ queries[request, head] * scale).softmax(0)
            values = cache.values[places][:, head // shape.group].double()
            out[request, head] = (weights @ values).to(shape.dtype)


def with_another_scale(*arguments: Any) -> None:
    shape, new, cache, out, scale, *others = arguments
    right(shape, new, cache, out, scale * 1.2, *others)


def without_the_new_token(*arguments: Any) -> None:
    _, new, cache, *_ = arguments
    before = cache.keys.clone()
    right(*arguments)
    for slot in new.slots[new.slots >= 0].tolist():
        place = slot // cache.page, slot % cache.page
        cache.keys[place] = before[place]


def with_garbage_where_no_request_is(*arguments: Any) -> None:
    right(*arguments)
    arguments[3][arguments[1].lengths == 0] = 1.0


def with_another_head(*arguments: Any) -> None:
    right(*arguments)
    out = arguments[3]
    out[:, [0, 1]] = out[:, [1, 0]].clone()


def not_a_number(*arguments: Any) -> None:
    right(*arguments)
    arguments[3][3] = float("nan")


class WrongTheSecondTime:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, *arguments: Any) -> None:
        right(*arguments)
        self.calls += 1
        if self.calls == 2:
            arguments[3][1] *= 1.1


@pytest.mark.parametrize("kind", ["", "rope", "norm"])
def test_a_right_kernel_passes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "decode", right)
    check(SHAPE, decode_options(32, 4, 2, 3), CPU, rope_of(SHAPE, kind, positions=2048))


@pytest.mark.parametrize(
    "wrong",
    [
        *(with_another_scale, without_the_new_token, with_garbage_where_no_request_is),
        *(with_another_head, not_a_number, WrongTheSecondTime()),
    ],
)
def test_a_wrong_kernel_is_refused(wrong: Decode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "decode", wrong)
    with pytest.raises(Unusable, match=r"wrong by|loses the new token"):
        check(SHAPE, decode_options(32, 4, 2, 3), CPU)


def test_keys_that_are_not_rotated_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "decode", lambda *given: right(*given[:6]))
    with pytest.raises(Unusable):
        check(SHAPE, decode_options(32, 4, 2, 3), CPU, rope_of(SHAPE, "rope", positions=2048))
