"""vLLM's parameters of a layer become a weight, whatever their layout."""

from typing import Any

import pytest
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32

from serve.kernels.linear.stored import fp8_weight, int8_weight, packed_weight
from serve.kernels.products.product import Unusable, Weight

ROWS, COLUMNS, GROUP = 24, 64, 16


def parameter(data: torch.Tensor, **attributes: int) -> Any:
    made = torch.nn.Parameter(data, requires_grad=False)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def codes(bits: int) -> torch.Tensor:
    half = 2 ** (bits - 1)
    generator = torch.Generator().manual_seed(bits)
    return torch.randint(-half, half, (ROWS, COLUMNS), generator=generator, dtype=torch.int8)


def dense(weight: Weight) -> torch.Tensor:
    """The weights by the definition of `Weight`."""
    shifts = torch.arange(0, 32, weight.bits, dtype=torch.int32)
    values = (weight.codes.unsqueeze(-1) >> shifts) & (2**weight.bits - 1)
    unsigned = values.reshape(weight.rows, -1)
    times = weight.columns // weight.scales.shape[1]
    offsets: torch.Tensor | int = 2 ** (weight.bits - 1)
    if weight.zeros is not None:
        offsets = weight.zeros.repeat_interleave(times, dim=1)
    return (unsigned - offsets) * weight.scales.float().repeat_interleave(times, dim=1)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [GROUP, None])
@pytest.mark.parametrize("is_symmetric", [True, False])
def test_packed_integers_of_compressed_tensors(
    bits: int, group: int | None, is_symmetric: bool
) -> None:
    stored, groups = codes(bits), COLUMNS // (group or COLUMNS)
    scales = torch.rand(ROWS, groups).to(torch.bfloat16)
    half = 2 ** (bits - 1)
    points = torch.randint(-half, half, (ROWS, groups), dtype=torch.int8)
    zeros = parameter(
        pack_to_int32(points, bits, packed_dim=0).contiguous(),
        input_dim=1, output_dim=0, packed_dim=0,
    )  # fmt: skip
    weight = packed_weight(
        parameter(pack_to_int32(stored, bits), input_dim=1, output_dim=0, packed_dim=1),
        parameter(scales, input_dim=1, output_dim=0),
        None if is_symmetric else zeros,
        bits,
        group,
    )
    assert (weight.rows, weight.columns) == (ROWS, COLUMNS)
    right = stored.float() - (
        0 if is_symmetric else points.float().repeat_interleave(COLUMNS // groups, dim=1)
    )
    right = right * scales.float().repeat_interleave(COLUMNS // groups, dim=1)
    assert torch.equal(dense(weight), right)


def test_packed_integers_of_gptq_are_turned() -> None:
    words, scales = pack_to_int32(codes(4), 4), torch.rand(ROWS, COLUMNS // GROUP)
    weight = packed_weight(
        parameter(words.t().contiguous(), input_dim=0, output_dim=1, packed_dim=0),
        parameter(scales.t().contiguous(), input_dim=0, output_dim=1),
        None,
        4,
        GROUP,
    )
    assert torch.equal(weight.codes, words)
    assert torch.equal(weight.scales, scales)


def test_what_is_packed_along_the_rows_is_refused() -> None:
    words = parameter(torch.zeros(COLUMNS, 3, dtype=torch.int32), input_dim=0, output_dim=1)
    words.packed_dim = 1
    with pytest.raises(Unusable, match="is packed along dimension 1"):
        packed_weight(words, parameter(torch.ones(4, 24), output_dim=1), None, 4, GROUP)


def test_groups_that_do_not_cover_the_columns_are_refused() -> None:
    words = parameter(pack_to_int32(codes(4), 4), input_dim=1, output_dim=0, packed_dim=1)
    with pytest.raises(Unusable, match="has 3 groups of 16 in 64 columns"):
        packed_weight(words, parameter(torch.ones(ROWS, 3), output_dim=0), None, 4, GROUP)


@pytest.mark.parametrize(
    ("scales", "expected"),
    [
        (torch.arange(24.0).reshape(24, 1), torch.arange(24.0)),
        (torch.tensor([2.0, 3.0]), torch.tensor([2.0] * 16 + [3.0] * 8)),
        (torch.tensor(5.0), torch.full((24,), 5.0)),
    ],
    ids=["channel", "merged parts", "tensor"],
)
def test_eight_bit_scales_become_one_for_each_row(
    scales: torch.Tensor, expected: torch.Tensor
) -> None:
    weight = int8_weight(codes(8), scales, [16, 8])
    assert torch.equal(weight.scales, expected.reshape(24, 1))
    turned = codes(8).float().to(torch.float8_e4m3fn).t()
    weight = fp8_weight(turned, scales, [16, 8])
    assert weight.codes.shape == (ROWS, COLUMNS)
    assert weight.codes.data_ptr() == turned.data_ptr(), "no copy"
    assert torch.equal(weight.scales, expected.reshape(24, 1))


def test_scales_that_fit_no_rows_are_refused() -> None:
    with pytest.raises(Unusable, match="has 5 scales for 24 rows"):
        int8_weight(codes(8), torch.ones(5), [24])
