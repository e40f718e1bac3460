"""The results of one run: what stood in the file before it, what it adds, and what failed."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from conf.errors import GATE_FAILED, WORLD_FAULT, QuantlineError, unknown, world_fault
from conf.schema.commands import EvaluateConfig
from conf.terminal import say
from evaluate.measure.environment import environment
from evaluate.results.rows import Row, append, current, kept, misfit, read

NARROWEST_TABLE = 140  # columns; names cut short would all look alike


class Ledger:
    """The file of results and what is known of the machine. One failure does not stop a run."""

    def __init__(self, config: EvaluateConfig) -> None:
        self.config = config
        self.path = Path(config.results).expanduser()
        self.facts: dict[str, Any] = environment(config.gpu, config.engine)
        self.before, faults = read(self.path)
        for fault in faults:
            say(f"{fault}; the line is left alone")
        self._check_mix()
        self.generations = {row.key: row.generation for row in current(self.before)}
        self.rows: list[Row] = []
        self.failures: list[QuantlineError] = []

    def _check_mix(self) -> None:
        """Before anything is measured: a report comes last, and would only then refuse it. One
        scenario with several lengths has names that begin with its own."""
        known = {*self.config.scenario, *(row.measure for row in self.before if row.measure)}
        for name in self.config.mix:
            if name.partition(" ")[0] not in known:
                raise unknown(f"mix.{name}", name, known)

    def _row(self, checkpoint: str, measure: str, cell: str, kind: str, reason: str = "") -> Row:
        return Row(
            kind=kind,
            model=str(self.config.model.name),
            checkpoint=checkpoint,
            measure=measure,
            repeat=0,
            key=cell,
            reason=reason,
            environment=self.facts,
            generation=self._generation(cell),
            time=datetime.now(UTC).isoformat(timespec="seconds"),
        )

    def _generation(self, cell: str) -> int:
        if self.config.force:
            return self.generations.get(cell, -1) + 1
        return self.generations.get(cell, 0)

    def _keep(self, row: Row) -> None:
        """In the file, and in the tables at the end. A row that could not be read again is a
        failure of its own: it would be measured again and again."""
        wrong = misfit(kept(row))
        if wrong:
            error = world_fault(f"the run cannot be kept: {wrong}")
            self._fail(row.checkpoint, row.measure, row.key, error)
            return
        append(self.path, row)
        self.rows.append(row)

    def _fail(self, checkpoint: str, measure: str, cell: str, error: Exception) -> None:
        """Notes a failure, in the results too, and goes on."""
        failure = self._note(checkpoint, measure, error)
        row = self._row(checkpoint, measure, cell, "failed", reason=str(error))
        if failure.exit_code == GATE_FAILED:
            row.invalid = [str(error)]
        append(self.path, row)

    def _note(self, checkpoint: str, measure: str, error: Exception) -> QuantlineError:
        where = f"{checkpoint}: {measure}: " if measure else f"{checkpoint}: "
        code = error.exit_code if isinstance(error, QuantlineError) else WORLD_FAULT
        self.failures.append(QuantlineError(where + str(error), code))
        return self.failures[-1]

    def _close(self) -> None:
        """Says how much there is, and raises what failed."""
        say(f"{self.path}: {len(self.rows)} runs")
        if self.failures:
            for failure in self.failures[:-1]:
                say(f"failed: {failure}")
            codes = [failure.exit_code for failure in self.failures]
            raise QuantlineError(str(self.failures[-1]), min(codes))
