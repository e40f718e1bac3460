"""The command `quantize.benchmark`: Quantline against llm-compressor's own loop."""

from dataclasses import replace

from quantize.benchmark.options import BenchmarkConfig
from quantize.command import COMMAND as QUANTIZE

COMMAND = replace(
    QUANTIZE,
    schema=BenchmarkConfig,
    module="quantize.benchmark",
    purpose="Compares the time, memory and layer errors of quantizing here and with "
    "llm-compressor's own\nloop, on random tokens. Prints JSON.",
    examples=(
        "python -m quantize.benchmark model=tiny depths=[1,2] calibration.length=128",
        "python -m quantize.benchmark recipe=w8a8_smooth_gptq model=qwen3-8b model.weights=random",
        "python -m quantize.benchmark recipe=w4a16_awq model=qwen3-8b reference=false",
    ),
)


def main(config: BenchmarkConfig) -> None:
    from quantize.benchmark.measuring import benchmark

    benchmark(config)
