"""Records the events of workers: each becomes a row, a failure, or a line on the screen."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from conf.errors import environment_failure, gate_failed
from conf.models import ORIGINAL
from conf.schema.load import ScenarioConfig
from evaluate.accuracy.judging import gate, judged_values
from evaluate.measure.events import (
    EngineLoaded,
    Event,
    MeasureFailed,
    ProfileWritten,
    RunMeasured,
    RunStarted,
    TextRead,
    TrialDone,
    WindowStarted,
)
from evaluate.measure.profiles import profile_values
from evaluate.measure.progress import ProgressDisplay
from evaluate.measure.roofline import Rates, reached
from evaluate.plan import Plan
from evaluate.results.recorder import Recorder
from evaluate.results.row_types import Limit
from evaluate.results.row_values import SpeedValues
from evaluate.results.rows import ProfileRow, QuickAccuracyRow, Row, SpeedRow, TrialRow
from evaluate.run import Turn

NOT_LOADED = EngineLoaded()


@dataclass
class EventRecorder:
    """Records events in the results and shows them on the screen."""

    recorder: Recorder
    display: ProgressDisplay
    rates: Rates | None
    """The rates of this machine; None for a remote server."""
    original_view: Path | None
    """The original's view of the text, which others are compared with."""

    @contextmanager
    def guarded(self, plan: Plan) -> Iterator[None]:
        """Records the failure of a target, so that it does not stop the others."""
        try:
            yield
        except Exception as error:
            self.recorder.fail(plan.name, "", "", error)

    def record_events(self, turn: Turn, events: Iterator[Event]) -> None:
        """Records all events of one worker."""
        plan, loaded = turn.plan, NOT_LOADED
        for event in events:
            match event:
                case EngineLoaded():
                    loaded = event
                    for fault in event.faults:
                        self.recorder.fail(plan.name, "", "", gate_failed(fault))
                case RunStarted():
                    self.display.running(plan.name, event.measure, event.repeat)
                case RunMeasured():
                    self._show(self.speed_row(turn, loaded, event))
                case TrialDone():
                    self._trial_row(turn, loaded, event)
                case WindowStarted():
                    self.display.judging(plan.name, event.window, event.windows)
                case TextRead():
                    self.judge(plan, loaded)
                case ProfileWritten():
                    self._profile(plan, event)
                case MeasureFailed():
                    key = plan.keys[event.measure]
                    self.recorder.fail(plan.name, event.measure, key, event.failure.error)
                    reason = event.failure.message
                    self.display.note(f"{plan.name}: {event.measure} failed: {reason}")

    def speed_row(self, turn: Turn, loaded: EngineLoaded, event: RunMeasured) -> Row | None:
        """Records the row of one run, from the worker's event, the plan and the limit."""
        plan, scenario = turn.plan, turn.plan.scenarios[event.measure]
        fields = _run_fields(turn, loaded, event, scenario)
        memory = dict(loaded.memory)
        if event.peak_memory_gib:
            memory["peak_gib"] = event.peak_memory_gib
        if plan.work is not None:
            memory["weights_read_gib"] = plan.work.weight_gib
            memory["kv_token_bytes"] = plan.work.kv_bytes
        if "kv_cache_tokens" in memory and scenario.traffic is None:
            memory["kv_cache_requests"] = memory["kv_cache_tokens"] / scenario.tokens
        return self.recorder.record(
            SpeedRow,
            plan.name,
            event.measure,
            plan.keys[event.measure],
            **fields,
            memory=memory,
            limit=self._limit(plan, scenario, fields["values"]),
        )

    def _trial_row(self, turn: Turn, loaded: EngineLoaded, event: TrialDone) -> None:
        """Records one trial of a capacity search."""
        plan, scenario = turn.plan, event.scenario
        fields = _run_fields(turn, loaded, event, scenario)
        if event.of_curve:
            fields["settings"]["curve"] = True
        fields["requests"]["slowest_s"] = event.slowest_s
        self.recorder.record(
            TrialRow,
            plan.name,
            event.measure,
            plan.keys[event.measure],
            **fields,
            memory=loaded.memory,
        )
        self.display.note(
            f"{plan.name}: {event.measure}, {scenario.rate:.4g} requests/s "
            f"{_verdict(event.meets, fields['values'], event.error)}"
        )

    def _limit(
        self, plan: Plan, scenario: ScenarioConfig, values: dict[str, float]
    ) -> Limit | None:
        """The share of the hardware's limit that the run reached. None for values that are not
        valid in a row; the recorder refuses those."""
        if scenario.is_sustained or self.rates is None or plan.work is None:
            return Limit()
        try:
            return reached(plan.work, scenario, self.rates, SpeedValues(**values))
        except ValidationError:
            return None

    def judge(self, plan: Plan, loaded: EngineLoaded = NOT_LOADED) -> None:
        """Records the accuracy row, from the view that was just written or existed before."""
        if plan.judged is not None:
            return
        original = None if plan.name == ORIGINAL else self.original_view or Path()
        judgement = judged_values(plan.view, original, plan.folder, plan.accuracy.seed)
        key = plan.keys[plan.accuracy.kind]
        row = self.recorder.record(
            QuickAccuracyRow,
            plan.name,
            plan.accuracy.kind,
            key,
            values=judgement.values,
            settings=asdict(plan.accuracy),
            startup=loaded.startup,
            memory=dict(loaded.memory),
            kernels=loaded.kernels,
            layer_kernels=[kernels.content for kernels in loaded.layer_kernels],
            invalid=[*loaded.faults, *judgement.invalid],
            environment=plan.environment,
        )
        self._show(row)
        failed = gate(judgement.values, plan.accuracy)
        if failed is not None:
            self.recorder.fail(plan.name, plan.accuracy.kind, key, failed)

    def hold_to_gate(self, plan: Plan) -> None:
        """Applies the gate to an accuracy that was recorded earlier, too."""
        failed = gate(plan.judged.values, plan.accuracy) if plan.judged else None
        if failed is not None:
            self.recorder.note(plan.name, plan.accuracy.kind, failed)

    def _profile(self, plan: Plan, event: ProfileWritten) -> None:
        key = plan.keys[event.measure]
        try:
            values = profile_values(Path(event.trace), event.steps)
        except (OSError, ValueError, KeyError) as error:
            fault = environment_failure(f"{event.trace}: is not a trace ({error})")
            self.recorder.fail(plan.name, event.measure, key, fault)
            return
        environment = plan.environment
        self.recorder.record(
            ProfileRow, plan.name, event.measure, key, values=values, environment=environment
        )

    def _show(self, row: Row | None) -> None:
        if row is not None:
            self.display.row(row)


def _run_fields(
    turn: Turn, loaded: EngineLoaded, event: RunMeasured | TrialDone, scenario: ScenarioConfig
) -> dict[str, Any]:
    """What the rows of a run and of a trial have in common."""
    values, not_finite = finite(event.values)
    return {
        "start": turn.start,
        "repeat": event.repeat,
        "values": values,
        "requests": asdict(event.requests),
        "settings": scenario.recorded(),
        "startup": loaded.startup,
        "kernels": loaded.kernels,
        "layer_kernels": [kernels.content for kernels in loaded.layer_kernels],
        "invalid": [*event.invalid, *loaded.faults, *not_finite],
        "environment": turn.plan.environment,
    }


def finite(values: dict[str, float]) -> tuple[dict[str, float], list[str]]:
    """The finite values, and a message for each NaN or infinite one."""
    not_finite = [name for name, value in values.items() if not math.isfinite(value)]
    finite_values = {name: value for name, value in values.items() if name not in not_finite}
    return finite_values, [f"{name} is no number" for name in not_finite]


def _verdict(meets: bool, values: Mapping[str, float], error: str) -> str:
    """Whether a trial meets its targets, the share of requests in time, and what the others
    missed."""
    share = f"{values.get('good_share', 0.0):.2%} in time"
    missed = [
        f"{count:.0f} {words}"
        for name, words in (
            ("late_first_tokens", "first tokens too late"),
            ("late_further_tokens", "answers too slow"),
            ("failed_requests", f"failed, the first with: {error}" if error else "failed"),
        )
        if (count := values.get(name))
    ]
    if meets:
        return f"meets the targets ({share})"
    return f"misses the targets (at most {'; '.join([share, *missed])})"
