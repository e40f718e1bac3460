"""The story of an evaluation: what to measure, what is missing, each in a process of its own."""

import os
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from conf.cache import log_file
from conf.errors import QuantlineError, bad_input, gate_failed, world_fault
from conf.hardware import resolve_gpu
from conf.models import MADE_UP, ORIGINAL, kv_values_per_token, read_config
from conf.schema.commands import AccuracyConfig, EvaluateConfig
from conf.schema.load import GpuConfig, ScenarioConfig
from conf.terminal import say
from evaluate import limits
from evaluate.accuracy.judging import engine_findings, gate, judged_values, view_path
from evaluate.measure.environment import cell_key, environment
from evaluate.measure.gpu_watch import GpuWatch
from evaluate.measure.process import Worker
from evaluate.measure.profiles import profile_values
from evaluate.measure.progress import View
from evaluate.measure.roofline import Cost, Rates, cost, reached
from evaluate.measure.side_by_side import (
    AT_ONCE,
    CACHE,
    MOST_AT_ONCE,
    WORKING_GIB,
    cache_tokens,
    engine_options,
    groups,
    room_gib,
    variables,
)
from evaluate.measure.targets import Target, targets
from evaluate.measure.worker import Job
from evaluate.report.show.terminal_tables import (
    accuracy_table,
    profile_tables,
    speed_table,
    worst_table,
)
from evaluate.results.recorder import NARROWEST_TABLE, Recorder
from evaluate.results.row_types import Environment, Limit, Memory
from evaluate.results.row_values import SpeedValues
from evaluate.results.rows import (
    AccuracyRow,
    ProfileRow,
    QuickAccuracyRow,
    Row,
    SkippedRow,
    SpeedRow,
    current,
)
from quantize.checkpoint.manifest import is_pruned
from serve.checks import check, checkpoint_hash, quantization_hash, support_of
from serve.engine.launch import gpus_of
from serve.tensors import tensors

SHORTEST_CONTEXT = 64
NOT_LOADED: dict[str, Any] = {"startup": {}, "memory": {}, "kernels": {}, "faults": []}
REPLICAS = "data_parallel_size"
DTYPE_BYTES = {"float32": 4, "float": 4}


@dataclass
class Plan:
    """What is still to be measured on one target."""

    target: Target
    config: dict[str, Any]
    """Its config.json."""
    work: Cost | None
    """What it makes the hardware do; unknown for a mixture of experts."""
    scenarios: dict[str, ScenarioConfig]
    repeats: list[dict[str, list[int]]]
    """The repeats that are missing, by start and scenario."""
    accuracy: AccuracyConfig
    keys: dict[str, str]
    environment: Environment
    view: Path
    """Where its view of the accuracy's text goes."""
    judged: AccuracyRow | None
    """Its accuracy, where the results hold it already."""
    context: int
    """Longest context that the engine is started with."""
    options: dict[str, Any]
    """The engine's options, as asked for and as side_by_side needs them."""
    held_gib: float
    """What it holds of each GPU, about, where engines stand side by side."""

    @property
    def judges(self) -> bool:
        """Whether an engine has to read the text; the original's view serves others, too."""
        wanted = self.judged is None or self.target.name == ORIGINAL
        return self.accuracy.kind != "none" and wanted and not self.view.is_file()

    def timed_runs(self, start: int) -> int:
        return sum(len(missing) for missing in self.repeats[start].values())

    @property
    def runs(self) -> int:
        timed = sum(self.timed_runs(start) for start in range(len(self.repeats)))
        return timed + int(self.judges)


def evaluate(config: EvaluateConfig) -> None:
    """Measures everything that was asked for; one that fails does not stop the others."""
    Sweep(config).run()


class Sweep(Recorder):
    """One evaluation, by what is missing of it."""

    def __init__(self, config: EvaluateConfig) -> None:
        super().__init__(config, environment(config.gpu, config.engine))
        self.rates: Rates | None = None
        self.original_view = Path()

    def run(self) -> None:
        found = targets(self.config)
        original = next((t.folder for t in found if t.folder is not None), Path())
        if self.config.engine.url is None:
            self.rates = limits.rates(resolve_gpu(self.config.gpu), self._gpus)
        plans = [plan for target in found if (plan := self._plan(target, original)) is not None]
        taken = len(self.rows)
        if taken:
            say(f"{self.path}: {taken} runs stand there already (force=true measures them again)")
        rounds = [(start, plan) for start in range(self.config.starts) for plan in plans]
        together = groups(
            [(start, plan) for start, plan in rounds if self._has_work(plan, start)],
            self.config.side_by_side,
            lambda turn: turn[1].held_gib,
            room_gib(),
        )
        self._say_fit(together)
        runs = sum(plan.runs for plan in plans)
        with View(runs, len(together), self.config.max_spread) as view:
            view.rows = list(self.rows)
            originals = [plan.view for plan in plans if plan.target.name == ORIGINAL]
            self.original_view = originals[0] if originals else Path()
            standing = [p for p in plans if p.accuracy.kind != "none" and p.view.is_file()]
            for turns in together:
                self._measure_together(turns, view)
            for plan in standing:
                self._guarded(plan, partial(self._judged, plan, NOT_LOADED, view))
            for plan in plans:
                self._gated(plan)
        self._finish()

    @property
    def _gpus(self) -> int:
        return gpus_of(self.config.engine.options)

    def _plan(self, target: Target, original: Path) -> Plan | None:
        """What is missing of a target; none where it cannot be measured, which is noted."""
        try:
            if target.problem is not None:
                raise target.problem
            assert target.folder is not None
            if not target.dummy:
                check(target.folder, original, self.config.engine)
            self._check_kernel(target.folder)
            return self._missing(target, target.folder)
        except Exception as error:
            self.fail(target.name, "", "", error)
            return None

    def _check_kernel(self, folder: Path) -> None:
        """A format that vLLM cannot run here is said without starting it."""
        if self.config.engine.kind == "transformers" or self.config.engine.url is not None:
            return
        found = support_of(folder, GpuConfig())
        if not found.runs:
            raise bad_input(f"{found.words}; measure {found.instead} instead")

    def _missing(self, target: Target, folder: Path) -> Plan:
        config = read_config(folder)
        checkpoint = checkpoint_hash(folder)
        environment = self.environment.with_fields(
            checkpoint_sha256=checkpoint,
            quantization_sha256=quantization_hash(config),
            weights="random" if target.dummy else "trained",
            pruned=config[MADE_UP]["sparse"] if target.dummy else is_pruned(folder),
        )
        if target.dummy:
            environment.made_up = config[MADE_UP]["format"]
        asked: dict[str, Any] = dict(self.config.scenario)
        if self.config.accuracy.kind != "none":
            # How much is enough changes nothing of what is measured.
            asked[self.config.accuracy.kind] = replace(self.config.accuracy, min_recovery=None)
        longest = min(
            config["max_position_embeddings"],
            self.config.engine.max_model_len or config["max_position_embeddings"],
        )
        accuracy = self.config.accuracy
        context = self._context(longest)
        width = DTYPE_BYTES.get(str(environment.engine_options.get("dtype", "auto")), 2)
        timed, options = environment, self.config.engine.options
        if self.config.engine.kind != "transformers":  # whose cache grows as it goes
            stated = {"max_model_len": context} | environment.engine_options
            if self.config.side_by_side > 1:
                options = engine_options(options, self._cache_bytes(config, context, width))
                stated |= options
            timed = environment.with_fields(engine_options=stated)
        keys = {
            name: cell_key(
                timed if name in self.config.scenario else environment,
                (target.name, name),
                checkpoint,
                settings,
            )
            for name, settings in asked.items()
        }
        done = self._done(keys, target.name)
        scenarios = self._fitting(target, longest, keys)
        repeats = [self._repeats(done, scenarios, start) for start in range(self.config.starts)]
        cache = str(self.environment.engine_options.get("kv_cache_dtype", "auto"))
        stored = tensors(folder)
        work = cost(stored, config, width, 1 if cache.startswith("fp8") else None)
        held = sum(tensor.held_bytes(width) for tensor in stored.values()) / self._shards
        reserved = options.get(CACHE, 0)
        held += reserved if isinstance(reserved, int) else 0
        held_gib = held / 2**30 + WORKING_GIB
        view = view_path(keys.get(accuracy.kind, ""))
        standing = done.get(accuracy.kind, {}).get((0, 0))
        judged = standing if isinstance(standing, AccuracyRow) else None
        return Plan(
            target,
            config,
            work,
            scenarios,
            repeats,
            accuracy,
            keys,
            timed,
            view,
            judged,
            context,
            options,
            held_gib,
        )

    def _cache_bytes(self, config: dict[str, Any], context: int, width: int) -> int:
        """What the loads need of the KV cache on each GPU, at full width for every checkpoint, so
        that all have the same options."""
        at_once = int(self.config.engine.options.get(AT_ONCE, MOST_AT_ONCE))
        fitting = [case for case in self.config.scenario.values() if case.tokens <= context]
        tokens = cache_tokens(fitting, context, at_once)
        return -(-tokens * kv_values_per_token(config) * width // self._shards)

    @property
    def _shards(self) -> int:
        """GPUs that share the weights of one engine."""
        return gpus_of({n: v for n, v in self.config.engine.options.items() if n != REPLICAS})

    def _say_fit(self, together: list[list[tuple[int, Plan]]]) -> None:
        asked = self.config.side_by_side
        most = max((len(turns) for turns in together), default=0)
        if 0 < most < min(asked, sum(map(len, together))):
            words = "engines fit on the GPU at once" if most > 1 else "engine fits on the GPU"
            say(f"side_by_side={asked}: {most} {words}")

    def _repeats(
        self,
        done: dict[str, dict[tuple[int, int], Row]],
        scenarios: Iterable[str],
        start: int,
    ) -> dict[str, list[int]]:
        """The repeats of one start that are missing."""
        every = range(self.config.repeats)
        return {
            name: [n for n in every if (start, n) not in done.get(name, {})] for name in scenarios
        }

    def _context(self, longest: int) -> int:
        """The context that the engine is started with: what the longest fitting load needs."""
        lengths = [case.tokens for case in self.config.scenario.values() if case.tokens <= longest]
        if self.config.accuracy.kind != "none":
            accuracy = self.config.accuracy
            lengths.append(accuracy.window + accuracy.continued_tokens)
        return max([SHORTEST_CONTEXT, *lengths])

    def _done(self, keys: dict[str, str], checkpoint: str) -> dict[str, dict[tuple[int, int], Row]]:
        """The runs that count already, by start and repeat; they are shown beside the new ones."""
        found: dict[str, dict[tuple[int, int], Row]] = {}
        if self.config.force:
            return found
        names = {value: name for name, value in keys.items()}
        for row in current(self.before):
            same = names.get(row.key) == row.measure and row.checkpoint == checkpoint
            wanted = row.repeat < self.config.repeats and row.start < self.config.starts
            counts = isinstance(row, AccuracyRow) or (isinstance(row, SpeedRow) and wanted)
            if same and counts and not row.invalid:
                found.setdefault(names[row.key], {})[row.start, row.repeat] = row
        self.rows += [row for rows in found.values() for row in rows.values()]
        return found

    def _fitting(
        self, target: Target, limit_tokens: int, keys: dict[str, str]
    ) -> dict[str, ScenarioConfig]:
        """The scenarios that the model's context holds; the others are said and counted."""
        fitting = {}
        for name, scenario in self.config.scenario.items():
            if scenario.tokens <= limit_tokens:
                fitting[name] = scenario
                continue
            reason = f"{scenario.tokens} tokens are more than the model's {limit_tokens}"
            say(f"{target.name}: scenario={name} is skipped, {reason}")
            known = any(isinstance(r, SkippedRow) and r.key == keys[name] for r in self.before)
            if not known:
                self.note_row(SkippedRow, target.name, name, keys[name], reason=reason)
        return fitting

    def _has_work(self, plan: Plan, start: int) -> bool:
        """Accuracy and profiles belong to the first start."""
        first = start == 0 and (plan.judges or self.config.profile)
        return bool(plan.timed_runs(start) or first)

    def _guarded(self, plan: Plan, work: Callable[[], None]) -> None:
        """One that fails is noted, and does not stop the others."""
        try:
            work()
        except Exception as error:
            self.fail(plan.target.name, "", "", error)

    def _gated(self, plan: Plan) -> None:
        """An accuracy that stood there already is held to today's gate, too."""
        failed = gate(plan.judged.values, plan.accuracy) if plan.judged else None
        if failed is not None:
            self.note(plan.target.name, plan.accuracy.kind, failed)

    def _measure_together(self, turns: list[tuple[int, Plan]], view: View) -> None:
        """Starts the engines of these turns at once, and measures one at a time when all are
        loaded."""
        others = 0
        if self.config.engine.url is None:
            others = GpuWatch(self._gpus).processes_once_calm()
        with ExitStack() as stack:
            workers: dict[int, Worker] = {}

            def begin(place: int, start: int, plan: Plan) -> None:
                job = self._job(plan, start, others, len(turns) - 1)
                which = f", start {start + 1} of {self.config.starts}"
                which = which if self.config.starts > 1 else ""
                view.loading(
                    f"{plan.target.name}: loading in {job.engine.kind}{which} (log in {job.log})"
                )
                worker = Worker(
                    "evaluate.measure.worker", asdict(job), Path(job.log), variables(place)
                )
                workers[place] = stack.enter_context(closing(worker))

            for place, (start, plan) in enumerate(turns):
                self._guarded(plan, partial(begin, place, start, plan))
            if len(turns) > 1:
                for worker in workers.values():
                    worker.wait_until("loaded")
            for place, worker in workers.items():
                start, plan = turns[place]
                with closing(worker):
                    self._guarded(plan, partial(self._measure, plan, start, worker, view))

    def _judged(self, plan: Plan, loaded: dict[str, Any], view: View) -> None:
        """The row of an accuracy, from the view that was written or stood there already."""
        if plan.judged is not None:
            return
        assert plan.target.folder is not None
        others = None if plan.target.name == ORIGINAL else self.original_view
        judgement = judged_values(plan.view, others, plan.target.folder, plan.accuracy.seed)
        name, measure = plan.target.name, plan.accuracy.kind
        row = self.record(
            QuickAccuracyRow,
            name,
            measure,
            plan.keys[measure],
            values=judgement.values,
            settings=asdict(plan.accuracy),
            invalid=[*loaded["faults"], *judgement.invalid],
            startup=loaded["startup"],
            memory=loaded["memory"],
            kernels=loaded["kernels"],
            environment=plan.environment,
        )
        if row is not None:
            view.row(row)
        failed = gate(judgement.values, plan.accuracy)
        if failed is not None:
            self.fail(name, measure, plan.keys[measure], failed)

    def _measure(self, plan: Plan, start: int, worker: Worker, view: View) -> None:
        name = plan.target.name
        loaded = NOT_LOADED
        for event in worker.measure():
            kind = event.pop("event")
            if kind == "loaded":
                loaded = event
                for fault in event["faults"]:
                    self.fail(name, "", "", gate_failed(fault))
            elif kind == "running":
                view.running(name, event["measure"], event["repeat"])
            elif kind == "judging":
                view.judging(name, event["window"], event["windows"])
            elif kind == "judged":
                self._judged(plan, loaded, view)
            elif kind == "failed":
                error = QuantlineError(event["error"], event["code"])
                self.fail(name, event["measure"], plan.keys[event["measure"]], error)
                view.note(f"{name}: {event['measure']} failed: {event['error']}")
            elif kind == "profile":
                self._profiled(plan, event)
            else:
                self._timed(plan, start, loaded, event, view)

    def _profiled(self, plan: Plan, event: dict[str, Any]) -> None:
        name, measure = plan.target.name, event["measure"]
        key = plan.keys[measure]
        try:
            values = profile_values(Path(event["trace"]), event["steps"])
        except (OSError, ValueError, KeyError) as error:
            self.fail(name, measure, key, world_fault(f"{event['trace']}: no trace ({error})"))
            return
        self.record(ProfileRow, name, measure, key, values=values, environment=plan.environment)

    def _job(self, plan: Plan, start: int, others: int, neighbours: int) -> Job:
        assert plan.target.folder is not None
        traces = self.path.with_name(f"{self.path.stem}-traces") / plan.target.name
        profiled = self.config.profile and start == 0
        if profiled:
            traces.mkdir(parents=True, exist_ok=True)
        which = f"-start-{start + 1}" if start else ""
        return Job(
            folder=str(plan.target.folder),
            engine=replace(self.config.engine, options=plan.options),
            scenarios=plan.scenarios,
            repeats=plan.repeats[start],
            accuracy=plan.accuracy if plan.judges and start == 0 else AccuracyConfig(kind="none"),
            context=plan.context,
            vocabulary=plan.config["vocab_size"],
            dummy=plan.target.dummy,
            gpus=self._gpus,
            log=str(log_file(f"evaluate-{plan.target.name}{which}-{os.getpid()}")),
            view=str(plan.view),
            traces=str(traces.absolute()) if profiled else None,
            others=others,
            neighbours=neighbours,
        )

    def _timed(
        self, plan: Plan, start: int, loaded: dict[str, Any], event: dict[str, Any], view: View
    ) -> None:
        """Records one run: what the worker sent, what the plan knows, and the limit."""
        measure = event["measure"]
        scenario = plan.scenarios[measure]
        memory = Memory(**loaded["memory"])
        if event["peak_memory_gib"]:
            memory.peak_gib = event["peak_memory_gib"]
        if plan.work is not None:
            memory.weights_read_gib = plan.work.weight_gib
            memory.kv_token_bytes = plan.work.kv_bytes
        if memory.kv_cache_tokens is not None:
            memory.kv_cache_requests = memory.kv_cache_tokens / scenario.tokens
        limit = Limit()
        if not scenario.lasts and self.rates is not None and plan.work is not None:
            values = SpeedValues.model_construct(**event["values"])
            limit = reached(plan.work, scenario, self.rates, values)
        row = self.record(
            SpeedRow,
            plan.target.name,
            measure,
            plan.keys[measure],
            repeat=event["repeat"],
            values=event["values"],
            requests=event["requests"],
            settings={k: value for k, value in asdict(scenario).items() if value is not None},
            startup=loaded["startup"],
            memory=memory,
            kernels=loaded["kernels"],
            limit=limit,
            invalid=[*event["invalid"], *loaded["faults"]],
            environment=plan.environment,
            start=start,
        )
        if row is not None:
            view.row(row)

    def _finish(self) -> None:
        screen = Console()
        screen.width = max(screen.width, NARROWEST_TABLE)
        judged = [accuracy_table(self.rows), worst_table(self.rows)]
        if any(isinstance(row, SpeedRow) for row in self.rows):
            screen.print(speed_table(self.rows, self.config.max_spread))
        for finding in engine_findings([*current(self.before), *self.rows]):
            say(f"finding: {finding}")
        for table in [*profile_tables(self.rows), *filter(None, judged)]:
            screen.print(table)
        self.close()
