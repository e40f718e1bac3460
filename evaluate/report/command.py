"""The command `evaluate.report`: what to serve, in a page, in Markdown and for programs."""

from conf.compose import Command
from conf.errors import bad_input
from conf.schema.report import ANSWER_TEXT, ReportConfig
from conf.unused.commands import REPORT

COMMAND = Command(
    "report",
    ReportConfig,
    (
        "python -m evaluate.report results=[results.jsonl] out=report",
        "python -m evaluate.report targets.tpot_ms=20 mix.interactive=0.6 mix.base=0.4",
        "python -m evaluate.report --answer",
    ),
    module="evaluate.report",
    unused=REPORT,
)


FLAG = "--answer"


def with_answer_option(arguments: list[str]) -> list[str]:
    """The arguments with `--answer` and `--answer=json` as the option that they stand for. Another
    form than these is refused as a value of that option is."""
    return [_option(argument) for argument in arguments]


def _option(argument: str) -> str:
    flag, _, form = argument.partition("=")
    return f"answer={form or ANSWER_TEXT}" if flag == FLAG else argument


def main(config: ReportConfig) -> None:
    import gc

    gc.disable()  # collecting garbage among all rows takes a tenth of the few seconds
    if config.answer is not None:
        from evaluate.report.machine.answering import print_answer

        faults = print_answer(config)
    else:
        from evaluate.report.writing import write_report

        faults = write_report(config).faults
    if faults:
        raise bad_input(f"{len(faults)} lines were left out, the first: {faults[0]}")
