"""vLLM's OpenAI-compatible server for one checkpoint."""

import json
import os
import shlex
import sys
from pathlib import Path

from conf.errors import bad_input
from conf.schema import ServeConfig
from quantize import manifest
from serve.engine import environment, options

API_KEY = "VLLM_API_KEY"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def server_command(folder: Path, config: ServeConfig) -> list[str]:
    """The command line of the server. The module is called by its path because the CPU build of
    vLLM has another distribution name, on which `vllm serve` stumbles."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(folder), "--host", config.host, "--port", str(config.port)]
    command += ["--served-model-name", _served_name(folder, config)]
    for name, value in options(config.engine).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict | list):
            command += [f"--{flag}", json.dumps(value)]
        elif value is not None:
            command += [f"--{flag}", str(value)]
    return command


def _served_name(folder: Path, config: ServeConfig) -> str:
    """The model's name; for a folder that was named, the one that its manifest gives."""
    if config.checkpoint is None:
        return str(config.model.name)
    return manifest.read(folder).model if (folder / manifest.FILE).is_file() else folder.name


def serve(folder: Path, config: ServeConfig) -> None:
    """Becomes the server: signals reach it directly and nothing is left behind."""
    if config.host not in LOOPBACK and not os.environ.get(API_KEY):
        raise bad_input(f"host={config.host}: other machines could call it; set {API_KEY} first")
    command = server_command(folder, config)
    print(shlex.join(command), flush=True)
    if not config.dry_run:
        variables = environment()
        # The server answers many at once and needs its engine in a process of its own.
        variables.pop("VLLM_ENABLE_V1_MULTIPROCESSING", None)
        os.execve(sys.executable, command, variables)
