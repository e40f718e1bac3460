"""vLLM's OpenAI-compatible server for one checkpoint."""

import os
import shlex
import sys
from pathlib import Path

from conf.errors import bad_input
from conf.schema import ServeConfig
from quantize import manifest
from serve.engine import API_KEY, options, server_command, server_environment

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def _served_name(folder: Path, config: ServeConfig) -> str:
    """The model's name; for a folder that was named, the one that its manifest gives."""
    if config.checkpoint is None:
        return str(config.model.name)
    return manifest.read(folder).model if (folder / manifest.FILE).is_file() else folder.name


def serve(folder: Path, config: ServeConfig) -> None:
    """Becomes the server: signals reach it directly and nothing is left behind."""
    if config.host not in LOOPBACK and not os.environ.get(API_KEY):
        raise bad_input(f"host={config.host}: other machines could call it; set {API_KEY} first")
    name = _served_name(folder, config)
    command = server_command(folder, options(config.engine), config.host, config.port, name)
    print(shlex.join(command), flush=True)
    if not config.dry_run:
        os.execve(sys.executable, command, server_environment())
