"""vLLM's OpenAI-compatible server for one checkpoint."""

import os
import shlex
import sys
from pathlib import Path

from conf.errors import bad_input
from conf.schema import ServeConfig
from serve.engine import environment, options

API_KEY = "VLLM_API_KEY"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def server_command(folder: Path, config: ServeConfig) -> list[str]:
    """The command line of the server. The module is called by its path because the CPU build of
    vLLM has another distribution name, on which `vllm serve` stumbles."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(folder), "--host", config.host, "--port", str(config.port)]
    command += ["--served-model-name", f"{config.model.name}"]
    for name, value in options(config.engine).items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            command.append(flag)
        elif value is not False and value is not None:
            command += [flag, str(value)]
    return command


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
