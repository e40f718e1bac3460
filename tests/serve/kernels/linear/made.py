"""Products in plain PyTorch and small layers, to load kernel classes on a CPU."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from serve.kernels.products.product import Inputs, Options, Product, Weight

ROWS, COLUMNS = 96, 128


class OwnInRounded(Product):
    """Stands for vLLM's own product of rounded activations."""

    name = "cutlass_int8"
    reads_rounded = True

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [()]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        return [weight.codes, weight.scales.float()]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        codes, scales = tensors
        assert inputs.rounded is not None
        assert inputs.scales is not None
        sums = inputs.rounded.float() @ codes.float().t()
        return (sums * inputs.scales * scales.t()).to(inputs.plain.dtype)


class FewInRounded(OwnInRounded):
    """The same for few tokens, in a layout of its own."""

    name = "few_rounded"
    most = 16

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        return [weight.codes.clone(), weight.scales.float()]


class FewInPlain(Product):
    """Reads plain activations, for few tokens."""

    name = "few_plain"
    most = 16

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [()]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        return [weight.codes, weight.scales.float()]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        codes, scales = tensors
        assert inputs.plain.shape[1] == codes.shape[1]
        return inputs.plain @ (codes.float() * scales).to(inputs.plain.dtype).t()


class Wrong(FewInPlain):
    name = "wrong"

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        return super().multiply(inputs, tensors, options) * 1.2


def int8_layer(parts: Sequence[int] = (64, 32), seed: int = 0) -> torch.nn.Module:
    """A merged INT8 layer, as vLLM has it after loading."""
    generator = torch.Generator().manual_seed(seed)
    layer: Any = torch.nn.Module()
    codes = torch.randint(-127, 128, (sum(parts), COLUMNS), generator=generator, dtype=torch.int8)
    scales = torch.rand(sum(parts), 1, generator=generator) * 0.01 + 0.001
    layer.weight = torch.nn.Parameter(codes, requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(scales, requires_grad=False)
    layer.logical_widths, layer.prefix = list(parts), "model.layers.0.mlp.up"
    return layer


def timed(times: dict[str, float]) -> Callable[[Sequence[Any]], float]:
    """A clock that gives each product a time of its own."""

    def clock(calls: Sequence[Any]) -> float:
        first = calls[0]
        assert isinstance(first, partial)
        first()
        product: Product = getattr(first.func, "__self__")  # noqa: B009
        return times[product.name]

    return clock
