"""Resolves the checkpoint to serve: a folder, a hub id, a published recipe, or a recommendation."""

from dataclasses import dataclass, field
from pathlib import Path

from conf.errors import bad_input, unknown
from conf.hardware import cpu_name, resolve_gpu
from conf.models import ORIGINAL, is_hub_id
from conf.process.running import call_one
from conf.schema.commands import ServeConfig
from conf.schema.kernels import KernelsConfig
from conf.schema.load import EngineOptions
from conf.schema.model import ModelConfig
from evaluate.report.programs import RECOMMEND, ServeRequest
from quantize.checkpoint import manifest
from quantize.checkpoint.manifest import published
from serve.engine.launch import checkpoint_folder, model_folder
from serve.kernels.settings import KERNELS, SECOND_LAYOUT, of_recorded

KERNEL_OPTIONS = (KERNELS, SECOND_LAYOUT)


@dataclass
class ServedCheckpoint:
    """The checkpoint to serve, with the engine options that were measured for it."""

    folder: Path
    name: str
    """The model name in the API."""
    why: str = ""
    """Why it was recommended; empty where it was not."""
    options: EngineOptions = field(default_factory=dict)
    """The vLLM options it was measured with."""
    kernels: KernelsConfig | None = None
    """The kernels it was measured with; None where it was not measured."""
    reasons: dict[str, str] = field(default_factory=dict)


def resolve(config: ServeConfig) -> ServedCheckpoint:
    """The checkpoint that the options name or that the results recommend."""
    model = str(config.model.name)
    if config.results:
        return _recommended(config)
    if config.recipe_name:
        return ServedCheckpoint(_published(config, config.recipe_name), model)
    if config.checkpoint and is_hub_id(config.checkpoint):
        hub = ModelConfig(id=config.checkpoint, revision=config.model.revision)
        return ServedCheckpoint(model_folder(hub), str(hub.name))
    folder = checkpoint_folder(config.checkpoint, config.checkpoint_root, config.model)
    return ServedCheckpoint(folder, _served_name(folder, config))


def _served_name(folder: Path, config: ServeConfig) -> str:
    """The model's name; for checkpoint=FOLDER, the name in its manifest."""
    if config.checkpoint is None:
        return str(config.model.name)
    checkpoint_manifest = manifest.find(folder)
    return checkpoint_manifest.model if checkpoint_manifest else folder.name


def _published(config: ServeConfig, name: str) -> Path:
    """The published checkpoint of that name, or the original."""
    if name == ORIGINAL:
        return model_folder(config.model)
    root = Path(config.checkpoint_root).expanduser()
    known = {folder.name: folder for folder in published(root, str(config.model.name))}
    if name not in known:
        raise unknown(f"{name} of {config.model.name} under {root}", name, [ORIGINAL, *known])
    return known[name]


def _recommended(config: ServeConfig) -> ServedCheckpoint:
    """The recommendation of the report, which runs in its own process."""
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
    return ServedCheckpoint(
        folder,
        str(config.model.name),
        why=f"{recommended.candidate}: {recommended.why}",
        options={k: v for k, v in recommended.options.items() if k not in KERNEL_OPTIONS},
        kernels=of_recorded(recommended.options),
        reasons={k: v for k, v in recommended.reasons.items() if k not in KERNEL_OPTIONS},
    )
