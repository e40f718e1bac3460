"""`python -m evaluate scenario=NAME`: measure the checkpoints of a model beside the original."""

from pathlib import Path

from conf.app import run
from conf.compose import Command
from conf.errors import GATE_FAILED, QuantlineError
from conf.schema import LM_EVAL, EvaluateConfig

COMMAND = Command(
    "evaluate",
    EvaluateConfig,
    (
        "python -m evaluate scenario=high_concurrency",
        "python -m evaluate 'scenario=[interactive,base]' accuracy=quick",
        "python -m evaluate model=tiny checkpoints=[/models/mine] results=mine.jsonl",
    ),
)


def main(config: EvaluateConfig) -> None:
    from evaluate.cpu_note import explain_slower_on_cpu
    from evaluate.report_at_end import report_at_end

    before = _size(config)
    failure: QuantlineError | None = None
    try:
        _measure(config)
    except QuantlineError as error:
        if error.exit_code != GATE_FAILED and _size(config) == before:
            raise  # nothing was measured
        failure = error
    report_at_end(config)
    explain_slower_on_cpu(config)
    if failure is not None:
        raise failure


def _size(config: EvaluateConfig) -> int:
    results = Path(config.results).expanduser()
    return results.stat().st_size if results.is_file() else 0


def _measure(config: EvaluateConfig) -> None:
    from evaluate.pipeline import evaluate
    from evaluate.sensitivity import measure_sensitivity
    from evaluate.tasks.survey import measure_tasks

    if config.accuracy.kind == "sensitivity":
        measure_sensitivity(config)
    elif config.accuracy.kind == LM_EVAL:
        measure_tasks(config)
    else:
        evaluate(config)


if __name__ == "__main__":
    run(COMMAND, main)
