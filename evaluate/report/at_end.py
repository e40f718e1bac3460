"""The report that an evaluation leaves behind, beside its results."""

import shlex
from pathlib import Path

from conf.errors import WORLD_FAULT, QuantlineError
from conf.schema.commands import EvaluateConfig
from conf.schema.report import ReportConfig, changed_options


def report_folder(results: Path) -> Path:
    return results.with_name(f"{results.stem}-report")


def report_at_end(config: EvaluateConfig) -> QuantlineError | None:
    """Writes the report. Where it cannot be written, says why and how to write it again; that
    takes nothing from what was measured."""
    results = Path(config.results).expanduser()
    if not results.is_file():
        return None
    wanted = ReportConfig(
        results=[str(results)],
        out=str(report_folder(results)),
        targets=config.targets,
        mix=config.mix,
        max_spread=config.max_spread,
    )
    try:
        from evaluate.report.writing import write_report

        write_report(wanted)
    except ImportError as error:
        return _no_report(wanted, f"{error.name} is not installed", WORLD_FAULT)
    except Exception as error:
        words = " ".join(str(error).split()) or type(error).__name__
        code = error.exit_code if isinstance(error, QuantlineError) else WORLD_FAULT
        return _no_report(wanted, words, code)
    return None


def _no_report(wanted: ReportConfig, words: str, code: int) -> QuantlineError:
    options = [f"results=[{wanted.results[0]}]", f"out={wanted.out}", *changed_options(wanted)]
    command = shlex.join(["python", "-m", "evaluate.report", *options])
    return QuantlineError(
        f"no report: {words}. All runs are kept in {wanted.results[0]}; {command} writes it", code
    )
