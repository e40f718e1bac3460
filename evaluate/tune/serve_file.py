"""Writes the settings found as a file that `python -m serve config=FILE` takes."""

from pathlib import Path
from typing import Any

import yaml

from conf import sources
from conf.errors import writing
from conf.files.write_whole import write_whole
from conf.models import ORIGINAL, is_hub_id
from conf.schema.kernels import KERNELS_OPTION
from conf.schema.load import EngineConfig
from conf.schema.tune import TuneConfig
from evaluate.tune.display import sentences
from evaluate.tune.search import Outcome
from evaluate.tune.space import text_of


def write_settings(
    path: Path,
    config: TuneConfig,
    folder: Path,
    engine: EngineConfig,
    context: int | None,
    outcome: Outcome,
) -> None:
    """Writes what to serve, and how the engine is started. `engine` has the chosen settings;
    `context` is the longest one that they allow, or None."""
    content = _served(config, folder) | {"engine": _engine_options(engine, context)}
    lines = [
        f"{text_of(outcome.chosen)} for {config.scenario_name}, by evaluate.tune",
        *sentences(outcome),
    ]
    if context is not None:
        lines.append(f"it starts with a context of {context} tokens, as it was measured")
    if config.weights == "random":
        lines.append("measured on random weights; serve needs the checkpoint of this recipe")
    comments = "".join(f"# {' '.join(line.split())}\n" for line in lines)
    if not content["engine"]:
        del content["engine"]
    with writing(path), write_whole(path) as unfinished:
        unfinished.write_text(comments + yaml.safe_dump(content, sort_keys=False))


def _served(config: TuneConfig, folder: Path) -> dict[str, Any]:
    """The options of `serve` that name the checkpoint."""
    name = config.recipe_name or ORIGINAL
    if config.weights == "random" or (not config.checkpoint and config.recipe_name == ORIGINAL):
        return {"model": _model(config), "recipe": name}
    if config.checkpoint and is_hub_id(config.checkpoint):
        return {"checkpoint": config.checkpoint}
    return {"checkpoint": str(folder.resolve())}


def _model(config: TuneConfig) -> str | dict[str, str]:
    model = config.model
    if model.path:
        return {"path": str(Path(model.path).expanduser().resolve())}
    if model.name in sources.choices("model", sources.folders_of([])):
        return str(model.name)
    return {"id": str(model.id), "revision": model.revision}


def _engine_options(engine: EngineConfig, context: int | None) -> dict[str, Any]:
    """The options that differ from `serve`'s own defaults."""
    defaults = EngineConfig()
    given = {
        name: getattr(engine, name)
        for name in ("dtype", "max_model_len", "enforce_eager", "allow_missing_kv_scales")
        if getattr(engine, name) != getattr(defaults, name)
    }
    if context is not None:
        given["max_model_len"] = context
    if engine.kernels.families is not None:
        families = engine.kernels.families
        given[KERNELS_OPTION] = families[0] if len(families) == 1 else families
    return given | engine.options
