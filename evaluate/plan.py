"""Plans an evaluation: for each target, the measurements that the results do not have yet."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conf.checkpoint_hash import checkpoint_hash
from conf.files.json_files import JsonObject
from conf.models import (
    MADE_UP,
    ORIGINAL,
    MadeUpWeights,
    made_up_weights,
    read_config,
    required_int,
)
from conf.schema.commands import AccuracyConfig, EvaluateConfig
from conf.schema.load import EngineOptions, ScenarioConfig
from evaluate.measure.engine_memory import EngineMemory
from evaluate.measure.environment import cell_key
from evaluate.measure.roofline import Cost, cost
from evaluate.measure.side_by_side import (
    AT_ONCE,
    MOST_AT_ONCE,
    cache_tokens,
    engine_options,
)
from evaluate.measure.targets import Target
from evaluate.measure.text_view import view_path
from evaluate.missing import missing_repeats, trials_of
from evaluate.results.row_types import Environment
from evaluate.results.rows import AccuracyRow, Row, TrialRow, current, of_card
from quantize.checkpoint.manifest import is_pruned
from serve.checks import quantization_hash
from serve.engine.sparsity import is_sparse24
from serve.tensors import Tensor, tensors

SHORTEST_CONTEXT = 64


@dataclass(frozen=True)
class Inspected:
    """A loadable target, with the facts from its files."""

    target: Target
    folder: Path
    config: JsonObject
    """Its config.json."""
    sha256: str
    is_pruned: bool | None
    """None if it is not known."""
    tensors: dict[str, Tensor]
    made_up: MadeUpWeights | None = None
    """How its random weights are made; None for trained weights."""

    @property
    def runs_sparse(self) -> bool:
        """Whether an engine finds its weights to be 2:4, whoever made them."""
        return is_sparse24(self.folder) if self.is_pruned is None else self.is_pruned


def inspect(target: Target, folder: Path) -> Inspected:
    """Reads the facts of a target that planning needs."""
    config = read_config(folder)
    made_up = made_up_weights(config.get(MADE_UP)) if target.dummy else None
    return Inspected(
        target=target,
        folder=folder,
        config=config,
        sha256=checkpoint_hash(folder),
        is_pruned=made_up.sparse if made_up else is_pruned(folder),
        tensors=tensors(folder),
        made_up=made_up,
    )


@dataclass(frozen=True)
class Plan:
    """The missing measurements of one target."""

    target: Target
    folder: Path
    vocabulary: int
    work: Cost | None
    """Its bytes and operations; None for a mixture that does not say how many experts a token
    visits."""
    scenarios: dict[str, ScenarioConfig]
    """The scenarios that fit into the model's context."""
    skipped: dict[str, str]
    """The other scenarios, with the reason."""
    repeats: list[dict[str, list[int]]]
    """The missing repeats, by start and scenario."""
    trials: dict[str, list[TrialRow]]
    """The valid trials of capacity searches that the results have of this GPU, by scenario."""
    accuracy: AccuracyConfig
    keys: dict[str, str]
    """The key of the rows, by scenario and for the accuracy."""
    environment: Environment
    """The environment of its rows."""
    view: Path
    """The file for its view of the accuracy text."""
    has_view: bool
    """Whether that view exists from an earlier evaluation."""
    recorded: list[Row]
    """The runs that the results have already."""
    judged: AccuracyRow | None
    """Its accuracy row, if the results have one already."""
    context: int
    """Longest context that the engine is started with."""
    options: EngineOptions
    """The engine's options: the user's, and those that side_by_side needs."""
    held_gib: float
    """Approximate memory that it needs on each GPU, for engines that are loaded together."""

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def judges(self) -> bool:
        """Whether an engine has to read the text. Other checkpoints need the original's view,
        too."""
        needs_view = self.judged is None or self.name == ORIGINAL
        return self.accuracy.kind != "none" and needs_view and not self.has_view

    def timed_runs(self, start: int) -> int:
        return sum(len(missing) for missing in self.repeats[start].values())

    @property
    def runs(self) -> int:
        timed = sum(self.timed_runs(start) for start in range(len(self.repeats)))
        return timed + int(self.judges)


@dataclass(frozen=True)
class Planner:
    """Plans each target by the same options, environment and results. Starts, writes and prints
    nothing."""

    config: EvaluateConfig
    environment: Environment
    before: list[Row]
    """All rows of the results file."""
    is_view_stored: Callable[[Path], bool] = Path.is_file
    """Whether the file of a view exists."""

    def plan(self, inspected: Inspected) -> Plan:
        config, target = inspected.config, inspected.target
        trained_context = required_int(config, "max_position_embeddings")
        longest = min(trained_context, self.config.engine.max_model_len or trained_context)
        context = self._context(longest)
        options = self._options(config, context)
        environment = self._environment(inspected)
        timed = self._timed_environment(environment, context, options)
        keys = self._keys(inspected, environment, timed)
        recorded = self._recorded_rows(keys, target.name)
        skipped = {
            name: f"{scenario.tokens} tokens are more than the model's {longest}"
            for name, scenario in self.config.scenario.items()
            if scenario.tokens > longest
        }
        scenarios = {
            name: scenario for name, scenario in self.config.scenario.items() if name not in skipped
        }
        before = [] if self.config.force else current(self.before)
        trials = {name: trials_of(before, keys[name], target.name) for name in scenarios}
        recorded_of = {name: [r for r in recorded if r.measure == name] for name in scenarios}
        kind = self.config.accuracy.kind
        results = "" if target.name == ORIGINAL else self.config.results
        view = view_path(keys.get(kind, ""), results)
        accuracies = [
            row for row in recorded if isinstance(row, AccuracyRow) and row.measure == kind
        ]
        cache = str(self.environment.engine_options.get("kv_cache_dtype", "auto"))
        return Plan(
            target=target,
            folder=inspected.folder,
            vocabulary=required_int(config, "vocab_size"),
            work=cost(
                inspected.tensors,
                config,
                self._memory.width,
                1 if cache.startswith("fp8") else None,
            ),
            scenarios=scenarios,
            skipped=skipped,
            repeats=[
                {
                    name: missing_repeats(
                        start, self.config.repeats, recorded_of[name], trials[name], scenario
                    )
                    for name, scenario in scenarios.items()
                }
                for start in range(self.config.starts)
            ],
            trials={name: of_card(rows, self.environment.card) for name, rows in trials.items()},
            accuracy=self.config.accuracy,
            keys=keys,
            environment=timed,
            view=view,
            has_view=self.is_view_stored(view),
            recorded=recorded,
            judged=accuracies[-1] if accuracies else None,
            context=context,
            options=options,
            held_gib=self._memory.held_gib(
                config, inspected.tensors, inspected.runs_sparse, options
            ),
        )

    def _recorded_rows(self, keys: dict[str, str], checkpoint: str) -> list[Row]:
        """The valid runs of earlier evaluations: the last of each start and repeat."""
        if self.config.force:
            return []
        names = {value: name for name, value in keys.items()}
        last: dict[tuple[str, int, int], Row] = {}
        for row in current(self.before):
            same = names.get(row.key) == row.measure and row.checkpoint == checkpoint
            is_requested = row.repeat < self.config.repeats and row.start < self.config.starts
            may_count = row.kind == "accuracy" or is_requested
            if row.kind in ("speed", "accuracy") and same and may_count and not row.invalid:
                last[row.measure, row.start, row.repeat] = row
        return list(last.values())

    def _keys(
        self, inspected: Inspected, environment: Environment, timed: Environment
    ) -> dict[str, str]:
        def key_of(name: str, environment: Environment, settings: Any) -> str:
            return cell_key(environment, (inspected.target.name, name), inspected.sha256, settings)

        keys = {
            name: key_of(name, timed, scenario.identity())
            for name, scenario in self.config.scenario.items()
        }
        accuracy = self.config.accuracy
        if accuracy.kind != "none":
            # min_recovery does not change the measurement.
            settings = replace(accuracy, min_recovery=None).identity()
            keys[accuracy.kind] = key_of(accuracy.kind, environment, settings)
        return keys

    def _environment(self, inspected: Inspected) -> Environment:
        environment = self.environment.with_fields(
            checkpoint_sha256=inspected.sha256,
            quantization_sha256=quantization_hash(inspected.config),
            weights="random" if inspected.target.dummy else "trained",
            pruned=inspected.is_pruned,
        )
        if inspected.made_up:
            environment = environment.with_fields(made_up=inspected.made_up.format)
        return environment

    def _timed_environment(
        self, environment: Environment, context: int, options: EngineOptions
    ) -> Environment:
        """The environment with the options that only affect speed."""
        if self.config.engine.kind == "transformers":  # its KV cache grows on demand
            return environment
        engine_options = {"max_model_len": context} | environment.engine_options
        if self.config.side_by_side > 1:
            engine_options |= options
        return environment.with_fields(engine_options=engine_options)

    def _options(self, config: JsonObject, context: int) -> EngineOptions:
        options = self.config.engine.options
        if self.config.engine.kind == "transformers" or self.config.side_by_side == 1:
            return options
        return engine_options(options, self._cache_bytes(config, context))

    def _cache_bytes(self, config: JsonObject, context: int) -> int:
        """Bytes of KV cache that the workloads need on each GPU."""
        at_once = int(self.config.engine.options.get(AT_ONCE, MOST_AT_ONCE))
        fitting = [
            scenario for scenario in self.config.scenario.values() if scenario.tokens <= context
        ]
        return self._memory.cache_bytes(config, cache_tokens(fitting, context, at_once))

    def _context(self, longest: int) -> int:
        """The context length of the engine: that of the longest workload that fits."""
        lengths = [
            scenario.tokens
            for scenario in self.config.scenario.values()
            if scenario.tokens <= longest
        ]
        accuracy = self.config.accuracy
        if accuracy.kind != "none":
            lengths.append(accuracy.window + accuracy.continued_tokens)
        return max([SHORTEST_CONTEXT, *lengths])

    @property
    def _memory(self) -> EngineMemory:
        return EngineMemory(self.config.engine, self.environment.engine_options)
