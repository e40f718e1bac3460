"""Finds or makes a model's folder of safetensors: local, generated here, or from the hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import BaseFileLock, FileLock, Timeout

from conf.errors import (
    QuantlineError,
    bad_input,
    environment_failure,
    message_and_code,
    reading,
    writing,
)
from conf.files.json_files import JsonObject, read_object, shown, shown_path
from conf.files.write_whole import write_whole
from conf.models import CONFIG, cached_folder, is_made_here, read_config
from conf.process.inside import Send, run_program
from conf.schema.model import ModelConfig
from conf.terminal import say
from quantize.models.headers import read_headers
from quantize.programs import FETCH, Fetched

# Fields that identify a listed model; old files leave the second kind to transformers' defaults.
ALWAYS_STATED = ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")
OFTEN_STATED = (
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_theta",
    "tie_word_embeddings",
)
HUB_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt", "*.model"]


def fetch(model: ModelConfig) -> Path:
    """The checked folder of the model; made or fetched first if it is missing."""
    folder = check_path(model)
    if folder is None and is_made_here(model):
        folder = _make_in_cache(model)
    elif folder is None:
        say(f"{model.name}: fetching {model.id} at {model.revision}")
        folder = _from_hub(model, HUB_FILES)
    check_folder(folder, model)
    return folder


def check_path(model: ModelConfig) -> Path | None:
    """The folder of `model.path`, if it is set; raises if there is no such folder."""
    if not model.path:
        return None
    folder = Path(model.path).expanduser()
    if not folder.is_dir():
        raise bad_input(f"model.path: there is no folder {folder}")
    return folder


def _make_in_cache(model: ModelConfig) -> Path:
    """Makes the model in a temporary folder and moves it into the cache; a lock serializes runs."""
    folder = cached_folder(model)
    with writing(folder):
        return make_locked(model, folder)


def make_locked(model: ModelConfig, folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _taken(FileLock(f"{folder}.lock"), str(model.name)):
        if folder.is_dir():
            return folder
        from quantize.models import make as build

        with write_whole(folder) as unfinished:
            if model.weights == "random":
                build.random_model(model, unfinished)
            elif model.training:
                build.trained_model(model, unfinished)
            else:
                from quantize.models.convert import packaged_model

                packaged_model(model, unfinished)
    say(f"{model.name}: ready in {folder}")
    return folder


@contextmanager
def _taken(lock: BaseFileLock, name: str) -> Iterator[None]:
    """Holds the lock. Says so before it waits for another run."""
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"{name}: waiting for another run, which makes it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def without_weights(model: ModelConfig) -> Iterator[Path]:
    """A folder that holds the model's config; no weights are made or fetched."""
    folder = check_path(model)
    if folder is not None:
        check_folder(folder, model)
        yield folder
    elif model.architecture is None:
        folder = _from_hub(model, [CONFIG])
        _check_code(folder, model)
        yield folder
    else:
        from quantize.models.architecture_config import architecture_config

        with TemporaryDirectory() as scratch:
            architecture_config(model.architecture).save_pretrained(scratch)
            yield Path(scratch)


def _from_hub(model: ModelConfig, files: list[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    code = ["*.py"] if model.trust_remote_code else []
    try:
        return Path(
            snapshot_download(str(model.id), revision=model.revision, allow_patterns=files + code)
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise environment_failure(
            f"model.id={model.id}: it could not be fetched from the hub "
            f"({' '.join(str(error).split())}). Give a local copy with "
            "model.path=FOLDER, or model.weights=random for the architecture alone."
        ) from error


def check_folder(folder: Path, model: ModelConfig) -> None:
    """Refuses a folder that is not a plain safetensors model, before anything is loaded."""
    config = _read_checked_config(folder)
    if not any(folder.glob("*.safetensors")):
        pickle_files = [path.name for path in folder.glob("*.bin")]
        hint = (
            f" (only {', '.join(pickle_files)}, which can run code when loaded)"
            if pickle_files
            else ""
        )
        raise bad_input(f"{folder}: there are no .safetensors weights{hint}")
    _check_code(folder, model)
    _check_links(folder)
    read_headers(folder)
    _check_architecture(config, folder / CONFIG, model)


def _read_checked_config(folder: Path) -> JsonObject:
    """The content of config.json, its structure checked."""
    if not (folder / CONFIG).exists():
        raise bad_input(f"{folder}: there is no {CONFIG}")
    text_config = read_object(folder / CONFIG).get("text_config")
    if text_config is not None and not isinstance(text_config, dict):
        raise bad_input(
            f"{folder / CONFIG}: text_config is {shown(text_config)}, an object is expected"
        )
    return read_config(folder)


def _check_code(folder: Path, model: ModelConfig) -> None:
    if "auto_map" in _read_checked_config(folder) and not model.trust_remote_code:
        raise bad_input(
            f"{folder / CONFIG}: auto_map asks to run Python code that comes with the model; "
            "model.trust_remote_code=true allows it"
        )


def _check_links(folder: Path) -> None:
    """Refuses links out of the folder, except those of a hub cache to its own blobs, and what is
    neither a file nor a folder: whoever opens a pipe waits forever."""
    root = folder.resolve()
    allowed_roots = [root, root.parent.parent / "blobs"]
    for path in folder.iterdir():
        if path.exists() and not path.is_file() and not path.is_dir():
            raise bad_input(f"{shown_path(path)}: is a pipe, socket or device, a file is expected")
        if not path.is_symlink():
            continue
        with reading(path):
            target = path.resolve()
        if not any(target.is_relative_to(allowed_root) for allowed_root in allowed_roots):
            raise bad_input(f"{path} is a link out of the folder, to {target}")


def _check_architecture(config: JsonObject, file: Path, model: ModelConfig) -> None:
    """Raises if the folder of a listed model holds another model."""
    if model.architecture is None:
        return
    rope = config.get("rope_parameters")
    stated = (rope if isinstance(rope, dict) else {}) | config
    for key in (*ALWAYS_STATED, *OFTEN_STATED):
        expected, stated_value = getattr(model.architecture, key), stated.get(key)
        if stated_value != expected and (stated_value is not None or key in ALWAYS_STATED):
            raise bad_input(
                f"{file}: {key} is {stated_value}, but model={model.name} has {expected}"
            )


def work(model: ModelConfig, send: Send[Fetched]) -> None:
    """Fetches or makes a model for another command, and answers with its folder."""
    try:
        send(Fetched(str(fetch(model))))
    except Exception as error:
        # The user sees our standard error, too: only the caller prints the message.
        raise QuantlineError(*message_and_code(error)) from error


if __name__ == "__main__":
    run_program(FETCH, work, str(work.__doc__))
