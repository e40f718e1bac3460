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

    from conf.errors import bad_input
    from conf.files.outputs import check_file, check_folder, is_same_file
    from evaluate.command import kept_when_ended
    from evaluate.kernels.benchmark import measure_grid
    from evaluate.kernels.tables import table_files
    from evaluate.results.lock import only_writer

    results, out = Path(config.results).expanduser(), Path(config.out).expanduser()
    check_folder("out", out)
    for table in table_files(out):
        check_file("out", table)
        if is_same_file(results, table):
            raise bad_input(f"out={config.out}: {table} is the results file")
    with kept_when_ended(config.results), only_writer(results):
        measure_grid(config)
