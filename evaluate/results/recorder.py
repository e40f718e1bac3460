"""Records the results of one evaluation: earlier rows, new rows and failures."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from conf.errors import ENVIRONMENT_FAILURE, GATE_FAILED, QuantlineError, environment_failure
from conf.schema.commands import EvaluateConfig
from conf.terminal import say
from evaluate.results.mix_check import check_mix, scenario_of
from evaluate.results.results_file import append, first_fault, read, row_of
from evaluate.results.row_types import Environment
from evaluate.results.rows import FailedRow, Row, RowType, current, line_content

NARROWEST_TABLE = 140  # columns


def earlier_rows(config: EvaluateConfig) -> list[Row]:
    """The rows of earlier evaluations. A job of a sweep has those of the sweep, too."""
    rows: list[Row] = []
    for name in [*config.results_before, config.results]:
        file_rows, faults = read(Path(name).expanduser())
        rows += file_rows
        for fault in faults:
            say(f"{fault}; the line is ignored")
    return rows


def results_home(config: EvaluateConfig) -> Path:
    """The results file that samples and traces stand beside: the sweep's, for one of its jobs."""
    return Path((*config.results_before, config.results)[0]).expanduser()


class Recorder:
    """Writes rows and failures to the results file. One failure does not stop an evaluation."""

    def __init__(self, config: EvaluateConfig, environment: Environment) -> None:
        self.config, self.environment = config, environment
        self.path = Path(config.results).expanduser()
        self.before = earlier_rows(config)
        self._check_mix()
        self.generations = {row.key: row.generation for row in current(self.before)}
        self.rows: list[Row] = []
        """Rows for the tables at the end: earlier ones and new ones."""
        self.failures: list[QuantlineError] = []

    def use(self, config: EvaluateConfig, environment: Environment) -> None:
        """Sets the config and environment of further rows."""
        self.config, self.environment = config, environment

    def _check_mix(self) -> None:
        """Checks the mix before anything is measured: the report would refuse it only at the
        end."""
        mix = self.config.mix
        known_names = {*self.config.scenario, *(row.measure for row in self.before if row.measure)}
        check_mix(mix, known_names | {name for name in mix if scenario_of(name) in known_names})

    def record(
        self, row_type: type[RowType], checkpoint: str, measure: str, key: str, **fields: Any
    ) -> RowType | None:
        """Writes a row, which the tables at the end also show. A row that could not be read back
        is recorded as a failure: otherwise it would be measured again each time."""
        try:
            row = self._row(row_type, checkpoint, measure, key, **fields)
            row_of(line_content(row))
        except ValueError as error:
            fault = first_fault(error) if isinstance(error, ValidationError) else str(error)
            self.fail(
                checkpoint,
                measure,
                key,
                environment_failure(f"the run cannot be recorded: {fault}"),
            )
            return None
        append(self.path, row)
        self.rows.append(row)
        return row

    def _row(
        self, row_type: type[RowType], checkpoint: str, measure: str, key: str, **fields: Any
    ) -> RowType:
        content = {
            "model": str(self.config.model.name),
            "checkpoint": checkpoint,
            "measure": measure,
            "repeat": 0,
            "key": key,
            "environment": self.environment,
            "generation": self._generation(key),
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        return row_type.model_validate(content | fields)

    def _generation(self, key: str) -> int:
        if self.config.force:
            return self.generations.get(key, -1) + 1
        return self.generations.get(key, 0)

    def note_row(
        self, row_type: type[Row], checkpoint: str, measure: str, key: str, **fields: Any
    ) -> None:
        """Writes a row that says why there is no run. No table shows it."""
        append(self.path, self._row(row_type, checkpoint, measure, key, **fields))

    def fail(self, checkpoint: str, measure: str, key: str, error: Exception) -> None:
        """Records a failure, also in the results file, and goes on."""
        failure = self.note(checkpoint, measure, error)
        code = failure.exit_code
        invalid = [str(error)] if code == GATE_FAILED else []
        fields = {"reason": str(error), "invalid": invalid, "values": {"exit_code": code}}
        self.note_row(FailedRow, checkpoint, measure, key, **fields)

    def note(self, checkpoint: str, measure: str, error: Exception) -> QuantlineError:
        """Records a failure that is in the results file already."""
        prefix = f"{checkpoint}: {measure}: " if measure else f"{checkpoint}: "
        code = error.exit_code if isinstance(error, QuantlineError) else ENVIRONMENT_FAILURE
        self.failures.append(QuantlineError(prefix + str(error), code))
        return self.failures[-1]

    def close(self) -> None:
        """Prints the number of runs, and raises the last failure."""
        say(f"{self.path}: {len(self.rows)} runs")
        if self.failures:
            for failure in self.failures[:-1]:
                say(f"failed: {failure}")
            codes = [failure.exit_code for failure in self.failures]
            raise QuantlineError(str(self.failures[-1]), min(codes))
