"""Starts vLLM on this machine: the model's folder, the options, the server."""

import ast
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from conf import sources
from conf.errors import bad_input, environment_failure, unknown
from conf.hardware import cpu_has_bf16, gpu_names
from conf.model_folders import models_below
from conf.models import cached_folder, is_made_here
from conf.override_text import command_text, option_text
from conf.process.running import call_one
from conf.schema.kernels import AUTO, VLLM
from conf.schema.load import KV_CACHE_SIZE, EngineConfig, EngineOptions
from conf.schema.model import ModelConfig
from conf.terminal import say
from quantize.checkpoint.manifest import published
from quantize.programs import FETCH
from serve.engine.client import API_KEY
from serve.engine.process import ServerProcess, free_port
from serve.kernels.installed import plugin_path
from serve.kernels.settings import check_not_given, with_kernels

CPU_KV_CACHE_GIB = "4"
MIDDLEWARE = "serve.middleware.ServerMiddleware"
OPTION_FILES = {
    "engine/arg_utils.py": ("EngineArgs",),
    "entrypoints/openai/cli_args.py": ("BaseFrontendArgs", "FrontendArgs"),
    "entrypoints/launchers/cli_args.py": ("BaseFrontendArgs", "FrontendArgs"),
}
NUMBER_TEXT = re.compile(r"\d+(\.\d+)?[kKmMgGtT]?")  # vLLM takes 8k for a number
JSON_LISTS = ("allowed_origins", "allowed_methods", "allowed_headers")
# Options that would bypass a check, or that every user could read in the process list.
RESERVED = {
    "model": "say what to serve with checkpoint= or model=",
    "served_model_name": "clients use the model's name",
    "host": "give host=",
    "port": "give port=",
    "uds": "the server listens on a port",
    "middleware": "it checks the key",
    "root_path": "the server has no prefix",
    "api_key": f"other users of this machine could read it; set {API_KEY} instead",
    "hf_token": "other users of this machine could read it; set HF_TOKEN instead",
}


@cache
def on_cpu() -> bool:
    return not gpu_names()


def model_folder(model: ModelConfig) -> Path:
    """The original's folder. Quantize makes or fetches a missing one in its own process, so that
    this process does not keep the memory for that."""
    if is_made_here(model) and cached_folder(model).is_dir():
        return cached_folder(model)
    return Path(call_one(FETCH, model, shows_output=True).folder)


def checkpoint_folder(checkpoint: str | None, root: str, model: ModelConfig) -> Path:
    """The named checkpoint, or the newest one of the model."""
    if checkpoint:
        folder = Path(checkpoint).expanduser()
        if not (folder / "config.json").is_file():
            names = [path.name for path in published(Path(root).expanduser(), str(model.name))]
            hint = f"; recipe={checkpoint} names the published one" if checkpoint in names else ""
            hint = hint or models_below(folder)
            raise bad_input(f"checkpoint={checkpoint}: there is no model in that folder{hint}")
        return folder
    checkpoints = published(Path(root).expanduser(), str(model.name))
    if not checkpoints:
        raise bad_input(
            f"model={model.name}: there is no checkpoint under {root}; make one with "
            f"`{command_text('quantize', naming(model))}`, or name a folder with checkpoint=DIR"
        )
    return checkpoints[-1]


def naming(model: ModelConfig) -> str:
    """The option that names the model."""
    named = {"model.path": model.path, "model.id": model.id, "model": model.name}
    is_listed = model.name in sources.choices("model", sources.folders_of([]))
    option = "model" if is_listed else next(name for name, value in named.items() if value)
    return option_text(option, named[option])


def options(engine: EngineConfig) -> EngineOptions:
    """vLLM's options: the requested ones, and this machine's defaults for the rest."""
    dtype = engine.dtype
    if dtype == "auto" and on_cpu() and not cpu_has_bf16():
        dtype = "float32"
    eager = on_cpu() if engine.enforce_eager is None else engine.enforce_eager
    chosen: EngineOptions = {"dtype": dtype, "enforce_eager": eager}
    if engine.max_model_len:
        chosen["max_model_len"] = engine.max_model_len
    known = known_options() if engine.options else {}
    for name, value in engine.options.items():
        if name in RESERVED:
            raise bad_input(f"engine.{name}: {RESERVED[name]}")
        if name not in known:
            raise unknown(f"engine.{name}", name, known)
        if fault := _type_fault(known[name], value):
            raise bad_input(f"engine.{name}={value}: {fault}")
    check_not_given(engine.options)
    chosen |= dict(engine.options)
    return chosen if on_cpu() else with_kernels(chosen, engine.kernels)


def say_unused_kernels(engine: EngineConfig) -> None:
    """Says where the user named kernels of ours that cannot run here."""
    named = engine.kernels.families
    if engine.starts_vllm and on_cpu() and named not in (None, [AUTO], [VLLM]):
        option = option_text("engine.kernels", named)
        say(f"{option} has no effect: there is no GPU here, and a CPU runs vLLM's own kernels")


def _type_fault(annotation: str, value: Any) -> str:
    """The fault of an option's value; empty without one, or where its type is not a plain one."""
    kind = annotation.removesuffix(" | None")
    if value is None or kind not in ("bool", "int", "float"):
        return ""
    if kind == "bool":
        return "" if isinstance(value, bool) else "is neither true nor false"
    if isinstance(value, str) and NUMBER_TEXT.fullmatch(value):
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return "is no number"
    return "is no whole number" if kind == "int" and value != int(value) else ""


def known_options() -> dict[str, str]:
    """vLLM's options of engine and server with their types, read from its source: importing it
    takes ten seconds."""
    package = importlib.util.find_spec("vllm")
    if package is None or not package.submodule_search_locations:
        raise environment_failure("vLLM is not installed here; `make setup` installs it")
    root = Path(package.submodule_search_locations[0])
    types: dict[str, str] = {}
    for file, classes in OPTION_FILES.items():
        if (root / file).is_file():
            types |= _field_types(root / file, classes)
    if not types:
        raise environment_failure(f"{root}: cannot find the options of this vLLM version")
    return {name: kind for name, kind in types.items() if name not in RESERVED}


@cache
def _field_types(source: Path, classes: tuple[str, ...]) -> dict[str, str]:
    """The annotations in a file of vLLM. Reading one takes a third of a second."""
    types = {}
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name in classes:
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                    types[statement.target.id] = ast.unparse(statement.annotation)
    return types


def environment(settings: Mapping[str, Any] | None = None) -> dict[str, str]:
    """The process environment for vLLM with these options. Usage reports are off. On a CPU, vLLM
    stays one process, which starts seven times faster on two cores."""
    defaults = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if on_cpu():
        defaults["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if KV_CACHE_SIZE not in (settings or {}):  # which the variable would override
            defaults["VLLM_CPU_KVCACHE_SPACE"] = CPU_KV_CACHE_GIB
    return defaults | dict(os.environ) | _import_path()


def _import_path() -> dict[str, str]:
    """The import path on which vLLM finds our plugin, where it is not installed."""
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    added = [path for path in plugin_path() if path not in before]
    return {"PYTHONPATH": os.pathsep.join([*before, *added])} if added else {}


def server_command(
    folder: Path, settings: EngineOptions, host: str, port: int, name: str
) -> list[str]:
    """The command line of the server. It runs the module, because `vllm serve` fails on the other
    distribution name of vLLM's CPU build."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(folder), "--host", host, "--port", str(port)]
    command += ["--served-model-name", name, "--middleware", MIDDLEWARE]
    for option, value in settings.items():
        flag = option.replace("_", "-")
        if isinstance(value, bool):
            command += _switch(flag, value)
        elif isinstance(value, dict) or option in JSON_LISTS:
            command += [f"--{flag}", json.dumps(value)]
        elif isinstance(value, list):
            command += [f"--{flag}", *map(str, value)]
        elif value is not None:
            command += [f"--{flag}", str(value)]
    return command


def _switch(flag: str, value: bool) -> list[str]:
    """vLLM has a `--no-` form for most switches, but not for `--disable-...` ones."""
    if value:
        return [f"--{flag}"]
    return [] if flag.startswith(("disable-", "no-")) else [f"--no-{flag}"]


def server_environment(settings: Mapping[str, Any]) -> dict[str, str]:
    """The environment of a server, whose engine needs its own process to answer many at once. On a
    CPU, vLLM would start a third process, which binds threads to cores; not where it shall bind
    none."""
    variables = environment(settings)
    if variables.get("VLLM_CPU_OMP_THREADS_BIND") != "nobind":
        variables.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
    return variables


@contextmanager
def running_server(
    folder: Path, settings: EngineOptions, name: str, log: Path
) -> Iterator[ServerProcess]:
    """Starts vLLM's server on a free port of this machine, yields it once it answers, and leaves
    no process behind."""
    port = free_port()
    command = server_command(folder, settings, "127.0.0.1", port, name)
    server = ServerProcess(command, server_environment(settings), f"http://127.0.0.1:{port}", log)
    try:
        server.wait_until_healthy()
        server.mark_ready()
        yield server
    finally:
        server.stop()
