"""Products that compiled graphs call without our op, on a CPU with stand-ins for vLLM's ops."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from torch._inductor.utils import run_and_get_code
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from vllm.compilation.passes.inductor_pass import pass_context
from vllm.config.utils import Range

from serve.kernels import direct, op
from serve.kernels.linear.ranges import InputsPass
from serve.kernels.products.cublas import CublasFp8
from serve.kernels.products.from_vllm import packed
from serve.kernels.products.from_vllm.scaled import CutlassInt8, CutlassScaled
from serve.kernels.products.product import Inputs, Options
from tests.serve.kernels.directly import Layer, given_of, inlining, layer_of
from tests.serve.kernels.stand_ins import ROWS, Case, cases, ops_on_cpu

CAPTURED = 16
CASES = cases()
# CutlassW4A8 is in no plan with a product that leaves scales to the caller.
LEAVING = [case for case in CASES if isinstance(case.product, CutlassScaled | CublasFp8)]


@pytest.fixture(autouse=True)
def _ops(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(op, "_TABLE", {})
    packed.known_schedules.cache_clear()  # an engine with a stored plan has not asked for them
    with ops_on_cpu():
        yield
    packed.known_schedules.cache_clear()


def layer_with(case: Case, *ends: int) -> Layer:
    return layer_of(case.product, ROWS, len(case.tensors), case.options, ends)


def compiled(
    case: Case, layer: Layer, start: int = 17, end: int = 256, device: str = "cpu"
) -> torch.fx.GraphModule:
    """The graph for a range of tokens after our pass, traced as vLLM does: tokens alone vary."""
    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes)
    tokens = mode.from_tensor(torch.empty(8)).shape[0]
    activations = given_of(case.inputs(8), [])
    with mode:
        sizes = [(tokens, *one.shape[1:]) for one in activations] + [
            one.shape for one in case.tensors
        ]
        fakes = [
            torch.empty(size, dtype=one.dtype, device=device)
            for size, one in zip(sizes, [*activations, *case.tensors], strict=True)
        ]
        module = make_fx(layer)(*fakes)
    with pass_context(Range(start, end)):
        InputsPass(CAPTURED)(module.graph)
    assert not shapes.guards, "no number of tokens is special"
    module.graph.lint()
    module.recompile()
    return module


def is_inlined(module: torch.fx.GraphModule) -> bool:
    target = torch.ops.quantline.linear.default
    return not module.graph.find_nodes(op="call_function", target=target)


@pytest.mark.parametrize(
    ("case", "after"),
    [*((case, False) for case in CASES), *((case, True) for case in LEAVING)],
    ids=lambda value: value.product.name if isinstance(value, Case) else f"after={value}",
)
def test_a_graph_calls_the_product_and_gives_its_numbers(case: Case, after: bool) -> None:
    layer = partial(layer_with(case, CAPTURED), after=after)
    module = compiled(case, layer)
    assert is_inlined(module)
    for tokens in (17, 40):
        given = given_of(case.inputs(tokens), case.tensors)
        assert torch.equal(module(*given), layer(*given))


def test_pytorchs_checks_of_a_gpu_hold_for_any_number_of_tokens() -> None:
    (case,) = (case for case in CASES if isinstance(case.product, CublasFp8))
    assert is_inlined(compiled(case, layer_with(case), device="cuda"))


@pytest.mark.parametrize(
    ("start", "end", "ends"),
    [(1, 16, ()), (9, 256, ()), (17, 256, (64,)), (17, 256, (255,))],
    ids=["captured", "partly captured", "two steps", "two steps at the end"],
)
def test_other_graphs_keep_the_op(start: int, end: int, ends: tuple[int, ...]) -> None:
    assert not is_inlined(compiled(CASES[0], layer_with(CASES[0], *ends), start, end))


def test_a_range_may_end_with_its_step() -> None:
    assert is_inlined(compiled(CASES[0], layer_with(CASES[0], 16, 64), 17, 64))


class Untraceable(CutlassInt8):
    traceable = False


class Failing(CutlassInt8):
    def direct(self, inputs: Inputs, tensors: list[torch.Tensor], options: Options) -> Any:
        raise NotImplementedError("has no such op")


class WithConstant(CutlassInt8):
    def direct(self, inputs: Inputs, tensors: list[torch.Tensor], options: Options) -> torch.Tensor:
        return super().direct(inputs, tensors, options) * torch.tensor([2.0])


class Turned(CutlassInt8):
    def direct(self, inputs: Inputs, tensors: list[torch.Tensor], options: Options) -> torch.Tensor:
        return super().direct(inputs, tensors, options).t().contiguous().t()


@pytest.mark.parametrize(
    ("product", "said"),
    [
        (Untraceable(), ""),
        (Failing(), "has no such op"),
        (WithConstant(), "gives (torch.float32"),
        (Turned(), "(128, 1)) (type, shape, strides)"),
    ],
    ids=["untraceable", "failing", "another type", "other strides"],
)
def test_what_cannot_be_called_directly_stays(
    product: CutlassInt8, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    direct._warn_once.cache_clear()
    case = Case(product, CASES[0].tensors)
    for _ in range(2):  # a model has many layers of a kind
        assert not is_inlined(compiled(case, layer_with(case)))
    warnings = [record for record in caplog.records if record.name == "vllm.quantline"]
    assert len(warnings) == int(bool(said))
    assert said in caplog.text


def test_a_graph_that_does_not_fit_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    direct._warn_once.cache_clear()
    monkeypatch.setattr(direct, "_traced", lambda *_: torch.fx.symbolic_trace(lambda x: x + 1))
    assert not is_inlined(compiled(CASES[0], layer_with(CASES[0])))
    assert "cutlass_int8 is not called directly" in caplog.text


def test_inductors_code_has_one_call_and_copies_nothing() -> None:
    case = CASES[0]
    layer, given = layer_with(case), given_of(case.inputs(40), case.tensors)
    with inlining() as inlined:
        result, (code,) = run_and_get_code(torch.compile(layer, fullgraph=True), *given)
    assert inlined.inlined == 1
    assert torch.equal(result, layer(*given))
    assert code.count("_C.cutlass_scaled_mm.default(") == 1
    assert "quantline" not in code
    assert "copy" not in code[code.index("def call") :]
