"""`python -m evaluate.measure.rates.measuring`: measures this machine for an evaluation.

The command for users is `python -m evaluate.limits`. Matrices are far larger than any cache and
hold random numbers: zeros take less power and run faster than a model's weights.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from conf.files.write_whole import write_once, write_whole
from conf.hardware import cpu_has_bf16
from conf.process.inside import Send, run_program
from evaluate.measure.rates.known import MEASURE_RATES, RatesRequest, RatesWritten

GPU_BYTES, CPU_BYTES = 4 << 30, 1 << 28
GPU_SIDE, CPU_SIDE = 8192, 1536
TRIES = 5


@dataclass(frozen=True)
class MeasuredRates:
    """Rates of one device per second."""

    bandwidth: float
    """Bytes read or written."""
    products: dict[str, float]
    """Operations of matrix products, by the type of numbers."""
    device: str
    """cuda or cpu."""


def measure() -> MeasuredRates:
    """The best rate of several tries, on the GPU if there is one."""
    import torch

    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"

    def seconds(work: Callable[[], Any]) -> float:
        """The shortest time of several tries, because the limit is the hardware's best."""
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
    for kind, dtype in kinds.items():
        left = torch.randn(side, side, device=device, dtype=dtype)
        right = torch.randn(side, side, device=device, dtype=dtype)
        products[kind] = operations / seconds(partial(torch.mm, left, right))
    if on_gpu:
        products |= _eight_bit_products(left, right, operations, seconds)
    return MeasuredRates(max(copied, added), products, device)


def _eight_bit_products(
    left: Any, right: Any, operations: float, seconds: Callable[[Callable[[], Any]], float]
) -> dict[str, float]:
    """Rates of INT8 and FP8 products, if the card supports them: the faster of torch's and vLLM's
    kernels."""
    import torch

    products = {}
    capability = torch.cuda.get_device_capability()
    if capability >= (8, 0):
        left_codes = (left * 30).to(torch.int8)
        right_codes = (right * 30).to(torch.int8).t().contiguous().t()
        best = min(
            seconds(partial(torch._int_mm, left_codes, right_codes)),
            _vllm_seconds(left_codes, right_codes, seconds),
        )
        products["int8"] = operations / best
    if capability >= (8, 9):
        left_codes = left.to(torch.float8_e4m3fn)
        right_codes = right.to(torch.float8_e4m3fn).t().contiguous().t()
        unit = torch.ones((), device=left.device)
        torch_product = partial(
            torch._scaled_mm, left_codes, right_codes, unit, unit, out_dtype=torch.bfloat16
        )
        products["fp8"] = operations / min(
            seconds(torch_product), _vllm_seconds(left_codes, right_codes, seconds)
        )
    return products


def _vllm_seconds(left: Any, right: Any, seconds: Callable[[Callable[[], Any]], float]) -> float:
    """Seconds of vLLM's CUTLASS kernel, which serves W8A8; infinite if it is missing."""
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
    """Measures the rates and writes them to a file, atomically."""
    with write_whole(path) as unfinished:
        _write_measured(unfinished)


def _write_measured(path: Path) -> None:
    path.write_text(json.dumps(asdict(measure())))


def work(request: RatesRequest, send: Send[RatesWritten]) -> None:
    write_once(Path(request.path), _write_measured)  # of several jobs on a machine, one measures
    send(RatesWritten(request.path))


if __name__ == "__main__":
    run_program(MEASURE_RATES, work, str(__doc__))
