"""Made-up layers of a case: random weights and indices, the products that take them, and the right
result in float64."""

from dataclasses import dataclass

import torch

from conf.schema.kernel_grid import LINEAR
from conf.terminal import say
from evaluate.kernels.cases import KernelCase
from evaluate.kernels.linear_weights import linear_products, linear_weight
from serve.kernels.plans.proof import exact_inputs, product_of
from serve.kernels.plans.search import Prepared
from serve.kernels.products.product import Inputs, Unusable
from serve.kernels.products.short_vectors.layout import VECTOR as SHORT_VECTOR
from serve.kernels.products.short_vectors.product import ShortFewTokens
from serve.kernels.products.vptq import VptqFewTokens
from serve.kernels.products.vptq_layout import VectorWeight

RESIDUAL_SIZE = 0.2
VECTORS_AT_ONCE = 256
"""Rows of vectors that are widened to float64 at once."""


@dataclass(frozen=True)
class Layer:
    """What is timed, and what it must give."""

    candidates: list[Prepared]
    inputs: Inputs
    right: torch.Tensor
    """[tokens, N] in float64."""


def vector_weight(case: KernelCase, device: torch.device) -> VectorWeight:
    """Codebooks of normal numbers and uniformly random indices: neighbours have nothing in common,
    as in a trained layer."""
    random = torch.Generator(device).manual_seed(case.in_features + case.out_features)
    shape = (case.out_features // case.vector, case.in_features)

    def indices(entries: int) -> torch.Tensor:
        return torch.randint(entries, shape, generator=random, device=device, dtype=torch.int32)

    def book(entries: int) -> torch.Tensor:
        values = torch.randn(entries, case.vector, generator=random, device=device)
        return values.to(torch.bfloat16)

    residuals = case.residual_centroids
    return VectorWeight(
        codes=indices(case.main_centroids),
        scales=torch.ones((1, case.in_features), device=device),
        bits=16,
        columns=case.in_features,
        main=book(case.main_centroids),
        residual=book(residuals) * RESIDUAL_SIZE if residuals else None,
        residual_codes=indices(residuals) if residuals else None,
    )


def right_result(x: torch.Tensor, weight: VectorWeight) -> torch.Tensor:
    """The product in float64 from the indices as they were before packing."""
    wide, parts = x.double(), []
    for first in range(0, weight.codes.shape[0], VECTORS_AT_ONCE):
        rows = slice(first, first + VECTORS_AT_ONCE)
        values = weight.book.double()[weight.codes[rows]]
        if weight.residual is not None and weight.residual_codes is not None:
            values += weight.residual.double()[weight.residual_codes[rows]]
        parts.append(wide @ values.transpose(1, 2).reshape(-1, weight.columns).t())
    return torch.cat(parts, dim=1)


def activations(case: KernelCase, device: torch.device) -> torch.Tensor:
    random = torch.Generator(device).manual_seed(case.tokens)
    shape = (case.tokens, case.in_features)
    return torch.randn(shape, generator=random, device=device).to(torch.bfloat16)


def made_layer(case: KernelCase, device: torch.device) -> Layer:
    if case.grid == LINEAR:
        return linear_layer(case, device)
    weight, x = vector_weight(case, device), activations(case, device)
    product = ShortFewTokens() if case.vector == SHORT_VECTOR else VptqFewTokens()
    return Layer([Prepared(product, product.prepare(weight))], Inputs(x), right_result(x, weight))


def linear_layer(case: KernelCase, device: torch.device) -> Layer:
    """Products that refuse the weight, or that cannot be imported here, are left out."""
    weight = linear_weight(case, device)
    rounded = None if weight.codes.dtype == torch.int32 else weight.codes.dtype
    inputs = exact_inputs(case.tokens, case.in_features, rounded, weight.codes, torch.bfloat16)
    candidates = []
    for product in linear_products(case.format):
        try:
            candidate = Prepared(product, product.prepare(weight))
        except (Unusable, ImportError, AttributeError) as reason:
            say(f"{case.name}: {product.name} is left out: {reason}")
            continue
        if candidate.takes(case.tokens):
            candidates.append(candidate)
    return Layer(candidates, inputs, product_of(inputs, weight))
