"""The targets of an evaluation: the original first, then checkpoints, or recipes on random
weights."""

from dataclasses import dataclass
from pathlib import Path

from conf import sources
from conf.errors import QuantlineError, bad_input, unknown
from conf.escaping import CONTROL
from conf.models import CONFIG, ORIGINAL, is_hub_id, shapes_folder
from conf.process.running import call
from conf.schema.commands import EvaluateConfig
from conf.schema.model import ModelConfig
from conf.terminal import say
from evaluate.measure.engines import NO_SUSTAINED
from quantize.checkpoint.manifest import published
from quantize.programs import DESCRIBE, DescribeRequest
from serve.engine.launch import model_folder

SERVER = "server"


@dataclass
class Target:
    """One model to load and measure."""

    name: str
    folder: Path | None
    """None if it cannot be loaded; `problem` says why."""
    dummy: bool = False
    problem: QuantlineError | None = None


def targets(config: EvaluateConfig) -> list[Target]:
    """The original and all requested checkpoints or recipes."""
    check_requested(config)
    if config.weights == "random":
        return _random_targets(config)
    original = Target(ORIGINAL, model_folder(config.model))
    if config.engine.url:
        server_targets = [_checkpoint_target(entry) for entry in _requested(config)]
        if len(server_targets) > 1:
            raise bad_input("engine.url: a server has one checkpoint; name at most one")
        return server_targets or [Target(SERVER, original.folder)]
    if config.checkpoints is None:
        checkpoints = [Target(folder.name, folder) for folder in _published(config)]
        if not checkpoints:
            name = config.model.name
            say(
                f"{config.checkpoint_root}: there is no checkpoint of {name}, so only the "
                "original is measured"
            )
    else:
        checkpoints = [_checkpoint_target(entry) for entry in _requested(config)]
    names = {ORIGINAL}
    for target in checkpoints:
        if CONTROL.search(target.name):
            raise bad_input(
                f"checkpoints={target.folder}: the folder's name has control characters, which no "
                "table shows; rename it"
            )
        if target.name in names:
            raise bad_input(f"checkpoints: two of them are called {target.name}: {target.folder}")
        names.add(target.name)
    return [original, *checkpoints]


def first_folder(all_targets: list[Target]) -> Path:
    """The folder of the original, or of the first target that can be loaded."""
    return next((target.folder for target in all_targets if target.folder is not None), Path())


def real_folders(all_targets: list[Target]) -> list[Path]:
    """The folders of targets that have weights."""
    return [target.folder for target in all_targets if target.folder and not target.dummy]


def check_requested(config: EvaluateConfig) -> None:
    """Refuses what can be seen to fail before anything is fetched or measured."""
    sustained = [name for name, scenario in config.scenario.items() if scenario.is_sustained]
    if sustained and config.engine.kind == "transformers":
        raise bad_input(f"scenario={sustained[0]}: {NO_SUSTAINED}")
    if config.weights == "random":
        for name in config.recipes or []:
            check_known_recipe("recipes", name)
    else:
        for entry in _requested(config):
            check_checkpoint("checkpoints", entry, _published(config))


def check_known_recipe(option: str, name: str) -> None:
    """Refuses a misspelt recipe, under the option's name in the command."""
    known = {ORIGINAL, *known_recipes()}
    if name not in known:
        raise unknown(f"{option}={name}", name, known)


def check_checkpoint(option: str, entry: str, known: list[Path]) -> None:
    """Refuses a misspelt checkpoint before anything is measured."""
    if not is_hub_id(entry) and not (Path(entry).expanduser() / CONFIG).is_file():
        folders = ", ".join(map(str, known)) or "none"
        is_original = entry == ORIGINAL and option == "checkpoints"
        hint = "; checkpoints=[] measures the original alone" if is_original else ""
        raise bad_input(
            f"{option}={entry}: there is no model in that folder; published are: {folders}{hint}"
        )


def known_recipes() -> list[str]:
    return sorted(sources.choices("recipe", sources.folders_of([])))


def _requested(config: EvaluateConfig) -> list[str]:
    """The entries of `checkpoints`: folders or hub ids. The name of a published checkpoint stands
    for its folder, unless a folder of that name is here."""
    by_name = {folder.name: folder for folder in _published(config)}
    return [
        entry if (Path(entry) / CONFIG).is_file() else str(by_name.get(entry, entry))
        for entry in config.checkpoints or []
    ]


def _published(config: EvaluateConfig) -> list[Path]:
    return published(Path(config.checkpoint_root).expanduser(), str(config.model.name))


def _checkpoint_target(entry: str) -> Target:
    """The target for a folder or a model on the hub."""
    if not is_hub_id(entry):
        folder = Path(entry).expanduser()
        return Target(folder.resolve().name, folder)
    model = ModelConfig(id=entry)
    try:
        return Target(str(model.name), model_folder(model))
    except QuantlineError as error:
        return Target(str(model.name), None, problem=error)


def _random_targets(config: EvaluateConfig) -> list[Target]:
    """Targets on random weights: their folders describe each recipe's checkpoint without
    weights."""
    model = config.model
    if model.architecture is None and not model.path:
        raise bad_input(
            f"weights=random: the architecture of model={model.name} is not listed; give "
            "model.path=FOLDER with its config.json"
        )
    recipes = config.recipes or known_recipes()
    names = list(dict.fromkeys([ORIGINAL, *recipes] if config.original else recipes))
    problems = _describe_recipes(model, [n for n in names if not _is_described(model, n)])
    return [
        Target(name, None if name in problems else shapes_folder(model, name), True, problem)
        for name in names
        for problem in [problems.get(name)]
    ]


def _is_described(model: ModelConfig, name: str) -> bool:
    return (shapes_folder(model, name) / CONFIG).is_file()


def _describe_recipes(model: ModelConfig, names: list[str]) -> dict[str, QuantlineError]:
    """Describes the checkpoints of these recipes in a quantize process. Returns the errors by
    recipe."""
    if not names:
        return {}
    try:
        answers = call(DESCRIBE, DescribeRequest(model, names))
    except QuantlineError as error:
        message = f"model={model.name}: its recipes could not be described: {error}"
        raise QuantlineError(message, error.exit_code) from error
    return {answer.recipe: answer.failure.error for answer in answers if answer.failure}
