"""Products in plain PyTorch, for tests on a CPU."""

import torch

from serve.kernels.products.product import Inputs, Options, Product, Unusable, Weight


class Plain(Product):
    """Multiplies plain activations with 8-bit codes of channels."""

    name = "plain"

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [(("block", 64),), (("block", 128),)]

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        return [weight.codes, weight.scales]

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        codes, scales = tensors
        dense = (codes.float() * scales.float()).to(inputs.plain.dtype)
        return inputs.plain @ dense.t()


class Few(Plain):
    """Takes at most eight tokens."""

    name = "few"
    most = 8

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [()]


class Many(Plain):
    """Takes 32 tokens or more."""

    name = "many"
    fewest = 32

    def options(self, rows: int, columns: int, tokens: int) -> list[Options]:
        return [()]


class Rounded(Plain):
    """Multiplies rounded activations."""

    name = "rounded"
    reads_rounded = True

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        assert inputs.rounded is not None
        codes, scales = tensors
        sums = inputs.rounded.float() @ codes.float().t()
        of_tokens = 1.0 if inputs.scales is None else inputs.scales
        return (sums * of_tokens * scales.float().t()).to(inputs.plain.dtype)


class Wrong(Plain):
    """Is off by a tenth."""

    name = "wrong"

    def multiply(
        self, inputs: Inputs, tensors: list[torch.Tensor], options: Options
    ) -> torch.Tensor:
        return super().multiply(inputs, tensors, options) * 1.1


class Refusing(Plain):
    """Takes no layer."""

    name = "refusing"

    def prepare(self, weight: Weight) -> list[torch.Tensor]:
        raise Unusable("takes no layer")


def int8_weight(rows: int = 48, columns: int = 64) -> Weight:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(-127, 128, (rows, columns), generator=generator, dtype=torch.int8)
    scales = torch.rand((rows, 1), generator=generator) * 0.01 + 0.001
    return Weight(codes=codes, scales=scales, bits=8, columns=columns)
