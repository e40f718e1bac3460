"""Proves a product against float64, for a layer's own weights and a few numbers of tokens.

Activations are exact in both forms: whole codes times a power of two, with the largest code in each
row. So plain and rounded activations hold the same numbers, and a product that rounds them itself
gets the same codes. What is left is the rounding of sums and of widened weights.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from serve.kernels.plans.plan import Plan
from serve.kernels.plans.search import Prepared
from serve.kernels.products.product import Inputs, Options, Unusable, Weight

TOKENS = (1, 7, 16, 33)
ROWS = 64
"""Rows of activations whose products are known in float64."""
MOST_PROVEN = 512
"""Tokens. More take long, and are multiplied by the libraries of others."""
SINGLE = 5.0
"""How much larger the error of one number may be, relative to its size plus the row's root mean
square."""
ROWS_AT_ONCE = 2048
SCALE = 2.0**-6


def exact_inputs(
    tokens: int, columns: int, rounded: torch.dtype | None, like: torch.Tensor, dtype: torch.dtype
) -> Inputs:
    """Activations whose plain and rounded form are equal; `rounded` None for plain ones alone."""
    generator = torch.Generator(device=like.device).manual_seed(tokens)
    normal = torch.randn(
        (tokens, columns), generator=generator, device=like.device, dtype=torch.float32
    )
    if rounded is None:
        return Inputs(normal.to(dtype))
    most = 127.0 if rounded == torch.int8 else float(torch.finfo(rounded).max)
    wide = normal.clamp(-4, 4) * (most / 4)
    codes = wide.round() if rounded == torch.int8 else wide.to(rounded).float()
    codes[:, 0] = most
    scales = torch.full((tokens, 1), SCALE, device=like.device, dtype=torch.float32)
    return Inputs((codes * SCALE).to(dtype), codes.to(rounded), scales)


def dense(weight: Weight, first: int, last: int) -> torch.Tensor:
    """The rows of a weight as float64."""
    codes, scales = weight.codes[first:last], weight.scales[first:last].double()
    if codes.dtype == torch.int32:
        values = _unpacked(codes, weight.bits)[:, : weight.columns]
        if weight.zeros is None:
            values = values - 2 ** (weight.bits - 1)
        else:
            values = values - _by_column(weight.zeros[first:last].double(), weight.columns)
    else:
        values = codes.double()
    return values * _by_column(scales, weight.columns)


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    shifts = torch.arange(32 // bits, device=words.device, dtype=torch.int32) * bits
    values = (words.unsqueeze(-1) >> shifts) & (2**bits - 1)
    return values.reshape(words.shape[0], -1).double()


def _by_column(groups: torch.Tensor, columns: int) -> torch.Tensor:
    """[N, groups] as [N, columns]; one group stays as it is."""
    if groups.shape[1] == 1:
        return groups
    return groups.repeat_interleave(columns // groups.shape[1], dim=1)


def product_of(inputs: Inputs, weight: Weight) -> torch.Tensor:
    """The product in float64, for some rows of the weight at a time."""
    x = inputs.plain.double()
    parts = [
        x @ dense(weight, first, min(first + ROWS_AT_ONCE, weight.rows)).t()
        for first in range(0, weight.rows, ROWS_AT_ONCE)
    ]
    return torch.cat(parts, dim=1)


class Proof:
    """Proves products for one layer; the product in float64 is made once for all of them."""

    def __init__(self, weight: Weight, rounded: torch.dtype | None, dtype: torch.dtype) -> None:
        self.weight = weight
        self.inputs = exact_inputs(ROWS, weight.columns, rounded, weight.codes, dtype)
        self.right = product_of(self.inputs, weight)

    def check(self, candidate: Prepared) -> None:
        """Raises Unusable, with the size of the error, where the product's best guess is wrong."""
        for tokens, options in self._best_guesses(candidate):
            self.check_one(candidate, tokens, options)

    def calls(self, candidate: Prepared) -> list[Callable[[], object]]:
        """What `check` runs, to be compiled before it; each kernel once."""
        tokens_of = {options: tokens for tokens, options in self._best_guesses(candidate)}
        multiply, tensors = candidate.product.multiply, candidate.tensors
        return [
            partial(multiply, _with_tokens(self.inputs, tokens), tensors, options)
            for options, tokens in tokens_of.items()
        ]

    def _best_guesses(self, candidate: Prepared) -> list[tuple[int, Options]]:
        product, weight = candidate.product, self.weight
        counts = [count for count in TOKENS if candidate.takes(count)] or [product.fewest]
        return [(n, product.options(weight.rows, weight.columns, n)[0]) for n in counts]

    def check_plan(self, candidate: Prepared, plan: Plan) -> None:
        """Raises Unusable where the product is wrong with the options of a step of the plan, for
        the fewest tokens of that step, and for the most unless they are many."""
        begin = 1
        for step in plan.steps:
            if step.product == candidate.product.name:
                self.check_one(candidate, begin, step.options)
                if step.up_to is not None and begin < step.up_to <= MOST_PROVEN:
                    self.check_one(candidate, step.up_to, step.options)
            begin = (step.up_to or 0) + 1

    def check_one(self, candidate: Prepared, tokens: int, options: Options) -> None:
        """Raises Unusable where the result for that many tokens is wrong. Rows are repeated beyond
        those that are known in float64."""
        inputs = _with_tokens(self.inputs, tokens)
        given = replace(inputs, scales=None) if candidate.product.scales_after else inputs
        result = candidate.product.multiply(given, candidate.tensors, options)
        if given.scales is not inputs.scales:
            result = (result.float() * inputs.scales).to(result.dtype)
        if result.shape != (tokens, self.weight.rows) or result.dtype != inputs.plain.dtype:
            raise Unusable(f"gives {result.dtype} {list(result.shape)} for {tokens} tokens")
        allowed = candidate.product.tolerance
        for part in result.split(ROWS):
            relative, single = errors(part, self.right[: part.shape[0]])
            # Written so that NaN, for which every comparison is false, fails.
            if not (relative <= allowed and single <= allowed * SINGLE):
                raise Unusable(
                    f"is off by {relative:.3g} (in one number {single:.3g}) for {tokens} tokens"
                )


def errors(result: torch.Tensor, right: torch.Tensor) -> tuple[float, float]:
    """The largest relative error of a row, and of one number against its size plus the row's root
    mean square."""
    difference = (result.double() - right).abs()
    norm = right.norm(dim=1, keepdim=True).clamp(min=1e-30)
    relative = float((difference.norm(dim=1, keepdim=True) / norm).max())
    single = float((difference / (right.abs() + norm / right.shape[1] ** 0.5)).max())
    return relative, single


def _with_tokens(inputs: Inputs, tokens: int) -> Inputs:
    """The first rows, or all of them several times."""
    times = -(-tokens // inputs.plain.shape[0])

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        return torch.cat([tensor] * times)[:tokens] if times > 1 else tensor[:tokens]

    if inputs.rounded is None or inputs.scales is None:
        return Inputs(rows(inputs.plain))
    # PyTorch joins no FP8 tensors on some devices; their bytes it does.
    codes = rows(inputs.rounded.view(torch.int8)).view(inputs.rounded.dtype)
    return Inputs(rows(inputs.plain), codes, rows(inputs.scales))
