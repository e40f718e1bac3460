"""The command `evaluate.kernels`: times kernels one by one."""

from conf.compose import Command
from conf.schema.kernel_grid import KernelGridConfig

COMMAND = Command(
    "kernel_grid",
    KernelGridConfig,
    (
        "python -m evaluate.kernels grid=vptq",
        "python -m evaluate.kernels grid=vptq tokens=[1,8,16] in_features=[4096] seconds=120",
        "python -m evaluate.kernels grid=linear model=qwen3-8b schemes=[int8,fp8] tokens=[1,64]",
    ),
    module="evaluate.kernels",
)


def main(config: KernelGridConfig) -> None:
    from pathlib import Path

    from evaluate.kernels.benchmark import measure_grid
    from evaluate.results.lock import only_writer

    with only_writer(Path(config.results)):
        measure_grid(config)
