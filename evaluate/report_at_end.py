"""The report that an evaluation leaves behind, beside its results."""

from pathlib import Path

from conf.report_schema import ReportConfig
from conf.schema import EvaluateConfig
from conf.terminal import say


def report_folder(results: Path) -> Path:
    return results.with_name(f"{results.stem}-report")


def report_at_end(config: EvaluateConfig) -> None:
    """Writes the report; that it cannot be written takes nothing from what was measured."""
    results = Path(config.results).expanduser()
    if not results.is_file():
        return
    wanted = ReportConfig(
        results=[str(results)],
        out=str(report_folder(results)),
        targets=config.targets,
        mix=config.mix,
        max_spread=config.max_spread,
    )
    try:
        from evaluate.report.story import write_report

        write_report(wanted)
    except ImportError as error:
        say(f"no report: {error.name} is not installed; evaluate.report writes it anywhere else")
    except Exception as error:
        say(f"no report: {' '.join(str(error).split()) or type(error).__name__}")
