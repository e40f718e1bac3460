"""What to serve: a folder, a hub id, a published recipe, or what results recommend."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from conf.errors import bad_input, unknown
from conf.hardware import cpu_name, resolve_gpu
from conf.models import ORIGINAL, is_hub_id
from conf.process.running import call_one
from conf.schema.commands import ModelConfig, ServeConfig
from evaluate.report.programs import RECOMMEND, ServeRequest
from quantize.checkpoint import manifest
from quantize.checkpoint.manifest import published
from serve.engine.launch import checkpoint_folder, model_folder


@dataclass
class Found:
    """A folder to serve, and what is known of serving it."""

    folder: Path
    name: str
    """What clients call it."""
    why: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    """vLLM's options that were measured with it."""
    reasons: dict[str, str] = field(default_factory=dict)


def find(config: ServeConfig) -> Found:
    model = str(config.model.name)
    if config.results:
        return _recommended(config)
    if config.recipe_name:
        return Found(_published(config, config.recipe_name), model)
    if config.checkpoint and is_hub_id(config.checkpoint):
        hub = ModelConfig(id=config.checkpoint, revision=config.model.revision)
        return Found(model_folder(hub), str(hub.name))
    folder = checkpoint_folder(config.checkpoint, config.checkpoint_root, config.model)
    return Found(folder, _served_name(folder, config))


def _served_name(folder: Path, config: ServeConfig) -> str:
    """The model's name; for a folder that was named, the one that its manifest gives."""
    if config.checkpoint is None:
        return str(config.model.name)
    ours = manifest.find(folder)
    return ours.model if ours else folder.name


def _published(config: ServeConfig, name: str) -> Path:
    """The published checkpoint of that name, or the original."""
    if name == ORIGINAL:
        return model_folder(config.model)
    root = Path(config.checkpoint_root).expanduser()
    known = {folder.name: folder for folder in published(root, str(config.model.name))}
    if name not in known:
        raise unknown(f"{name} of {config.model.name} under {root}", name, [ORIGINAL, *known])
    return known[name]


def _recommended(config: ServeConfig) -> Found:
    """The report decides, in a process of its own."""
    request = ServeRequest(
        results=str(Path(str(config.results)).expanduser()),
        targets=config.targets,
        mix=config.mix,
        model=str(config.model.name),
        device=resolve_gpu(config.gpu).name,
        cpu=cpu_name(),
    )
    recommended = call_one(RECOMMEND, request)
    folder = _published(config, recommended.checkpoint)
    if not (folder / "config.json").is_file():
        raise bad_input(f"{folder}: there is no model in that folder")
    return Found(
        folder,
        str(config.model.name),
        why=f"{recommended.candidate}: {recommended.why}",
        options=recommended.options,
        reasons=recommended.reasons,
    )
