"""Uploads a finished checkpoint and its card to a repository of the model hub."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from pydantic import BaseModel

from conf import VERSION
from conf.errors import QuantlineError, bad_input, environment_failure, gate_failed, one_line
from conf.schema.commands import QuantizeConfig
from conf.terminal import say
from quantize.checkpoint import manifest
from quantize.checkpoint.manifest import FILE, NOT_CLAIMED, Manifest
from quantize.checkpoint.manifest_parts import ModelClaim, RecipeClaim

# In a new repository; what else is in one belongs to somebody's model.
HUB_FILES = {".gitattributes", "README.md"}
# Removed with the push of another checkpoint: a loader would read both.
WEIGHT_FILES = ["*.safetensors", "*.safetensors.index.json"]
REFUSED = (401, 403)
# Comments of a recipe, and what a mixed recipe chooses while it runs.
NOT_COMPARED = {"description", "when", "hardware", "choice"}


def check_hub(repository: str) -> None:
    """Raises before the long work if the hub cannot be reached or does not know the token."""
    import huggingface_hub

    if huggingface_hub.get_token() is None:
        raise bad_input(
            f"push={repository}: there is no token for the hub; set HF_TOKEN, or run "
            "`hf auth login`"
        )
    with _hub_errors(repository, ""):
        _hub().whoami()


def check_finished(folder: Path, config: QuantizeConfig) -> None:
    """Raises unless the folder is the checkpoint that the config describes, without faults."""
    from quantize.checkpoint.verify import verify

    found = manifest.read(folder)
    different = _differences(found, config)
    if different:
        raise bad_input(
            f"{folder}: exists already, made with another {' and '.join(different)}; replace=true "
            "replaces it"
        )
    faults = verify(folder).faults
    if faults:
        raise gate_failed(f"{folder}: is not pushed, it has {len(faults)} faults; {faults[0]}")


def _differences(found: Manifest, config: QuantizeConfig) -> list[str]:
    """The parts of a checkpoint that the config would make otherwise. Fields that one of the two
    versions does not have are not compared."""
    pairs = {
        "model": (found.original, ModelClaim.model_validate(asdict(config.model))),
        "recipe": (found.recipe_config, RecipeClaim.model_validate(asdict(config.recipe))),
    }
    if found.text is not None:
        source = type(found.text.source).model_validate(asdict(config.calibration))
        pairs["calibration"] = (found.text.source, source)
    return [name for name, (made, asked) in pairs.items() if not _is_same(made, asked)]


def _is_same(made: BaseModel, asked: BaseModel) -> bool:
    made_fields, asked_fields = made.model_dump(), asked.model_dump()
    common = made_fields.keys() & asked_fields.keys() - NOT_COMPARED
    return all(made_fields[name] == asked_fields[name] for name in common)


def push(folder: Path, repository: str, is_private: bool) -> None:
    """Uploads the published files, and no others of the folder."""
    published = manifest.read(folder)
    hub = _hub()
    names = [*published.files, *NOT_CLAIMED]
    say(f"push={repository}: uploading {folder}")
    again = f"; {folder} is finished, push it again with: {_command()}"
    with _hub_errors(repository, again):
        url = hub.create_repo(repository, private=is_private, exist_ok=True)
        existing = set(hub.list_repo_files(repository))
        if existing - HUB_FILES and FILE not in existing:
            raise bad_input(
                f"push={repository}: the repository holds a model that is not ours (there is no "
                f"{FILE}); choose another name{again}"
            )
        hub.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=names,
            delete_patterns=WEIGHT_FILES,
            commit_message=f"{published.model}, {published.recipe} (Quantline {VERSION})",
        )
    say(f"push={repository}: {url}")


def _hub() -> Any:
    import huggingface_hub

    # The library reads the variable when it is imported, which may be earlier.
    return huggingface_hub.HfApi(endpoint=os.environ.get("HF_ENDPOINT"))


@contextmanager
def _hub_errors(repository: str, advice: str) -> Iterator[None]:
    """Turns every error of the hub or of the way to it into one line."""
    import httpx

    try:
        yield
    except QuantlineError:
        raise
    except Exception as error:
        cause = error.__cause__ if type(error) is RuntimeError and error.__cause__ else error
        status = getattr(getattr(cause, "response", None), "status_code", None)
        reason = getattr(cause, "server_message", None) or one_line(cause)
        if status in REFUSED:
            reason = f"the hub refuses the token (HTTP {status}: {reason})"
        elif status is not None:
            reason = f"the hub answered HTTP {status} ({reason})"
        elif isinstance(cause, (OSError, httpx.TransportError)):
            reason = f"the hub could not be reached ({reason})"
        raise environment_failure(f"push={repository}: {reason}{advice}") from error


def _command() -> str:
    """The command of this run, without an option that would make the checkpoint anew."""
    overrides = HydraConfig.get().overrides.task
    kept = [text for text in overrides if not text.startswith("replace=")]
    return f"python -m quantize {shlex.join(kept)}"
