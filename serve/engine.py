"""What starting vLLM takes on this machine: the model's folder, the options, the environment."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from conf.errors import QuantlineError, bad_input
from conf.hardware import cpu_has_bf16, gpu_names
from conf.models import cached_folder, is_made_here
from conf.schema import EngineConfig, ModelConfig
from quantize.manifest import published

CPU_KV_CACHE_GIB = "4"


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
    return chosen | dict(engine.options)


def environment() -> dict[str, str]:
    """The process environment for vLLM. It reports to nobody; on a CPU it stays one process,
    which starts seven times faster on two cores."""
    wanted = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if on_cpu():
        wanted["VLLM_CPU_KVCACHE_SPACE"] = CPU_KV_CACHE_GIB
        wanted["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return wanted | dict(os.environ)
