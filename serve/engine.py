"""Starting vLLM on this machine: the model's folder, the options, the server and its end."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from conf.errors import QuantlineError, bad_input, unknown, world_fault
from conf.hardware import cpu_has_bf16, gpu_names
from conf.load_schema import EngineConfig
from conf.models import cached_folder, is_made_here
from conf.schema import ModelConfig
from quantize.manifest import published

API_KEY = "VLLM_API_KEY"
CPU_KV_CACHE_GIB = "4"
MIDDLEWARE = "serve.door.Door"


@cache
def on_cpu() -> bool:
    return not gpu_names()


def model_folder(model: ModelConfig) -> Path:
    """The original's folder. What is missing is made by quantize, in a process of its own, so that
    the engine's process never holds what making a model takes."""
    if is_made_here(model) and cached_folder(model).is_dir():
        return cached_folder(model)
    command = [sys.executable, "-m", "quantize.fetch"]
    description = json.dumps(asdict(model))
    result = subprocess.run(
        command, input=description, stdout=subprocess.PIPE, text=True, check=False
    )
    if result.returncode:
        raise QuantlineError(f"model={model.name}: could not be prepared", result.returncode)
    return Path(result.stdout.strip().splitlines()[-1])


def checkpoint_folder(checkpoint: str | None, root: str, model: ModelConfig) -> Path:
    """The checkpoint that was named, or the newest one of the model."""
    if checkpoint:
        folder = Path(checkpoint).expanduser()
        if not (folder / "config.json").is_file():
            raise bad_input(f"checkpoint={checkpoint}: there is no model in that folder")
        return folder
    found = published(Path(root).expanduser(), str(model.name))
    if not found:
        raise bad_input(
            f"model={model.name}: there is no checkpoint under {root}; make one with "
            f"`python -m quantize model={model.name}`, or name a folder with checkpoint=DIR"
        )
    return found[-1]


def options(engine: EngineConfig) -> dict[str, Any]:
    """vLLM's options: what was asked for, and what this machine needs where nothing was."""
    dtype = engine.dtype
    if dtype == "auto" and on_cpu() and not cpu_has_bf16():
        dtype = "float32"
    eager = on_cpu() if engine.enforce_eager is None else engine.enforce_eager
    chosen: dict[str, Any] = {"dtype": dtype, "enforce_eager": eager}
    if engine.max_model_len:
        chosen["max_model_len"] = engine.max_model_len
    known = known_options() if engine.options else set()
    for name in engine.options:
        if name not in known:
            raise unknown(f"engine.{name}", name, known)
    return chosen | dict(engine.options)


def known_options() -> set[str]:
    """vLLM's engine options, read from its source: importing it takes ten seconds."""
    package = importlib.util.find_spec("vllm")
    if package is None or not package.submodule_search_locations:
        raise world_fault("vLLM is not installed here; `make setup` installs it")
    source = Path(package.submodule_search_locations[0]) / "engine" / "arg_utils.py"
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
            fields = [part.target for part in node.body if isinstance(part, ast.AnnAssign)]
            return {target.id for target in fields if isinstance(target, ast.Name)}
    raise world_fault(f"{source}: there is no class EngineArgs")


def environment() -> dict[str, str]:
    """The process environment for vLLM. It reports to nobody; on a CPU it stays one process,
    which starts seven times faster on two cores."""
    wanted = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if on_cpu():
        wanted["VLLM_CPU_KVCACHE_SPACE"] = CPU_KV_CACHE_GIB
        wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return wanted | dict(os.environ)


def server_command(
    folder: Path, settings: dict[str, Any], host: str, port: int, name: str
) -> list[str]:
    """The command line of the server. The module is called by its path because the CPU build of
    vLLM has another distribution name, on which `vllm serve` stumbles."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(folder), "--host", host, "--port", str(port)]
    command += ["--served-model-name", name, "--middleware", MIDDLEWARE]
    for option, value in settings.items():
        flag = option.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict | list):
            command += [f"--{flag}", json.dumps(value)]
        elif value is not None:
            command += [f"--{flag}", str(value)]
    return command


def server_environment() -> dict[str, str]:
    """A server answers many at once and needs its engine in a process of its own."""
    variables = environment()
    variables.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    return variables


@contextmanager
def running_server(folder: Path, settings: dict[str, Any], name: str, log: Path) -> Iterator[str]:
    """Starts vLLM's server on a free port of this machine, yields its address once it answers,
    and leaves no process behind."""
    from serve.process import ServerProcess, free_port

    port = free_port()
    command = server_command(folder, settings, "127.0.0.1", port, name)
    server = ServerProcess(command, server_environment(), f"http://127.0.0.1:{port}", log)
    try:
        server.wait_until_healthy()
        server.say_ready()
        yield server.url
    finally:
        server.stop()


def reason_in(lines: list[str]) -> str:
    """The last line of a log that names an error, or else the last one."""
    for line in reversed(lines):
        if "Error" in line or "error:" in line:
            return line.strip()
    return lines[-1].strip()


def key_headers() -> dict[str, str]:
    """What a client sends to a server that asks for a key."""
    key = os.environ.get(API_KEY)
    return {"Authorization": f"Bearer {key}"} if key else {}


def served_name(url: str) -> str:
    """What a running server calls its model."""
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/models", headers=key_headers())
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(json.load(answer)["data"][0]["id"])
    except (OSError, KeyError, IndexError, ValueError) as error:
        raise world_fault(f"engine.url={url}: no server answers there ({error})") from error
