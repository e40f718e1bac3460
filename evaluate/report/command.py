"""The command `evaluate.report`: what to serve, in Markdown and a page."""

from conf.compose import Command
from conf.errors import bad_input
from conf.schema.report import ReportConfig

COMMAND = Command(
    "report",
    ReportConfig,
    (
        "python -m evaluate.report results=[results.jsonl] out=report",
        "python -m evaluate.report targets.tpot_ms=20 targets.min_recovery=0.99",
        "python -m evaluate.report mix.interactive=0.6 mix.high_concurrency=0.4",
    ),
    module="evaluate.report",
)


def main(config: ReportConfig) -> None:
    import gc

    from evaluate.report.writing import write_report

    gc.disable()  # collecting garbage among all rows takes a tenth of the few seconds
    report = write_report(config)
    if report.faults:
        raise bad_input(f"{len(report.faults)} lines were left out, the first: {report.faults[0]}")
