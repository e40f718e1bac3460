"""The checkpoint that is tuned, as an evaluation takes it, and the facts that settings need."""

from dataclasses import dataclass
from pathlib import Path

from conf.errors import bad_input, unknown
from conf.formats.quant_args import QuantizationConfig
from conf.formats.quantization_config import quantization_of
from conf.formats.registry import format_of
from conf.models import ORIGINAL, is_hub_id
from conf.override_text import command_text, option_text
from conf.schema.commands import AccuracyConfig, EvaluateConfig
from conf.schema.model import ModelConfig
from conf.schema.tune import TuneConfig
from evaluate.measure.roofline import EXPERTS
from evaluate.measure.targets import (
    Target,
    check_checkpoint,
    check_known_recipe,
    first_folder,
    known_recipes,
    targets,
)
from evaluate.measure.traffic.resolving import read_traffic, with_traffic
from evaluate.measure.traffic.times import say_unused
from evaluate.pipeline import check_memory, checked_folder
from evaluate.plan import Inspected, inspect
from evaluate.tune.settings import Need
from evaluate.tune.space import Situation, excluded_settings, workload_sizes
from quantize.checkpoint.manifest import published
from serve.engine.launch import (
    checkpoint_folder,
    known_options,
    model_folder,
    naming,
    on_cpu,
    options,
)


@dataclass(frozen=True)
class TunedCheckpoint:
    """The checkpoint with the evaluation that measures it."""

    config: EvaluateConfig
    original: Path
    """The original's folder, or its own."""
    inspected: Inspected

    @property
    def name(self) -> str:
        return self.inspected.target.name


def tuned_checkpoint(config: TuneConfig) -> TunedCheckpoint:
    """Finds and checks the checkpoint. Raises where it cannot be measured."""
    evaluation = _evaluation(config)
    if config.checkpoint and is_hub_id(config.checkpoint):
        model_folder(ModelConfig(id=config.checkpoint))  # a misspelt one fails before the original
    scenario = evaluation.scenario[config.scenario_name]
    conversations = read_traffic(evaluation.traffic) if scenario.from_traffic else []
    all_targets = targets(evaluation)
    original = first_folder(all_targets)
    if scenario.from_traffic:
        say_unused(evaluation, conversations)
        evaluation = with_traffic(evaluation, conversations, original)
    target: Target = all_targets[-1]
    folder = checked_folder(target, original, evaluation)
    check_memory(folder, evaluation)
    return TunedCheckpoint(evaluation, original, inspect(target, folder))


def _evaluation(config: TuneConfig) -> EvaluateConfig:
    is_random = config.weights == "random"
    recipe = config.recipe_name or ORIGINAL
    if is_random:
        check_known_recipe("recipe", recipe)
    try:
        return EvaluateConfig(
            model=config.model,
            scenario=config.scenario,
            traffic=config.traffic,
            accuracy=AccuracyConfig(),
            engine=config.engine,
            gpu=config.gpu,
            checkpoints=None if is_random else _checkpoints(config),
            checkpoint_root=config.checkpoint_root,
            weights=config.weights,
            recipes=[recipe] if is_random else None,
            original=not is_random or recipe == ORIGINAL,
            results=config.results,
            force=config.force,
            repeats=config.repeats,
            side_by_side=config.side_by_side,
            targets=config.targets,
        )
    except ValueError as error:
        raise bad_input(str(error)) from error


def _checkpoints(config: TuneConfig) -> list[str]:
    """The checkpoint as `evaluate` takes it; none for the original."""
    root = Path(config.checkpoint_root).expanduser()
    if config.checkpoint:
        folders = published(root, str(config.model.name))
        check_checkpoint("checkpoint", config.checkpoint, folders)
        return [config.checkpoint]
    if config.recipe_name == ORIGINAL:
        return []
    if config.recipe_name is None:
        return [str(checkpoint_folder(None, config.checkpoint_root, config.model))]
    known = {folder.name: folder for folder in published(root, str(config.model.name))}
    if config.recipe_name not in known:
        if config.recipe_name in known_recipes():
            elsewhere = config.checkpoint_root != TuneConfig.checkpoint_root
            there = [option_text("output_dir", config.checkpoint_root)] if elsewhere else []
            named = [option_text("recipe", config.recipe_name), naming(config.model)]
            raise bad_input(
                f"recipe={config.recipe_name}: there is no such checkpoint of {config.model.name} "
                f"under {root}; make it with {command_text('quantize', *named, *there)}, or take "
                "weights=random"
            )
        what = f"recipe={config.recipe_name} of {config.model.name} under {root}"
        raise unknown(what, config.recipe_name, [ORIGINAL, *known])
    return [str(known[config.recipe_name])]


def _numbers(config: QuantizationConfig | None) -> set[tuple[str, bool]]:
    """The stored formats of a checkpoint, and whether activations are quantized, too."""
    groups = config.groups if config else []
    found = [(format_of(group), group.activations is not None) for group in groups]
    return {(stored.name, has_activations) for stored, has_activations in found if stored}


def situation_of(tuned: TunedCheckpoint, scenario: str) -> Situation:
    """What decides which settings apply to this checkpoint, machine and workload."""
    engine = tuned.config.engine
    numbers = _numbers(quantization_of(tuned.inspected.config))
    facts = {
        Need.GPU: not on_cpu(),
        Need.COMPILING: not options(engine)["enforce_eager"],
        Need.QUANTIZED: quantization_of(tuned.inspected.config) is not None,
        Need.EXPERTS: any(EXPERTS in name for name in tuned.inspected.tensors),
        Need.FP8: ("fp8", True) in numbers,
        Need.WEIGHT_ONLY: ("weight_only_int", False) in numbers,
    }
    return Situation(
        met=frozenset(need for need, is_met in facts.items() if is_met),
        sizes=workload_sizes(tuned.config.scenario[scenario]),
        excluded=excluded_settings(engine, known_options()),
    )
