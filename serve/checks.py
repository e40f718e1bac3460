"""Checks a checkpoint before an engine loads it: vLLM loads a broken one silently."""

import hashlib
import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

from pydantic import BaseModel

from conf.cache import log_file
from conf.errors import QuantlineError, bad_input, gate_failed
from conf.files.json_files import read_object, shown_path, validated
from conf.formats.base.stored_format import KernelSupport, Machine
from conf.formats.quantization_config import COMPRESSED_TENSORS, KEY, quantization_of
from conf.formats.registry import marks, verified_methods
from conf.formats.served import support
from conf.hardware import compute_capability, cpu_has_amx, cpu_has_i8mm
from conf.models import CONFIG, TOKENIZER, read_config
from conf.process.merged import Ended, merged
from conf.process.running import call_one, start
from conf.schema.load import EngineConfig, GpuConfig
from conf.terminal import progress, say
from quantize.checkpoint import manifest, verified_marks
from quantize.programs import VERIFY, VerifyRequest
from serve.tensors import Tensor, tensors

PLAIN = frozenset({"weight", "bias"})  # tensors of a module that is not quantized
EXPERTS = ".experts."  # in the names of routed experts' tensors
KV_SCALES = ("k_scale", "v_scale")
CORES_EACH = 4  # of a process that verifies; more of them mostly wait for each other


def check(folder: Path, original: Path, engine: EngineConfig) -> None:
    """Raises the first fault of a checkpoint, with the file or tensor."""
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
    if is_verifiable(config):
        _check_verified(folder)


def is_verifiable(config: Mapping[str, object]) -> bool:
    """Whether quantize can verify a checkpoint of this config."""
    quantization = quantization_of(config)
    return quantization is not None and (
        quantization.method == COMPRESSED_TENSORS or quantization.method in verified_methods()
    )


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
    """Raises where a layer lacks a module, or a module a tensor, that the other layers have.
    Unquantized modules may have fewer tensors; a layer may have other modules instead."""
    layers: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name in stored:
        if match := re.match(r"(.*\.layers\.)(\d+)\.(.*)\.(\w+)$", name):
            layers[match[2]][f"{match[1]}{{}}.{match[3]}"].add(match[4])
    if len(layers) < 2:
        return
    counts = Counter(module for modules in layers.values() for module in modules)
    for number, modules in layers.items():
        missing_modules = [module for module in counts if module not in modules]
        has_own_module = any(counts[module] == 1 for module in modules)
        if missing_modules and not has_own_module and counts[missing_modules[0]] == len(layers) - 1:
            raise bad_input(f"{folder}: {missing_modules[0].format(number)} is missing")
    for module in counts:
        tensors_by_layer = {
            number: frozenset(modules[module])
            for number, modules in layers.items()
            if module in modules
        }
        usual_tensors = Counter(tensors_by_layer.values()).most_common(1)[0][0]
        for number, layer_tensors in tensors_by_layer.items():
            missing_tensors = sorted(usual_tensors - layer_tensors)
            if (
                missing_tensors
                and layer_tensors < usual_tensors
                and (not layer_tensors <= PLAIN or missing_tensors == ["bias"])
            ):
                raise bad_input(
                    f"{folder}: {module.format(number)}.{missing_tensors[0]} is missing"
                )


def _check_tokenizer(folder: Path, original: Path) -> None:
    """Raises where the vocabulary is not the original's; without one there, any is valid."""
    if not (original / TOKENIZER).is_file():
        return
    if not (folder / TOKENIZER).is_file():
        raise bad_input(f"{folder}: there is no {TOKENIZER}")
    if _vocabulary(original / TOKENIZER) != _vocabulary(folder / TOKENIZER):
        raise bad_input(f"{folder / TOKENIZER}: its vocabulary is not the original's")


class _AddedToken(BaseModel):
    content: object


class _TokenizerModel(BaseModel):
    vocab: object


class _TokenizerFile(BaseModel):
    """The fields of tokenizer.json that say which tokens there are."""

    model: _TokenizerModel
    added_tokens: list[_AddedToken]


def _vocabulary(path: Path) -> tuple[object, list[object]]:
    tokenizer: _TokenizerFile = validated(_TokenizerFile, read_object(path), str(path))
    return tokenizer.model.vocab, [token.content for token in tokenizer.added_tokens]


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
    """Whether vLLM runs the checkpoint's format on that GPU, or on this CPU without a GPU."""
    machine = Machine(compute_capability(gpu), os.uname().machine, cpu_has_amx(), cpu_has_i8mm())
    has_quantized_experts = any(
        EXPERTS in name and name.endswith(marks()) for name in tensors(folder)
    )
    return support(quantization_of(read_config(folder)), machine, has_quantized_experts)


def _check_verified(folder: Path) -> None:
    """Verifies the checkpoint with quantize, in its own process, once: a mark remembers that it
    passed. Small files are checked each time."""
    checkpoint_manifest = manifest.find(folder)
    if checkpoint_manifest and (faults := manifest.small_file_faults(folder, checkpoint_manifest)):
        raise bad_input(f"{folder}: {faults[0]}")
    mark = verified_marks.mark(folder)
    if mark.is_file():
        return
    verification = call_one(VERIFY, VerifyRequest([str(folder)]))
    if verification.faults:
        count, first = len(verification.faults), verification.faults[0]
        error_of = gate_failed if verification.holds_nan else bad_input
        raise error_of(f"{shown_path(folder)}: {count} faults; {first}")
    verified_marks.leave(mark)


def verify_together(folders: Iterable[Path]) -> None:
    """Verifies several checkpoints, on a machine with many cores in several processes. Those that
    pass are remembered. `check` verifies the others again, and tells their faults."""
    marks_of = {str(folder): mark for folder in folders if (mark := _missing_mark(folder))}
    if len(marks_of) < 2:
        return
    names = list(marks_of)
    cores = _usable_cores()
    count = min(len(names), max(1, cores // CORES_EACH))
    variables = os.environ | {"OMP_NUM_THREADS": str(max(1, cores // count))}
    with ExitStack() as stack:
        bars = stack.enter_context(progress())
        bar = bars.add_task(f"verifying {len(names)} checkpoints, once", total=len(names))
        bars.update(bar, completed=0)
        workers, logs = {}, {}
        for number in range(count):
            log = logs[str(number)] = log_file(f"{VERIFY.module}-{os.getpid()}-{number}")
            worker = start(VERIFY, VerifyRequest(names[number::count]), log, variables)
            workers[str(number)] = stack.enter_context(closing(worker))
            worker.begin()
        for event in merged({name: worker.events() for name, worker in workers.items()}):
            if not isinstance(event, Ended):
                bars.update(bar, advance=1)
                if not event.faults:
                    verified_marks.leave(marks_of[event.folder])
            elif event.error is None:
                logs[event.name].unlink(missing_ok=True)
            elif isinstance(event.error, QuantlineError):
                say(f"{event.error}; what it had left is verified one by one")
            else:
                raise event.error


def _usable_cores() -> int:
    """The cores that this process may use: fewer than the machine has in a job of a cluster."""
    requested = os.environ.get("OMP_NUM_THREADS", "")
    return int(requested) if requested.isdigit() else len(os.sched_getaffinity(0))


def _missing_mark(folder: Path) -> Path | None:
    """The mark of a checkpoint that has not passed yet. What cannot be read is left to `check`."""
    try:
        mark = verified_marks.mark(folder) if is_verifiable(read_config(folder)) else None
    except (QuantlineError, OSError, ValueError):
        return None
    return None if mark is None or mark.is_file() else mark


def quantization_hash(config: Mapping[str, object]) -> str:
    """A hash of the quantization config; empty for an original."""
    quantization = config.get(KEY)
    if not quantization:
        return ""
    return hashlib.sha256(json.dumps(quantization, sort_keys=True).encode()).hexdigest()
