"""vLLM's products of packed integer weights: Marlin, Machete and CUTLASS W4A8.

Each has a layout of its own. `prepare` makes it with vLLM's functions, as the kernel class of vLLM
does, from the weight as it is stored; what differs between 0.25.1 and 0.32 is looked up by name.
"""

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from serve.kernels.products.from_vllm.scaled import FP8, rounded_of
from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight

WORD = 32  # bits
CHANNEL = -1  # vLLM's group size for a scale for each channel
MARLIN_GROUPS = (None, 32, 64, 128)
MACHETE_GROUPS = (None, 64, 128)
W4A8_GROUP = 128
# In vLLM's binary since 0.25; it has no function that lists them. Rows x tokens of a tile.
W4A8_SCHEDULES = (
    "128x16_1x1x1", "128x32_1x1x1", "128x64_1x1x1", "128x128_1x1x1", "128x256_1x1x1",
    "128x256_2x1x1", "256x16_1x1x1", "256x32_1x1x1", "256x64_1x1x1", "256x128_1x1x1",
)  # fmt: skip
SCHEDULE = "schedule"
LARGEST, EIGHT = 448.0, 8.0
SMALLEST = 1.0 / (LARGEST * 512.0)


class Marlin(Product):
    """16-bit activations; the fastest for few tokens."""

    name = "marlin"
    traceable = True

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [()]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        from vllm.model_executor.layers.quantization.utils import marlin_utils

        _check_packed(weight, MARLIN_GROUPS)
        if weight.zeros is not None and weight.bits != 4:
            raise Unusable("takes zero points of 4-bit weights only")
        rows, columns = weight.rows, weight.columns
        check_marlin_shape(weight)
        device, group = weight.codes.device, weight.group_size or CHANNEL
        empty = torch.empty(0, dtype=torch.int32, device=device)
        words = marlin_words(weight.codes, columns, weight.bits)
        scales = marlin_utils.marlin_permute_scales(
            weight.scales.t().contiguous(), size_k=columns, size_n=rows, group_size=group
        )
        zeros = empty
        if weight.zeros is not None:
            turned = weight.zeros.t().to(torch.int32).contiguous()
            zeros = marlin_utils.marlin_zero_points(
                turned, size_k=turned.shape[0], size_n=rows, num_bits=weight.bits
            ).to(device)
        return [words, scales, zeros, marlin_workspace(device)]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        words, scales, zeros, workspace = tensors
        rows, columns = scales.shape[1], inputs.plain.shape[1]
        no_order = zeros.flatten()[:0]  # vLLM reads the length of its last dimension
        bits = WORD * words.numel() // (rows * columns)
        product: torch.Tensor = _call(
            _marlin_linear(),
            input=inputs.plain,
            weight=words,
            weight_scale=scales,
            weight_zp=zeros,
            g_idx=no_order,
            g_idx_sort_indices=no_order,
            workspace=workspace,
            wtype=number_type(bits, zeros.numel() > 0),
            output_size_per_partition=rows,
            input_size_per_partition=columns,
            is_k_full=True,
        )
        return product


class Machete(Product):
    """16-bit activations, on Hopper; its schedules differ by shape and number of tokens."""

    name = "machete"
    traceable = True

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [(), *_schedule_options(machete_schedules(), tokens)]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        _check_packed(weight, MACHETE_GROUPS)
        if weight.rows % 128 or weight.columns % 64:
            raise Unusable(f"{weight.rows} x {weight.columns} is no multiple of 128 x 64")
        if _capability(weight.codes) != (9, 0):
            raise Unusable("runs on Hopper only")
        dtype = weight.scales.dtype
        words = _operations().machete_prepack_B(
            weight.codes.contiguous().t(),
            a_type=dtype,
            b_type=number_type(weight.bits, weight.zeros is not None),
            group_scales_type=dtype,
        )
        scales = weight.scales.t().contiguous()
        if weight.zeros is None:
            return [words, scales]
        return [words, scales, (-scales * weight.zeros.t().to(dtype)).contiguous()]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        words, scales, *zeros = tensors
        columns, groups = inputs.plain.shape[1], scales.shape[0]
        number = dict(options).get(SCHEDULE)
        product: torch.Tensor = _operations().machete_mm(
            a=inputs.plain,
            b_q=words,
            b_type=number_type(WORD * words.shape[0] // columns, bool(zeros)),
            b_group_scales=scales,
            b_group_zeros=zeros[0] if zeros else None,
            b_group_size=CHANNEL if groups == 1 else columns // groups,
            schedule=None if number is None else machete_schedules()[number],
        )
        return product


class CutlassW4A8(Product):
    """FP8 activations, on Hopper: for prompts and large batches."""

    name = "cutlass_w4a8"
    reads_rounded = True
    traceable = True
    tolerance = 0.04  # FP8 rounds scales of groups, and weights, by 2.6 % each (root mean square)

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [(), *_schedule_options(W4A8_SCHEDULES, tokens)]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        from vllm.model_executor.layers.quantization.utils import quant_utils

        _check_packed(weight, (W4A8_GROUP,))
        if weight.bits != 4 or weight.zeros is not None:
            raise Unusable("takes symmetric 4-bit weights only")
        if weight.rows % 128 or weight.columns % 128:
            raise Unusable(f"{weight.rows} x {weight.columns} is no multiple of 128 x 128")
        if weight.scales.dtype != torch.bfloat16:
            raise Unusable("gives bfloat16 only")
        if _capability(weight.codes) != (9, 0):
            raise Unusable("runs on Hopper only")
        operations = _operations()
        signed = quant_utils.convert_packed_uint4b8_to_signed_int4_inplace(
            weight.codes.clone(memory_format=torch.contiguous_format)
        )
        torch.cuda.synchronize(signed.device)  # the encoder does not wait for this stream
        words = operations.cutlass_encode_and_reorder_int4b(signed.t())
        group_scales, row_scales = rounded_group_scales(weight.scales)
        packed = operations.cutlass_pack_scale_fp8(group_scales.t().contiguous())
        return [words, packed, row_scales]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        words, group_scales, row_scales = tensors
        rounded, token_scales = rounded_of(inputs, FP8)
        number = dict(options).get(SCHEDULE)
        product: torch.Tensor = _operations().cutlass_w4a8_mm(
            a=rounded,
            b_q=words,
            b_group_scales=group_scales,
            b_group_size=W4A8_GROUP,
            b_channel_scales=row_scales,
            a_token_scales=token_scales,
            maybe_schedule=None if number is None else W4A8_SCHEDULES[number],
        )
        return product


def check_marlin_shape(weight: Weight) -> None:
    """Raises Unusable where Marlin has no tile for a weight."""
    rows, columns = weight.rows, weight.columns
    if not (rows % 64 == columns % 128 == 0 or rows % 128 == columns % 64 == 0):
        raise Unusable(f"{rows} x {columns} is no multiple of 64 x 128 or 128 x 64")


def marlin_words(words: torch.Tensor, columns: int, bits: int) -> torch.Tensor:
    """Marlin's layout of 32-bit words [N, K * bits / 32], the first column in the lowest bits."""
    turned: torch.Tensor = _call(
        _operations().gptq_marlin_repack,
        b_q_weight=words.t().contiguous(),
        perm=torch.empty(0, dtype=torch.int32, device=words.device),
        size_k=columns,
        size_n=words.shape[0],
        num_bits=bits,
    )
    return turned


def marlin_workspace(device: torch.device) -> torch.Tensor:
    """What Marlin's blocks tell each other."""
    from vllm.model_executor.layers.quantization.utils import marlin_utils

    blocks = getattr(marlin_utils, "MARLIN_MAX_BLOCKS_PER_SM", 1)
    workspace: torch.Tensor = marlin_utils.marlin_make_workspace_new(device, blocks)
    return workspace


def rounded_group_scales(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales [N, groups] as CUTLASS W4A8 keeps them: FP8 [N, groups] times float32 [N, 1]. The
    product of an INT4 weight and its scale must be in the range of FP8, so these reach to an
    eighth of it only."""
    wide = scales.float()
    row_scales = (wide.amax(dim=1, keepdim=True) / LARGEST).clamp(min=SMALLEST)
    group_scales = (wide / row_scales).clamp(max=LARGEST).to(FP8)
    return (group_scales.float() / EIGHT).to(FP8), row_scales * EIGHT


@cache
def number_type(bits: int, has_zeros: bool) -> Any:
    """vLLM's type of stored integers: offset by half of their range, or with zero points."""
    from vllm.scalar_type import scalar_types

    names = {(4, False): "uint4b8", (8, False): "uint8b128", (4, True): "uint4", (8, True): "uint8"}
    return getattr(scalar_types, names[bits, has_zeros])


def machete_schedules() -> tuple[str, ...]:
    """Names of Machete's schedules, in a fixed order; none where vLLM was built without it. They
    are the same for all of its types of 16-bit activations."""
    try:
        return known_schedules()
    except (AttributeError, ImportError, RuntimeError):
        return ()


@cache
def known_schedules() -> tuple[str, ...]:
    """Asks vLLM once."""
    with _disable_current_modes():  # a traced op must not give strings
        names = _operations().machete_supported_schedules(
            torch.bfloat16, number_type(4, False), group_scales_type=torch.bfloat16
        )
    return tuple(sorted(names))


def _schedule_options(names: tuple[str, ...], tokens: int) -> list[Options]:
    """Schedules whose tile suits the number of tokens: a wider one multiplies padding, a much
    narrower one reads the weight again for each tile."""
    widths = {name: int(found[1]) for name in names if (found := re.match(r"\d+x(\d+)_", name))}
    least = max(16, min(128, tokens // 4))
    most = max(16, 2 * tokens)
    return [
        ((SCHEDULE, number),)
        for number, name in enumerate(names)
        if least // 2 <= widths.get(name, least) <= most
    ]


def _check_packed(weight: Weight, groups: tuple[int | None, ...]) -> None:
    if weight.codes.dtype != torch.int32 or weight.bits not in (4, 8):
        raise Unusable("takes packed weights of 4 or 8 bits")
    if weight.group_size not in groups:
        raise Unusable(f"takes no groups of {weight.group_size}")
    if weight.scales.dtype not in (torch.bfloat16, torch.float16):
        raise Unusable(f"takes no scales of {weight.scales.dtype}")


def _capability(tensor: torch.Tensor) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability(tensor.device) if tensor.is_cuda else None


@cache
def _operations() -> Any:
    from vllm import _custom_ops

    return _custom_ops


@cache
def _marlin_linear() -> Callable[..., Any]:
    from vllm.model_executor.layers.quantization.utils.marlin_utils import apply_gptq_marlin_linear

    function: Callable[..., Any] = apply_gptq_marlin_linear
    return function


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _call(function: Callable[..., Any], **arguments: Any) -> Any:
    """Calls with the arguments that this version has: 0.32 dropped those of reordered weights."""
    known = _parameters(function)
    return function(**{name: value for name, value in arguments.items() if name in known})
