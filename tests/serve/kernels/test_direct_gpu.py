"""Compiled layers of prompts on a GPU: the product in the graph has the numbers of our op."""

from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from serve.kernels.products.cublas import CublasFp8
from serve.kernels.products.from_vllm.packed import CutlassW4A8, Machete, Marlin
from serve.kernels.products.from_vllm.scaled import FP8, CutlassFp8, CutlassInt8
from serve.kernels.products.launch import options_of
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight
from serve.kernels.products.unpack import Unpack, UnpackFp8
from tests.serve.kernels.directly import given_of, inlining, layer_of
from tests.serve.kernels.products.made_up import codes_of, on_gpu, packed_weight, weight_of

pytestmark = pytest.mark.gpu
ROWS, COLUMNS = 4096, 1024
OP = "quantline::linear"
INT4, W4A8 = "int4", "w4a8"
CHUNKS, WHOLE = options_of(ROWS=1024), options_of(ROWS=0)
CASES: list[tuple[str, Product, Options]] = [
    ("fp8", CutlassFp8(), ()),
    ("fp8", CublasFp8(), ()),
    ("int8", CutlassInt8(), ()),
    (INT4, Marlin(), ()),
    (INT4, Machete(), ()),
    (INT4, Unpack(), CHUNKS),
    (INT4, Unpack(), WHOLE),
    (W4A8, CutlassW4A8(), ()),
    (W4A8, UnpackFp8(), CHUNKS),
    (W4A8, UnpackFp8(), WHOLE),
]


def weight_as(stored: str) -> Weight:
    if stored in (INT4, W4A8):
        weight, _ = packed_weight(ROWS, COLUMNS, 4, 128, has_zeros=False)
        weight = replace(weight, scales=weight.scales.to(torch.bfloat16))
    else:
        weight = weight_of(torch.int8 if stored == "int8" else FP8, ROWS, COLUMNS)
    return on_gpu(weight)


def inputs_as(stored: str, tokens: int) -> Inputs:
    """Activations as a compiled graph of prompts has them: plain or rounded ones."""
    if stored == INT4:
        return Inputs(torch.randn(tokens, COLUMNS, device="cuda").to(torch.bfloat16))
    plain = torch.empty((tokens, 0), dtype=torch.bfloat16, device="cuda")
    rounded = codes_of(torch.int8 if stored == "int8" else FP8, tokens, COLUMNS).cuda()
    return Inputs(plain, rounded, torch.rand(tokens, 1, device="cuda") + 0.01)


@pytest.mark.parametrize(
    ("stored", "product", "options"),
    CASES,
    ids=lambda value: value.name if isinstance(value, Product) else str(value),
)
def test_a_compiled_layer_has_the_same_numbers_without_our_op(
    stored: str, product: Product, options: Options
) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    try:
        tensors = product.prepare(weight_as(stored))
    except Unusable as reason:
        pytest.skip(str(reason))
    layer = layer_of(product, ROWS, len(tensors), options)
    with_op = torch.compile(lambda *given: layer(*given), fullgraph=True)
    directly = torch.compile(lambda *given: layer(*given), fullgraph=True)
    for tokens in (2048, 8192):
        given = given_of(inputs_as(stored, tokens), tensors)
        expected = with_op(*given)
        with inlining() as inlined:
            found = directly(*given)
        assert inlined.inlined == (tokens == 2048), "one graph for both numbers of tokens"
        assert torch.equal(found, expected)
    assert OP in ops_of(with_op, given)
    assert OP not in ops_of(directly, given)


def ops_of(compiled: object, given: list[torch.Tensor]) -> set[str]:
    """The ops of a call, as PyTorch's profiler names them."""
    assert callable(compiled)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        compiled(*given)
    return {event.key for event in profiled.key_averages()}
