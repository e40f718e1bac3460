"""`python -m evaluate.limits`: what this machine reads and multiplies in a second, measured once.

Matrices are far larger than any cache and hold random numbers: zeros take less power and run
faster than any model does.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from conf.app import report
from conf.cache import cache_root
from conf.entry import answer_flags
from conf.errors import bad_input, last_line
from conf.hardware import cpu_has_bf16, cpu_name, gpu_cards, gpu_names
from conf.schema.load import GpuConfig
from conf.terminal import say
from evaluate.measure.roofline import Rates

FORMAT = 2
GPU_BYTES, CPU_BYTES = 4 << 30, 1 << 28
GPU_SIDE, CPU_SIDE = 8192, 1536
TRIES = 5
GIGA, TERA = 1e9, 1e12
USAGE = "python -m evaluate.limits [FILE]"
HELP = f"""{USAGE}

Measures this machine's memory bandwidth (bytes a second) and matrix products (operations a second).
Prints them as JSON, or writes them to FILE.

  --version  Prints the version.
"""


def rates(gpu: GpuConfig, count: int = 1) -> Rates | None:
    """The measured rates of this machine, for that many of its GPUs; a datasheet's where measuring
    fails; none without."""
    one = _rates_of_one(gpu)
    if one is None or count == 1:
        return one
    together = {kind: rate * count for kind, rate in one.products.items()}
    return Rates(one.bandwidth * count, together, one.source)


def _rates_of_one(gpu: GpuConfig) -> Rates | None:
    name = (gpu_names() or [f"{cpu_name()}, {os.cpu_count()} cores"])[0]
    words = "-".join([*re.split("[ /]", name), *gpu_cards()[:1], str(FORMAT)])
    path = cache_root() / "limits" / f"{words}.json"
    if not path.is_file():
        say(f"{name}: measuring bandwidth and matrix rates, once")
        result = subprocess.run(
            [sys.executable, "-m", "evaluate.limits", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if result.returncode:
            say(f"{name}: its rates could not be measured ({last_line(result.stderr)})")
            return _datasheet(gpu)
    found = json.loads(path.read_text())
    return Rates(found["bandwidth"], found["products"], "measured")


def _datasheet(gpu: GpuConfig) -> Rates | None:
    if not gpu.bandwidth_gb_s or not gpu.bf16_tflops:
        return None
    products = {"bf16": gpu.bf16_tflops, "fp8": gpu.fp8_tflops, "int8": gpu.int8_tops}
    known = {kind: rate * TERA for kind, rate in products.items() if rate}
    return Rates(gpu.bandwidth_gb_s * GIGA, known, "datasheet")


def measure() -> dict[str, Any]:
    """Bandwidth in bytes a second, matrix products in operations a second."""
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
    return {"bandwidth": max(copied, added), "products": products, "device": device}


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


def main() -> None:
    answer_flags(sys.argv[1:], HELP)
    if sys.argv[1:2] and (len(sys.argv) > 2 or sys.argv[1].startswith("-")):
        sys.exit(report(bad_input(f"{' '.join(sys.argv[1:])}: write {USAGE}")))
    if len(sys.argv) < 2:
        print(json.dumps(measure(), indent=2))
        return
    path = Path(sys.argv[1])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(measure()))
    partial.replace(path)


if __name__ == "__main__":
    main()
