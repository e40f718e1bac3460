"""Products of a block are compared with exact ones, measured, stored; what fails is left out."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from conf.formats.quant_args import Codebooks
from serve.kernels.plans.plan import Plan
from serve.kernels.plans.store import Identity, PlanStore
from serve.kernels.products.product import Inputs, Options, Unusable
from serve.kernels.products.short_vectors.unpack import ShortUnpack
from serve.kernels.products.vptq_layout import VectorWeight
from serve.kernels.products.vptq_unpack import VptqUnpack
from serve.kernels.vptq import plans
from serve.kernels.vptq.blocks import Block, blocks_of
from serve.kernels.vptq.product import prepared_layer, with_joined
from tests.serve.kernels.linear.made import timed
from tests.serve.kernels.vptq.made import BOOKS, PLAIN, activations, error, stored_layer

COLUMNS, ROWS = 256, 64
SHORT = Codebooks(4, 64)
TIMES = {"vptq_few_tokens": 1.0, "vptq_chunks": 2.0, "vptq_unpack_kernel": 3.0, "vptq_unpack": 9.0}


class Few(VptqUnpack):
    """In place of our kernel, which needs a GPU; each of these reads the same tensors."""

    name, most = "vptq_few_tokens", 16


class Chunks(VptqUnpack):
    name, fewest, most = "vptq_chunks", 17, 128


class Unpacked(VptqUnpack):
    name, fewest = "vptq_unpack_kernel", 17


class WrongFew(Few):
    def write(
        self, x: torch.Tensor, tensors: list[torch.Tensor], options: Options, out: torch.Tensor
    ) -> None:
        super().write(x * 1.1, tensors, options, out)


class BrokenChunks(Chunks):
    def write(
        self, x: torch.Tensor, tensors: list[torch.Tensor], options: Options, out: torch.Tensor
    ) -> None:
        raise RuntimeError("cuLaunchKernel failed with error 1")


def weight_of() -> VectorWeight:
    (block,) = blocks_of(stored_layer(PLAIN, ROWS, COLUMNS), 0, COLUMNS)
    return block.weight


Make = Callable[..., tuple[Plan, dict[str, str]]]


@pytest.fixture
def new_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Plans a block with products and a clock for tests."""
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    monkeypatch.setattr(plans, "identity_here", lambda: Identity("GPU", "2", "3"))

    def make(
        few: VptqUnpack, chunks: VptqUnpack, unpacked: VptqUnpack, clock: Any = None
    ) -> tuple[Plan, dict[str, str]]:
        family = plans.Family(few, chunks, unpacked, VptqUnpack())
        products = {product.name: product for product in (*family.ours, family.in_torch)}
        monkeypatch.setattr(plans, "PRODUCTS", products)
        monkeypatch.setattr(plans, "time_in_engine", clock or timed(TIMES))
        weight = weight_of()
        return plans._new_plan("key", weight, VptqUnpack().prepare(weight), family)

    return make


def ranges(plan: Plan) -> list[tuple[int | None, str]]:
    return [(part.up_to, part.product) for part in plan.ranges]


def test_the_fastest_product_runs_each_number_of_tokens(new_plan: Make) -> None:
    plan, refused = new_plan(Few(), Chunks(), Unpacked())
    assert refused == {}
    assert ranges(plan) == [
        *((16, "vptq_few_tokens"), (128, "vptq_chunks"), (None, "vptq_unpack_kernel")),
    ]


def test_products_that_are_wrong_or_fail_are_left_out(
    new_plan: Make, caplog: pytest.LogCaptureFixture
) -> None:
    plan, refused = new_plan(WrongFew(), BrokenChunks(), Unpacked())
    assert "wrong by 0.1 for 1 tokens" in refused["vptq_few_tokens"]
    assert "cuLaunchKernel failed" in refused["vptq_chunks"]
    assert ranges(plan) == [(16, "vptq_unpack"), (None, "vptq_unpack_kernel")]
    assert "not vptq_chunks: cuLaunchKernel failed" in caplog.text


def test_pytorch_is_not_measured_where_a_kernel_takes_any_number_of_tokens(new_plan: Make) -> None:
    class AnyUnpacked(Unpacked):
        fewest = 1

    plan, _ = new_plan(Few(), Chunks(), AnyUnpacked())
    assert {timing.product for timing in plan.timings} == {
        *("vptq_few_tokens", "vptq_chunks", "vptq_unpack_kernel"),
    }
    assert ranges(plan)[0] == (16, "vptq_few_tokens")


def test_a_plan_is_measured_once(new_plan: Make) -> None:
    def fail(calls: Sequence[Any]) -> float:
        pytest.fail("it is measured again")

    first, _ = new_plan(Few(), Chunks(), Unpacked())
    again, _ = new_plan(Few(), Chunks(), Unpacked(), clock=fail)
    assert again == first


def test_what_ended_an_engine_is_not_tried_again(
    new_plan: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PlanStore(Identity("GPU", "2", "3"))
    monkeypatch.setattr(type(store.trials), "blamed", lambda *_: {"vptq_few_tokens": "it ended"})
    plan, refused = new_plan(Few(), Chunks(), Unpacked())
    assert refused == {"vptq_few_tokens": "it ended"}
    assert "vptq_few_tokens" not in plan.products


def test_without_measuring_the_best_guesses_run(
    new_plan: Make, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(calls: Sequence[Any]) -> float:
        raise RuntimeError("no clock")

    plan, _ = new_plan(Few(), BrokenChunks(), Unpacked(), clock=fail)
    assert "could not be measured" in caplog.text
    assert ranges(plan) == [
        *((16, "vptq_few_tokens"), (64, "vptq_unpack"), (None, "vptq_unpack_kernel")),
    ]


def short_weights() -> list[VectorWeight]:
    layers = [stored_layer(SHORT, rows, COLUMNS, seed) for seed, rows in enumerate((64, 32, 48))]
    return [blocks_of(layer, 0, COLUMNS)[0].weight for layer in layers]


def test_layers_of_short_vectors_are_joined() -> None:
    weight = plans.joined(short_weights())
    assert weight is not None
    assert plans.key_of(weight) == "vptq/64+32+48x256/v4/64+0/scales/bfloat16"
    product = ShortUnpack()
    plans.prove(product, weight, product.prepare(weight))
    first, *others = short_weights()
    swapped = plans.joined([first, *reversed(others)])
    assert swapped is not None
    with pytest.raises(Unusable, match="wrong by"):
        plans.prove(product, weight, product.prepare(swapped))


def test_other_layers_are_not_joined() -> None:
    assert plans.joined([weight_of(), weight_of()]) is None
    assert plans.joined(short_weights() * 2) is None
    other = stored_layer(Codebooks(4, 128), 64, COLUMNS)
    weights = [short_weights()[0], blocks_of(other, 0, COLUMNS)[0].weight]
    assert plans.joined(weights) is None


def test_a_joined_layer_is_one_block_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [(weight.rows, [Block(weight)]) for weight in short_weights()]
    assert with_joined(parts) is parts, "the CPU has no use for it"
    monkeypatch.setattr("serve.kernels.vptq.product.on_gpu", lambda weight: True)
    ((rows, (block,)),) = with_joined(parts)
    assert rows == block.weight.outputs == 144
    assert with_joined([(63, parts[0][1]), *parts[1:]])[1:] == parts[1:], "a vector is cut"


@pytest.mark.gpu
@pytest.mark.parametrize("books", [*BOOKS, Codebooks(4, 4096)], ids=str)
def test_layers_on_a_gpu(books: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All products, parts that are merged, and CUDA graphs, as in vLLM."""
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    plans._plans().clear()
    layers = []
    for rows, seed in ((512, 0), (256, 1)):
        layer = stored_layer(books, rows, 1024, seed)
        tensors = {name: tensor.cuda() for name, tensor in layer.tensors.items()}
        layers.append(type(layer)(books, rows, 1024, tensors))
    prepared = prepared_layer([(layer.rows, blocks_of(layer, 0, 1024)) for layer in layers])
    assert prepared.refused == {}
    for tokens in (1, 2, 8, 16, 17, 40, 64, 100, 128, 129, 300, 1024):
        x = activations(tokens, 1024).cuda()
        right = torch.cat([x.double() @ one.dequantize().double().t() for one in layers], dim=1)
        multiply = partial(prepared.planned.multiply, Inputs(x), prepared.tensors)
        assert error(multiply(), right) < 0.01, tokens
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = multiply()
        graph.replay()
        assert error(captured, right) < 0.01, tokens
