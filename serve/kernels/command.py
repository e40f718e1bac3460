"""The command `kernels`: the stored plans as a table."""

from conf.compose import Command
from conf.schema.kernels import PlansConfig

COMMAND = Command(
    "kernels",
    PlansConfig,
    (
        "python -m serve.kernels",
        "python -m serve.kernels layers=int8",
        "python -m serve.kernels layers=24576x4096 tokens=[1,16,64]",
    ),
    module="serve.kernels",
)


def main(config: PlansConfig) -> None:
    from serve.kernels.table import show_plans

    show_plans(config)
