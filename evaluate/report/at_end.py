"""Writes a report at the end of an evaluation, next to its results."""

from pathlib import Path

from conf.errors import ENVIRONMENT_FAILURE, QuantlineError
from conf.schema.commands import EvaluateConfig
from conf.schema.report import ReportConfig, report_command


def report_folder(results: Path) -> Path:
    return results.with_name(f"{results.stem}-report")


def report_at_end(config: EvaluateConfig) -> QuantlineError | None:
    """Writes the report. If that fails, returns an error with the reason and the command that
    writes it. The results are not affected."""
    results = Path(config.results).expanduser()
    if not results.is_file():
        return None
    report = ReportConfig(
        results=[str(results)],
        out=str(report_folder(results)),
        targets=config.targets,
        mix=config.mix,
        max_spread=config.max_spread,
        gpu=config.gpu,
    )
    try:
        from evaluate.report.writing import write_report

        write_report(report)
    except ImportError as error:
        return _no_report(report, f"{error.name} is not installed", ENVIRONMENT_FAILURE)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        code = error.exit_code if isinstance(error, QuantlineError) else ENVIRONMENT_FAILURE
        return _no_report(report, reason, code)
    return None


def _no_report(report: ReportConfig, reason: str, code: int) -> QuantlineError:
    command = report_command(report)
    return QuantlineError(
        f"no report: {reason}. All runs are kept in {report.results[0]}; {command} writes it", code
    )
