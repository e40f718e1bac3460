"""The command `evaluate.compare`: two results files, or two checkpoints."""

from conf.compose import Command
from conf.schema.report import CompareConfig

COMMAND = Command(
    "compare",
    CompareConfig,
    (
        "python -m evaluate.compare results=[before.jsonl,after.jsonl]",
        "python -m evaluate.compare results=[a.jsonl] checkpoints=[original,w8a8_smooth_gptq]",
        "python -m evaluate.compare results=[old.jsonl,new.jsonl] min_ratio=0.98 min_quality=0.99",
    ),
    module="evaluate.compare",
)


def main(config: CompareConfig) -> None:
    from evaluate.compare.comparing import compare

    compare(config)
