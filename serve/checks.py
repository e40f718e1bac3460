"""Whether a checkpoint is whole, before an engine loads it: vLLM loads a broken one silently."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.cache import cache_root
from conf.errors import GATE_FAILED, bad_input, gate_failed, last_line, world_fault
from conf.files.json_files import read_object
from conf.formats.quantization_config import COMPRESSED_TENSORS, KEY, quantization_of
from conf.formats.registry import marks
from conf.formats.served import support
from conf.formats.stored_format import KernelSupport, Machine
from conf.hardware import compute_capability
from conf.models import CONFIG, SHAPES, files_sha256, read_config
from conf.schema.load import EngineConfig, GpuConfig
from quantize.checkpoint import manifest
from serve import proven
from serve.tensors import Tensor, tensors

TOKENIZER = "tokenizer.json"
PLAIN = frozenset({"weight", "bias"})  # a module that a recipe left alone
KV_SCALES = ("k_scale", "v_scale")
NO_NUMBER = "NaN or infinite"


def check(folder: Path, original: Path, engine: EngineConfig) -> None:
    """Raises what is wrong with a checkpoint, naming the file or tensor."""
    config = read_config(folder)
    for key in ("max_position_embeddings", "vocab_size"):
        if key not in config:
            raise bad_input(f"{folder / CONFIG}: there is no {key}")
    stored = tensors(folder)
    _check_quantization(folder, config, stored)
    _check_layers(folder, stored)
    if folder != original:
        _check_tokenizer(folder, original)
    _check_kv_scales(folder, engine, stored)
    if is_provable(config):
        _check_proof(folder)


def is_provable(config: Mapping[str, object]) -> bool:
    """Whether quantize can prove a checkpoint of this config."""
    quantization = quantization_of(config)
    return quantization is not None and quantization.method == COMPRESSED_TENSORS


def _check_quantization(
    folder: Path, config: Mapping[str, object], stored: dict[str, Tensor]
) -> None:
    quantized = [name for name in stored if name.endswith(marks())]
    if quantized and not config.get(KEY):
        raise bad_input(
            f"{folder / CONFIG}: there is no {KEY}, yet {quantized[0]} and "
            f"{len(quantized) - 1} more tensors are quantized"
        )


def _check_layers(folder: Path, stored: dict[str, Tensor]) -> None:
    """All layers have the same modules and these the same tensors, but for what a recipe leaves
    alone, and layers that have something of their own instead."""
    layers: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name in stored:
        if match := re.match(r"(.*\.layers\.)(\d+)\.(.*)\.(\w+)$", name):
            layers[match[2]][f"{match[1]}{{}}.{match[3]}"].add(match[4])
    if len(layers) < 2:
        return
    counts = Counter(module for modules in layers.values() for module in modules)
    for number, modules in layers.items():
        missing = [part for part in counts if part not in modules]
        own = any(counts[module] == 1 for module in modules)
        if missing and not own and counts[missing[0]] == len(layers) - 1:
            raise bad_input(f"{folder}: {missing[0].format(number)} is missing")
    for module in counts:
        kinds = {
            n: frozenset(modules[module]) for n, modules in layers.items() if module in modules
        }
        usual = Counter(kinds.values()).most_common(1)[0][0]
        for number, parts in kinds.items():
            lost = sorted(usual - parts)
            if lost and parts < usual and (not parts <= PLAIN or lost == ["bias"]):
                raise bad_input(f"{folder}: {module.format(number)}.{lost[0]} is missing")


def _check_tokenizer(folder: Path, original: Path) -> None:
    """The checkpoint's vocabulary is the original's; where the original has none, any will do."""
    if not (original / TOKENIZER).is_file():
        return
    if not (folder / TOKENIZER).is_file():
        raise bad_input(f"{folder}: there is no {TOKENIZER}")
    if _vocabulary(original / TOKENIZER) != _vocabulary(folder / TOKENIZER):
        raise bad_input(f"{folder / TOKENIZER}: its vocabulary is not the original's")


def _vocabulary(path: Path) -> Any:
    content = read_object(path)
    try:
        return content["model"]["vocab"], [token["content"] for token in content["added_tokens"]]
    except (LookupError, TypeError) as error:
        raise bad_input(f"{path}: is no tokenizer ({error!r})") from error


def _check_kv_scales(folder: Path, engine: EngineConfig, stored: dict[str, Tensor]) -> None:
    cache_dtype = str(engine.options.get("kv_cache_dtype", "auto"))
    if not cache_dtype.startswith("fp8") or engine.allow_missing_kv_scales:
        return
    if not any(name.endswith(KV_SCALES) for name in stored):
        raise bad_input(
            f"engine.kv_cache_dtype={cache_dtype}: {folder} has no scales for it; quantize with "
            "kv_cache=fp8, or allow scales of 1 with engine.allow_missing_kv_scales=true"
        )


def support_of(folder: Path, gpu: GpuConfig) -> KernelSupport:
    """Whether vLLM runs its format on that GPU, or on this machine's CPU without one."""
    machine = Machine(compute_capability(gpu), os.uname().machine)
    return support(quantization_of(read_config(folder)), machine)


def _check_proof(folder: Path) -> None:
    """The proof of quantize, in a process of its own; a checkpoint that passed is remembered. Small
    files are looked at each time."""
    ours = manifest.find(folder)
    if ours and (faults := manifest.small_file_faults(folder, ours)):
        raise bad_input(f"{folder}: {faults[0]}")
    passed = proven.mark(folder, checkpoint_hash(folder))
    if passed.is_file():
        return
    result = subprocess.run(
        [sys.executable, "-m", "quantize.verify", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == 0:
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()
        return
    reason = last_line(result.stderr)
    if result.returncode == GATE_FAILED:
        raise (gate_failed if NO_NUMBER in reason else bad_input)(reason)
    raise (bad_input if result.returncode == 2 else world_fault)(reason)


def checkpoint_hash(folder: Path) -> str:
    """One hash over the weight files and the config; remembered until a file changes."""
    files = [*sorted(folder.glob("*.safetensors")), folder / CONFIG]
    if (folder / SHAPES).is_file():
        files.append(folder / SHAPES)
    stamp = json.dumps([_stamp(path) for path in files])
    kept = cache_root() / "hashes" / hashlib.sha256(stamp.encode()).hexdigest()
    if kept.is_file():
        return kept.read_text()
    digest = files_sha256(files)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(digest)
    return digest


def _stamp(path: Path) -> list[str | int]:
    """Changes with every write: a program may set the modification time back, not the ctime."""
    stat = path.stat()
    times = (stat.st_mtime_ns, stat.st_ctime_ns)
    return [str(path.resolve()), stat.st_size, stat.st_dev, stat.st_ino, *times]


def quantization_hash(config: Mapping[str, object]) -> str:
    """A hash of the quantization config; of none for an original."""
    quantization = config.get(KEY)
    if not quantization:
        return ""
    return hashlib.sha256(json.dumps(quantization, sort_keys=True).encode()).hexdigest()
