"""vLLM's products as far as they run without a GPU: what they refuse, options, scales."""

from dataclasses import replace

import pytest
import torch

from serve.kernels.products.from_vllm import packed
from serve.kernels.products.from_vllm.marlin_fp8 import MarlinFp8
from serve.kernels.products.from_vllm.packed import (
    W4A8_SCHEDULES,
    CutlassW4A8,
    Machete,
    Marlin,
    rounded_group_scales,
)
from serve.kernels.products.from_vllm.scaled import CutlassFp8, CutlassInt8
from serve.kernels.products.product import Inputs, Product, Unusable, Weight

PACKED = Weight(
    codes=torch.zeros(128, 32, dtype=torch.int32),
    scales=torch.ones(128, 2, dtype=torch.bfloat16),
    bits=4,
    columns=256,
    group_size=128,
)
ZEROS = torch.zeros(128, 2, dtype=torch.int32)
HEAD = Weight(torch.zeros(128, 192).to(torch.float8_e4m3fn), torch.ones(128, 1), 8, 192)
INT8 = Weight(torch.zeros(32, 64, dtype=torch.int8), torch.ones(32, 1), 8, 64)


@pytest.mark.parametrize(
    ("product", "weight", "reason"),
    [
        (Marlin(), INT8, "takes packed weights of 4 or 8 bits"),
        (Marlin(), replace(PACKED, group_size=16), "takes no groups of 16"),
        (Marlin(), replace(PACKED, bits=8, columns=128, zeros=ZEROS), "of 4-bit weights only"),
        (Marlin(), replace(PACKED, columns=250), "128 x 250 is no multiple of"),
        (Marlin(), replace(PACKED, scales=PACKED.scales.float()), "no scales of torch.float32"),
        (MarlinFp8(), INT8, "weights are torch.int8, not torch.float8_e4m3fn"),
        (MarlinFp8(), replace(HEAD, columns=200), "200 columns are no multiple of 64"),
        (MarlinFp8(), replace(HEAD, codes=HEAD.codes[:96]), "96 x 192 is no multiple of 64 x 128"),
        (Machete(), replace(PACKED, group_size=32), "takes no groups of 32"),
        (Machete(), PACKED, "runs on Hopper only"),
        (CutlassW4A8(), replace(PACKED, group_size=64), "takes no groups of 64"),
        (CutlassW4A8(), replace(PACKED, zeros=ZEROS), "takes symmetric 4-bit weights only"),
        (CutlassW4A8(), replace(PACKED, scales=PACKED.scales.half()), "gives bfloat16 only"),
        (CutlassW4A8(), PACKED, "runs on Hopper only"),
        (CutlassInt8(), PACKED, "weights are torch.int32, not torch.int8"),
        (CutlassFp8(), INT8, "weights are torch.int8, not torch.float8_e4m3fn"),
        (CutlassInt8(), replace(INT8, group_size=16), "one scale for each row"),
        (CutlassInt8(), replace(INT8, columns=60), "32 x 60 is no multiple of 16"),
    ],
)
def test_what_a_product_cannot_run_is_said(product: Product, weight: Weight, reason: str) -> None:
    with pytest.raises(Unusable, match=reason):
        product.prepare(weight)


def test_eight_bit_weights_are_read_as_they_are_stored() -> None:
    codes, scales, _ = CutlassInt8().prepare(replace(INT8, scales=torch.tensor(0.5)))
    assert codes.data_ptr() == INT8.codes.data_ptr()
    assert scales.shape == (32, 1)
    assert scales.unique().tolist() == [0.5]


@pytest.mark.parametrize(
    ("tokens", "widths"),
    [(1, {16}), (16, {16, 32}), (64, {16, 32, 64, 128}), (8192, {64, 128, 256})],
)
def test_schedules_suit_the_number_of_tokens(
    tokens: int, widths: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = CutlassW4A8().options(4096, 4096, tokens)
    assert first == (), "vLLM's own choice is the best guess"
    names = [W4A8_SCHEDULES[dict(options)["schedule"]] for options in others]
    assert {int(name.split("_")[0].split("x")[1]) for name in names} == widths
    schedules = ("128x16_1x1x1_TmaMI__TmaCoop_streamK", "256x64_2x1x1_TmaMI__TmaCoop_streamK")
    monkeypatch.setattr(packed, "machete_schedules", lambda: schedules)
    kept = {schedules[dict(options)["schedule"]] for options in Machete().options(1, 1, tokens)[1:]}
    assert kept == {name for name in schedules if int(name.split("_")[0].split("x")[1]) in widths}


def test_group_scales_in_fp8_are_close_and_leave_room_for_the_weights() -> None:
    scales = torch.rand(64, 32, generator=torch.Generator().manual_seed(0)) * 0.01 + 0.0005
    groups, rows = rounded_group_scales(scales.to(torch.bfloat16))
    assert groups.dtype == torch.float8_e4m3fn
    assert groups.float().max() * 8 <= 448
    exact = scales.to(torch.bfloat16).float()
    assert ((groups.float() * rows - exact).abs() <= exact * 0.0626).all()


@pytest.mark.parametrize("zeros", [torch.empty(0, dtype=torch.int32), torch.zeros(2, 16).int()])
def test_marlin_is_told_that_weights_have_no_order_of_their_own(
    zeros: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the length of the last dimension."""
    given: dict[str, torch.Tensor] = {}

    def linear(
        input: torch.Tensor, g_idx: torch.Tensor, g_idx_sort_indices: torch.Tensor
    ) -> torch.Tensor:
        given.update(g_idx=g_idx, g_idx_sort_indices=g_idx_sort_indices)
        return input

    monkeypatch.setattr(packed, "_marlin_linear", lambda: linear)
    words, scales = torch.zeros(16, 256, dtype=torch.int32), torch.ones(2, 128)
    tensors = [words, scales, zeros, torch.zeros(1)]
    Marlin().multiply(Inputs(torch.zeros(1, 256)), tensors, ())
    assert {name: tensor.shape[-1] for name, tensor in given.items()} == dict.fromkeys(given, 0)
    assert len(given) == 2
