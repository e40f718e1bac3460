"""The kernel classes of FP8, weight-only and W4AFP8 layers load and multiply, on a CPU."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.kernels.linear import FP8ScaledMMLinearLayerConfig
from vllm.model_executor.layers.quantization.utils.quant_utils import (
    kFp8DynamicTensorSym,
    kFp8DynamicTokenSym,
    kFp8StaticChannelSym,
)
from vllm.scalar_type import scalar_types

from serve.kernels import record
from serve.kernels.linear import fp8, fp8_head, packed, planning, w4afp8, weight_only
from serve.kernels.plans.planner import Planner
from serve.kernels.plans.store import Identity, PlanStore
from serve.kernels.products.product import Inputs, Options, Product, Weight
from serve.kernels.record import LayerKernels, TokenRange
from tests.serve.kernels.linear.made import FewInPlain, OwnInRounded, timed
from tests.serve.kernels.products_for_tests import Plain

ROWS, COLUMNS, GROUP = 128, 256, 128
FP8 = torch.float8_e4m3fn


class OwnFp8(OwnInRounded):
    name = "cutlass_fp8"


class Packed(Product):
    """Unpacks, for any number of tokens."""

    name = "packed"

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [()]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        shifts = torch.arange(0, 32, weight.bits, dtype=torch.int32)
        values = (weight.codes.unsqueeze(-1) >> shifts) & (2**weight.bits - 1)
        wide = weight.columns // weight.scales.shape[1]
        offsets: Any = 2 ** (weight.bits - 1)
        if weight.zeros is not None:
            offsets = weight.zeros.repeat_interleave(wide, dim=1)
        scales = weight.scales.float().repeat_interleave(wide, dim=1)
        return [((values.reshape(weight.rows, -1) - offsets) * scales).to(torch.bfloat16)]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        x = inputs.plain
        if self.reads_rounded:
            assert inputs.rounded is not None
            assert inputs.scales is not None
            x = (inputs.rounded.float() * inputs.scales).to(inputs.plain.dtype)
        return x @ tensors[0].t()


class Few(Packed):
    name = "few"
    most = 16


class OwnMachete(Packed):
    name = "machete"


class OwnW4A8(Packed):
    name = "cutlass_w4a8"
    reads_rounded = True


class CutlassStandIn:
    loaded: Any = None

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def process_weights_after_loading(self, layer: Any) -> None:
        self.loaded = layer


class HummingStandIn(CutlassStandIn):
    """What vLLM takes for FP8 weights with 16-bit activations."""


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for module in (fp8, fp8_head, weight_only, w4afp8):
        for name in ("not_offered", "engine_refusal"):
            monkeypatch.setattr(module, name, lambda *_: None)
        monkeypatch.setattr(module, "asked_families", lambda: ("one_token",))
    for module in (fp8, fp8_head):
        monkeypatch.setattr(module, "capability_refusal", lambda *_: None)
    for module in (fp8, packed):
        monkeypatch.setattr(module, "vllms_choice", lambda *_: CutlassStandIn)
    monkeypatch.setattr(fp8_head, "vllms_choice", lambda *_: HummingStandIn)
    own = dict.fromkeys(("cutlass_fp8", "marlin_fp8", "machete", "cutlass_w4a8"), 9.0)
    times = own | {"few_plain": 5.0, "few": 5.0}
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    planner = Planner(lambda: PlanStore(Identity("GPU", "2", "3")), timed(times))
    monkeypatch.setattr(planning, "planner", lambda second_layout: planner)
    with set_current_vllm_config(VllmConfig()):
        yield


def off(result: torch.Tensor, right: torch.Tensor) -> float:
    return float((result.float() - right).norm() / right.norm())


def check(ours: Any, layer: Any, dense: torch.Tensor, rounding: float) -> None:
    """Few tokens are multiplied as they are, many rounded by as much."""
    ours.process_weights_after_loading(layer)
    assert ours.loaded is not None
    for tokens, most in ((2, 0.01), (40, rounding)):
        x = torch.randn(tokens, COLUMNS).to(torch.bfloat16)
        assert off(ours.apply_weights(layer, x), x.float() @ dense.t()) < most


NAMES = ("weight", "weight_scale", "input_scale", "input_scale_ub")
BF16 = torch.bfloat16


def fp8_layer() -> tuple[Any, torch.Tensor]:
    codes, scales = torch.randn(ROWS, COLUMNS).to(FP8), torch.rand(ROWS, 1) + 0.1
    layer: Any = torch.nn.Module()
    layer.weight = torch.nn.Parameter(codes.t(), requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(scales, requires_grad=False)
    layer.logical_widths = [96, 32]
    return layer, codes.float() * scales


def test_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "CutlassFp8", OwnFp8)
    monkeypatch.setattr(fp8, "products_of", lambda *_: [FewInPlain()])
    layer, dense = fp8_layer()
    config = FP8ScaledMMLinearLayerConfig(
        kFp8StaticChannelSym, kFp8DynamicTokenSym, (ROWS, COLUMNS), BF16, BF16
    )
    ours: Any = fp8.QuantlineFp8LinearKernel(config, NAMES)
    check(ours, layer, dense, rounding=0.05)
    assert ours.loaded.passes_rounded


class OwnMarlinFp8(Plain):
    name = "marlin_fp8"


def fp8_head_kernel() -> Any:
    config = FP8ScaledMMLinearLayerConfig(
        kFp8StaticChannelSym, kFp8DynamicTensorSym, (ROWS, COLUMNS), BF16, BF16
    )
    return fp8_head.QuantlineFp8HeadKernel(config, NAMES)


def test_an_fp8_head(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8_head, "MarlinFp8", OwnMarlinFp8)
    monkeypatch.setattr(fp8_head, "products_of", lambda *_: [FewInPlain()])
    layer, dense = fp8_layer()
    layer.org_vocab_size = ROWS
    ours = fp8_head_kernel()
    check(ours, layer, dense, rounding=0.01)
    assert ours.loaded.passes_plain
    assert not ours.loaded.passes_rounded


def test_other_layers_with_fp8_weights_alone_are_left_to_vllm(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    record.forget()
    caplog.set_level("INFO", logger="vllm.quantline")
    own = TokenRange(None, "Humming")
    monkeypatch.setattr(fp8_head, "run_by_vllm", lambda *_: (own,))
    layer, _ = fp8_layer()
    ours = fp8_head_kernel()
    ours.process_weights_after_loading(layer)
    assert ours.loaded is None
    assert ours.vllms.loaded is layer
    refused = {"all": "our kernel takes heads only"}
    assert record.read_log(caplog.text) == [LayerKernels("fp8a16", ROWS, COLUMNS, (own,), refused)]


def packed_layer(has_zeros: bool) -> tuple[Any, torch.Tensor]:
    layer: Any = torch.nn.Module()
    codes = torch.randint(-8, 8, (ROWS, COLUMNS), dtype=torch.int8)
    scales = (torch.rand(ROWS, COLUMNS // GROUP) * 0.1 + 0.01).to(torch.bfloat16)
    points = torch.randint(-8, 8, (ROWS, COLUMNS // GROUP), dtype=torch.int8)
    parts = {
        "weight_packed": (pack_to_int32(codes, 4), 1),
        "weight_scale": (scales, None),
        "weight_zero_point": (pack_to_int32(points, 4, packed_dim=0).contiguous(), 0),
    }
    for name, (data, packed_dim) in parts.items():
        parameter: Any = torch.nn.Parameter(data, requires_grad=False)
        parameter.input_dim, parameter.output_dim, parameter.packed_dim = 1, 0, packed_dim
        layer.register_parameter(name, parameter)
    offsets = points.float().repeat_interleave(GROUP, 1) if has_zeros else 0.0
    return layer, (codes.float() - offsets) * scales.float().repeat_interleave(GROUP, 1)


def packed_kernel(kind: Any, **fields: Any) -> Any:
    config = {
        "full_weight_shape": (COLUMNS, ROWS),
        "partition_weight_shape": (COLUMNS, ROWS),
        "group_size": GROUP,
        "out_type": torch.bfloat16,
    }
    names = ("weight_packed", "weight_scale", "weight_zero_point")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "can_implement", lambda *_: (True, None))
        return kind(SimpleNamespace(has_g_idx=False, **config | fields), *names)


@pytest.mark.parametrize("has_zeros", [False, True])
def test_weight_only(has_zeros: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_only, "Machete", OwnMachete)
    monkeypatch.setattr(weight_only, "Marlin", OwnMachete)
    monkeypatch.setattr(weight_only, "products_of", lambda *_: [Few()])
    layer, dense = packed_layer(has_zeros)
    ours = packed_kernel(
        weight_only.QuantlineWeightOnlyLinearKernel,
        weight_type=scalar_types.uint4 if has_zeros else scalar_types.uint4b8,
        act_type=torch.bfloat16,
        zero_points=has_zeros,
    )
    check(ours, layer, dense, rounding=0.01)
    assert not ours.loaded.passes_rounded
    assert layer.weight_packed.numel() == 0


def test_w4afp8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w4afp8, "CutlassW4A8", OwnW4A8)
    monkeypatch.setattr(w4afp8, "Marlin", Few)
    monkeypatch.setattr(w4afp8, "Machete", Few)
    monkeypatch.setattr(w4afp8, "products_of", lambda *_: [])
    layer, dense = packed_layer(False)
    ours = packed_kernel(
        w4afp8.QuantlineW4AFp8LinearKernel,
        weight_type=scalar_types.int4,
        act_type=FP8,
        zero_points=False,
    )
    check(ours, layer, dense, rounding=0.05)
    assert ours.loaded.passes_plain
    assert ours.loaded.passes_rounded
