"""Times the products of a layer, and torch's in bf16, with a cold and with a warm cache."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from evaluate.kernels.cases import KernelCase
from evaluate.kernels.layers import Layer, activations
from evaluate.kernels.sampling import sampled
from evaluate.results.kernel_values import KernelValues, Times
from serve.kernels.plans.proof import errors
from serve.kernels.plans.search import Prepared
from serve.kernels.plans.timing import CACHE_MULTIPLE, Call, cache_bytes, captured, copied
from serve.kernels.plans.timing import graph_time as quick_time
from serve.kernels.products.product import Options

FEWEST_CALLS, MOST_COPIES = 16, 400
MICRO = 1e6
BF16_BYTES = 2


@dataclass(frozen=True)
class Measured:
    """One product of a case."""

    product: str
    values: KernelValues
    invalid: list[str]


@dataclass(frozen=True)
class Pair:
    """Times with a cold and with a warm cache."""

    cold: Times
    warm: Times


def cold_copies(weight_bytes: int, device: torch.device) -> int:
    """Copies that exceed the L2 cache several times, so that none is in it when its turn comes."""
    needed = math.ceil(CACHE_MULTIPLE * cache_bytes(device) / max(1, weight_bytes))
    return min(max(needed, 3), MOST_COPIES)


def in_turns(calls: Sequence[Call]) -> list[Call]:
    """Enough calls that the start of the graph does not count."""
    return [*calls] * math.ceil(FEWEST_CALLS / len(calls))


def paired(calls: Sequence[Call]) -> Pair:
    """Each call has its own weights; the warm ones all have those of the first."""
    every = in_turns(calls)
    return Pair(sampled(captured(every)), sampled(captured([calls[0]] * FEWEST_CALLS)))


def torch_times(case: KernelCase, device: torch.device) -> Pair:
    """torch's product of bf16 weights of the same shape."""
    x = activations(case, device)
    size = case.in_features * case.out_features * BF16_BYTES
    shape = (case.out_features, case.in_features)
    weights = [
        torch.randn(shape, device=device, dtype=torch.bfloat16)
        for _ in range(cold_copies(size, device))
    ]

    def call_of(weight: torch.Tensor) -> Call:
        return lambda: torch.nn.functional.linear(x, weight)

    return paired([call_of(weight) for weight in weights])


def measured(
    case: KernelCase, layer: Layer, beside: Pair, bandwidth: float | None
) -> list[Measured]:
    """Every product of the layer with its fastest options."""
    found = []
    for candidate in layer.candidates:
        copies = copied(candidate.tensors, cold_copies(candidate.weight_bytes, layer.right.device))

        def calls_of(
            options: Options,
            candidate: Prepared = candidate,
            copies: list[list[torch.Tensor]] = copies,
        ) -> list[Call]:
            def call_of(tensors: list[torch.Tensor]) -> Call:
                return lambda: candidate.product.multiply(layer.inputs, tensors, options)

            return [call_of(tensors) for tensors in copies]

        options = _fastest(
            candidate.product.options(case.out_features, case.in_features, case.tokens), calls_of
        )
        result = candidate.product.multiply(layer.inputs, candidate.tensors, options)
        error = errors(result, layer.right)[0]
        times = paired(calls_of(options))
        values = values_of(case, times, beside, candidate.weight_bytes, bandwidth)
        named = ", ".join(f"{name.lower()} {value}" for name, value in options)
        # Written so that NaN, for which every comparison is false, is wrong.
        allowed = candidate.product.tolerance
        wrong = [] if error <= allowed else [f"off by {error:.3g} against float64"]
        stored = min(error, 1e15) if error == error else 1e15
        values = values.with_fields(error=stored, options=named)
        found.append(Measured(candidate.product.name, values, wrong))
    return found


def _fastest(candidates: list[Options], calls_of: Callable[[Options], list[Call]]) -> Options:
    """The options with the shortest time; those that cannot run are left out."""
    best: tuple[float, Options] | None = None
    failure: Exception | None = None
    for options in candidates:
        try:
            took = quick_time(in_turns(calls_of(options)))
        except Exception as error:  # a kernel may fail in any way; another may run
            failure = error
            continue
        if best is None or took < best[0]:
            best = took, options
    if best is None:
        raise failure or ValueError("there are no candidates")
    return best[1]


def values_of(
    case: KernelCase, times: Pair, beside: Pair, weight_bytes: int, bandwidth: float | None
) -> KernelValues:
    values = KernelValues(
        cold=times.cold,
        warm=times.warm,
        torch_cold=beside.cold,
        torch_warm=beside.warm,
        weight_bytes=weight_bytes,
    )
    if not bandwidth:
        return values
    moved = case.tokens * (case.in_features + case.out_features) * BF16_BYTES
    limit = (weight_bytes + moved) / bandwidth * MICRO
    return values.with_fields(limit_us=limit, limit_share=limit / times.cold.median_us)
