"""`python -m evaluate.measure.rates.measuring`: measures this machine for an evaluation.

The command for people is `python -m evaluate.limits`. Matrices are far larger than any cache and
hold random numbers: zeros take less power and run faster than any model does.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from conf.hardware import cpu_has_bf16
from conf.process.inside import Send, fulfil
from evaluate.measure.rates.known import MEASURE_RATES, RatesRequest, RatesWritten

GPU_BYTES, CPU_BYTES = 4 << 30, 1 << 28
GPU_SIDE, CPU_SIDE = 8192, 1536
TRIES = 5


@dataclass(frozen=True)
class Measured:
    """What one device does in a second."""

    bandwidth: float
    """Bytes read or written."""
    products: dict[str, float]
    """Operations of matrix products, by the type of numbers."""
    device: str
    """cuda or cpu."""


def measure() -> Measured:
    """The fastest of some tries each, on a GPU where there is one."""
    import torch

    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"

    def seconds(work: Callable[[], Any]) -> float:
        """The fastest of some tries: the limit is what the hardware can do."""
        work()
        best = float("inf")
        for _ in range(TRIES):
            if on_gpu:
                torch.cuda.synchronize()
            start = time.perf_counter()
            work()
            if on_gpu:
                torch.cuda.synchronize()
            best = min(best, time.perf_counter() - start)
        return best

    size = GPU_BYTES if on_gpu else CPU_BYTES
    source = torch.rand(size // 4, device=device)
    target = torch.empty_like(source)
    copied = 2 * size / seconds(lambda: target.copy_(source))
    added = size / seconds(lambda: source.sum())

    side = GPU_SIDE if on_gpu else CPU_SIDE
    operations = 2.0 * side**3
    kinds = {"float32": torch.float32}
    if on_gpu or cpu_has_bf16():
        kinds["bf16"] = torch.bfloat16
    products = {}
    for kind, number in kinds.items():
        one = torch.randn(side, side, device=device, dtype=number)
        other = torch.randn(side, side, device=device, dtype=number)
        products[kind] = operations / seconds(partial(torch.mm, one, other))
    if on_gpu:
        products |= _eight_bit(one, other, operations, seconds)
    return Measured(max(copied, added), products, device)


def _eight_bit(
    one: Any, other: Any, operations: float, seconds: Callable[[Callable[[], Any]], float]
) -> dict[str, float]:
    """INT8 and FP8 products, where the card has them: the faster of torch's and vLLM's kernels."""
    import torch

    found = {}
    capability = torch.cuda.get_device_capability()
    if capability >= (8, 0):
        left = (one * 30).to(torch.int8)
        right = (other * 30).to(torch.int8).t().contiguous().t()
        best = min(seconds(partial(torch._int_mm, left, right)), _in_vllm(left, right, seconds))
        found["int8"] = operations / best
    if capability >= (8, 9):
        left = one.to(torch.float8_e4m3fn)
        right = other.to(torch.float8_e4m3fn).t().contiguous().t()
        unit = torch.ones((), device=one.device)
        plain = partial(torch._scaled_mm, left, right, unit, unit, out_dtype=torch.bfloat16)
        found["fp8"] = operations / min(seconds(plain), _in_vllm(left, right, seconds))
    return found


def _in_vllm(left: Any, right: Any, seconds: Callable[[Callable[[], Any]], float]) -> float:
    """Seconds of vLLM's CUTLASS kernel, which serves W8A8; infinite where there is none."""
    import torch

    try:
        from vllm import _custom_ops

        scales = torch.ones((left.shape[0], 1), device=left.device)
        product = partial(
            _custom_ops.cutlass_scaled_mm, left, right, scales, scales, torch.bfloat16
        )
        return seconds(product)
    except (ImportError, AttributeError, RuntimeError):
        return float("inf")


def write(path: Path) -> None:
    """Measures, and writes the rates to a file that appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".partial")
    unfinished.write_text(json.dumps(asdict(measure())))
    unfinished.replace(path)


def work(request: RatesRequest, send: Send[RatesWritten]) -> None:
    write(Path(request.path))
    send(RatesWritten(request.path))


if __name__ == "__main__":
    fulfil(MEASURE_RATES, work, str(__doc__))
