"""Our replacements inside llm-compressor's GPTQ and SparseGPT.

Hessian products run on the tensor cores, once for all modules that share an input. GPTQ keeps a 2:4
mask while it rounds. Its error is relative to the module's output; llm-compressor reports a sum
that grows with the model. Every module's error is recorded.
"""

import contextlib
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationStrategy, fake_quantize
from compressed_tensors.utils import patch_attr
from llmcompressor.modifiers.gptq import base as gptq
from llmcompressor.modifiers.gptq.helpers import (
    apply_activation_ordering,
    column_scale_window,
    factorize_hessian,
)
from llmcompressor.modifiers.pruning.sparsegpt import base as sparsegpt
from llmcompressor.utils.metric_logging import CompressionLogger

from quantize.steps.base.changes import Errors

TINY = torch.finfo(torch.float32).tiny


@contextlib.contextmanager
def noted_errors(model: torch.nn.Module, errors: Errors) -> Iterator[None]:
    """Records each module's error under the name that llm-compressor logs."""
    names = {module: name for name, module in model.named_modules()}

    def note(logger: Any, name: str | None = None, loss: float | None = None) -> None:
        if loss is not None:
            errors[names[logger.module]][str(name).lower()] = loss
        library_set_results(logger, name, loss)

    library_set_results = CompressionLogger.set_results
    with patch_attr(CompressionLogger, "set_results", note):
        yield


@contextlib.contextmanager
def gptq_patches(keep_zeros: bool) -> Iterator[None]:
    """Puts our Hessians and errors into GPTQ. `keep_zeros`: keeps the mask of pruned weights."""
    solve = quantize_keeping_zeros if keep_zeros else gptq.quantize_weight
    with (
        patch_attr(gptq, "accumulate_hessian", SharedProducts().accumulate),
        patch_attr(gptq, "quantize_weight", partial(with_output_error, solve)),
    ):
        yield


@contextlib.contextmanager
def sparsegpt_patches() -> Iterator[None]:
    """Puts our Hessians into SparseGPT."""
    with patch_attr(sparsegpt, "accumulate_hessian", SharedProducts().accumulate_plain):
        yield


def with_output_error(
    solve: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor]],
    *,
    weights: torch.Tensor,
    hessians: torch.Tensor,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """GPTQ's `quantize_weight` with other losses: the relative error of each module's output on the
    calibration text, |(W - Q) X| / |W X|, by the same Hessians. Solving overwrites its inputs.
    """
    original, products = weights.float().clone(), hessians.float().clone()
    quantized, _, fell_back = solve(weights=weights, hessians=hessians, **options)
    original_energy = _output_energy(original, products)
    error_energy = _output_energy(original.sub_(quantized.float()), products)
    return quantized, (error_energy / original_energy.clamp_min(TINY)).sqrt(), fell_back


def _output_energy(weights: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """The squared norm of each module's output, up to a common factor."""
    return (torch.bmm(weights, products) * weights).sum(dim=(1, 2)).clamp_min(0)


class SharedProducts:
    """Accumulates X'X. q, k and v see the same X, and so do gate and up: one product
    serves them all. On a GPU it runs in TF32, which holds every bf16 number exactly and adds up in
    float32: as exact for bf16 activations as full float32, and several times faster."""

    def __init__(self) -> None:
        self._input: torch.Tensor | None = None
        self._product: torch.Tensor | None = None

    def _product_of(self, inputs: torch.Tensor) -> torch.Tensor:
        if self._product is None or self._input is not inputs:
            rows = inputs.reshape(-1, inputs.shape[-1]).float()
            previous_tf32 = torch.backends.cuda.matmul.allow_tf32
            torch.backends.cuda.matmul.allow_tf32 = inputs.dtype == torch.bfloat16
            try:
                self._product = rows.t() @ rows
            finally:
                torch.backends.cuda.matmul.allow_tf32 = previous_tf32
            self._input = inputs
        return self._product

    def accumulate(
        self, inp: torch.Tensor, module: Any, hessian: torch.Tensor, num_samples: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Replaces GPTQ's function of the same signature, for linear layers."""
        assert isinstance(module, torch.nn.Linear)
        num_samples += inp.shape[0] if inp.dim() > 2 else 1
        hessian.add_(self._product_of(inp), alpha=2)
        return hessian, num_samples

    def accumulate_plain(
        self, inp: torch.Tensor, module: Any, hessian: torch.Tensor, num_samples: int
    ) -> tuple[torch.Tensor, int]:
        """SparseGPT's variant keeps a running mean instead of a sum."""
        batch_samples = inp.shape[0] if inp.dim() > 2 else 1
        hessian *= num_samples / (num_samples + batch_samples)
        num_samples += batch_samples
        hessian += self._product_of(inp) * (2 / num_samples)
        return hessian, num_samples


def quantize_keeping_zeros(
    weights: torch.Tensor,
    hessians: torch.Tensor,
    scale: torch.Tensor,
    zero_point: torch.Tensor,
    global_scale: torch.Tensor | None,
    quant_args: QuantizationArgs,
    blocksize: int = 128,
    percdamp: float = 0.01,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """GPTQ that keeps zero weights at zero; the other weights compensate for that, too.

    The same signature and result as llm-compressor's `quantize_weight`: weights, losses, and
    which of them fell back to plain rounding.
    """
    original_dtype = weights.dtype
    mask = weights != 0
    work, hessians, order = apply_activation_ordering(
        weights.float(), hessians.float(), quant_args.actorder
    )
    if order is not None:
        mask = mask.gather(-1, order.unsqueeze(-2).expand_as(mask))
    groups = _group_of_column(work.shape[-1], quant_args, order, work.device)
    losses = torch.zeros(work.shape[:2], device=work.device)
    fell_back = torch.zeros(work.shape[0], dtype=torch.bool, device=work.device)
    inverse = factorize_hessian(work, hessians, percdamp, fell_back)
    by_channel = copy(quant_args)
    by_channel.strategy = QuantizationStrategy.CHANNEL

    for start in range(0, work.shape[-1], blocksize):
        end = min(start + blocksize, work.shape[-1])
        scales, _ = column_scale_window(
            scale, zero_point, global_scale, groups, quant_args, work.shape[-2], start, end
        )
        block = work[:, :, start:end].clone()
        errors = torch.zeros_like(block)
        for column in range(end - start):
            values = block[:, :, column]
            rounded = fake_quantize(values.t(), scales[:, :, column].t(), None, by_channel).t()
            rounded = rounded * mask[:, :, start + column]
            error = (values - rounded) / inverse[:, start + column, start + column, None]
            row = inverse[:, start + column, start + column : end]
            block[:, :, column:] -= error.unsqueeze(-1) * row.unsqueeze(1)
            work[:, :, start + column] = rounded
            errors[:, :, column] = error
        losses += errors.square().sum(-1) / 2
        work[:, :, end:] -= torch.bmm(errors, inverse[:, start:end, end:])

    if order is not None:
        original_order = order.argsort(dim=-1).unsqueeze(-2).expand_as(work)
        work = work.gather(-1, original_order)
    return work.to(original_dtype), losses.sum(dim=1), fell_back


def _group_of_column(
    columns: int, quant_args: QuantizationArgs, order: torch.Tensor | None, device: torch.device
) -> torch.Tensor | None:
    """The scale group of each column, in the order of rounding; None without groups."""
    if quant_args.strategy == QuantizationStrategy.BLOCK:
        width = quant_args.block_structure[1]
    elif quant_args.strategy in (QuantizationStrategy.GROUP, QuantizationStrategy.TENSOR_GROUP):
        width = quant_args.group_size
    else:
        return None
    groups = torch.arange(columns, device=device) // width
    return groups if order is None else groups[order]
