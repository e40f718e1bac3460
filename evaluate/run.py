"""Runs the plans: starts the workers of a group, and yields their events."""

import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from conf.cache import log_file
from conf.files.new_folder import new_folder
from conf.process.running import Running, start
from conf.schema.commands import AccuracyConfig, EvaluateConfig
from conf.schema.load import EngineConfig, gpus_of
from evaluate.measure.events import WORKER, EngineLoaded, Event, Job, RecordedTrial
from evaluate.measure.gpu_watch import GpuWatch
from evaluate.measure.side_by_side import fitting_groups, share_model_infos, variables
from evaluate.plan import Plan
from serve.engine.launch import environment


@dataclass(frozen=True)
class Turn:
    """One start of an engine, which measures the plan's missing runs of that start."""

    plan: Plan
    start: int
    engine: EngineConfig | None = None
    """Its engine; None for that of the evaluation."""
    log_suffix: str = ""
    """The end of its log's name, where a checkpoint is started with several engines."""


def turns_of(config: EvaluateConfig, plans: list[Plan]) -> list[list[Turn]]:
    """The starts that have missing runs, grouped into engines that are loaded together. All have
    their first start before any has its second, unless that needs more groups."""
    starts = [
        [Turn(plan, number) for plan in plans if _has_work(config, plan, number)]
        for number in range(config.starts)
    ]
    return fitting_groups(starts, config.side_by_side, lambda turn: turn.plan.held_gib)


def _has_work(config: EvaluateConfig, plan: Plan, number: int) -> bool:
    """Whether the start has missing runs. Accuracy and profiles belong to the first start."""
    first = number == 0 and (plan.judges or config.profile)
    return bool(plan.timed_runs(number) or first)


class Group:
    """Engines that are loaded together and measured one at a time."""

    def __init__(self, config: EvaluateConfig, turns: list[Turn], results: Path) -> None:
        self.config, self.turns, self.results = config, turns, results
        self.workers: dict[int, Running[Event]] = {}
        self.stack = ExitStack()
        self.limit_s: float | None = None
        """Seconds between two reports of an engine, after which it counts as hanging."""
        self.others: frozenset[int] = frozenset()
        if config.engine.url is None:
            self.others = GpuWatch(gpus_of(config.engine.options)).processes_once_calm()

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def load(self, place: int, loading: Callable[[str], None]) -> None:
        """Starts the engine at this position of the group."""
        turn = self.turns[place]
        job = self._job(turn)
        start_name = f", start {turn.start + 1} of {self.config.starts}"
        start_name = start_name if self.config.starts > 1 else ""
        loading(f"{turn.plan.name}: loading in {job.engine.kind}{start_name} (log in {job.log})")
        own_cache = variables([turn.plan.name for turn in self.turns], place)
        share_model_infos(own_cache)
        worker = start(WORKER, job, Path(job.log), environment(job.engine.options) | own_cache)
        worker.limit_s = self.limit_s
        self.workers[place] = self.stack.enter_context(closing(worker))

    def wait_until_loaded(self) -> None:
        """Waits for all engines, so that nothing is measured while another one is loading."""
        if len(self.turns) > 1:
            for worker in self.workers.values():
                worker.wait_until(EngineLoaded)

    def measure(self, place: int) -> Generator[Event, None, None]:
        """Starts the measurement of the engine at this position, and yields its events. Raises if
        it failed."""
        with closing(self.workers[place]) as worker:
            worker.begin()
            yield from worker.events()

    def _job(self, turn: Turn) -> Job:
        plan, is_first = turn.plan, turn.start == 0
        traces = self.results.with_name(f"{self.results.stem}-traces") / plan.name
        profiled = self.config.profile and is_first
        if profiled:
            self.stack.enter_context(new_folder(traces))
        log_suffix = turn.log_suffix + ("" if is_first else f"-start-{turn.start + 1}")
        return Job(
            folder=str(plan.folder),
            engine=replace(turn.engine or self.config.engine, options=plan.options),
            scenarios=plan.scenarios,
            repeats=plan.repeats[turn.start],
            accuracy=plan.accuracy if plan.judges and is_first else AccuracyConfig(kind="none"),
            context=plan.context,
            vocabulary=plan.vocabulary,
            dummy=plan.target.dummy,
            gpus=gpus_of(self.config.engine.options),
            log=str(log_file(f"evaluate-{plan.name}{log_suffix}-{os.getpid()}")),
            view=str(plan.view),
            traces=str(traces.absolute()) if profiled else None,
            others=sorted(self.others),
            trials={
                name: [
                    RecordedTrial(row.repeat, row.trial.rate, row.trial.meets, row.trial.of_curve)
                    for row in rows
                    if row.start == turn.start
                ]
                for name, rows in plan.trials.items()
            },
            neighbours=len(self.turns) - 1,
        )
