"""Whether a folder holds the model that its config.json describes, before a weight is read.

transformers fills missing weights with random numbers and ignores unexpected ones; both would be
quantized and published. The headers and the architecture on the meta device show such faults in
seconds, for a model of any size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers.utils import logging

from conf.errors import bad_input, reading
from conf.files.json_files import JsonObject, read_object
from conf.files.stored_tensor import Tensor
from conf.models import CONFIG
from conf.schema.model import ModelConfig
from quantize.models.experts import linear_experts
from quantize.models.headers import Headers, read_headers
from quantize.models.load import empty_model, refuse_misfits
from quantize.models.source_config import check_stated, check_token_ids, check_values, stated_dtype

GENERATION = "generation_config.json"
TORCH_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def check_source(folder: Path, model: ModelConfig) -> None:
    """Raises where config.json, the headers of the weights and the architecture disagree."""
    file = folder / CONFIG
    content = read_object(file)
    check_values(content, file)
    headers = read_headers(folder)
    _check_layer_count(headers, content, file)
    empty = empty_model(folder, model.trust_remote_code)
    _check_dtypes(headers, content, file, empty)
    check_stated(content, empty.config, file)
    _check_fit(folder, empty, headers)
    _check_tied(empty, headers)
    _check_generation(folder, empty)


def _check_dtypes(headers: Headers, content: JsonObject, file: Path, empty: Any) -> None:
    """Raises unless all weights have one dtype; a few may be float32, as in some models. Buffers
    that old files store beside the weights are not checked."""
    parameters = {name for name, _ in empty.named_parameters(remove_duplicate=False)}
    example_by_dtype: dict[str, str] = {}
    for name, tensor in headers.tensors.items():
        if name not in parameters and f"{empty.base_model_prefix}.{name}" not in parameters:
            continue
        if tensor.dtype not in TORCH_DTYPES:
            raise bad_input(
                f"{headers.owners[name]}: {name} is stored as {tensor.dtype}; weights are F32, "
                "F16 or BF16"
            )
        example_by_dtype.setdefault(tensor.dtype, name)
    if {"F16", "BF16"} <= set(example_by_dtype):
        half, bfloat = example_by_dtype["F16"], example_by_dtype["BF16"]
        raise bad_input(
            f"{headers.owners[half]}: {half} is stored as F16 and {bfloat} as BF16; a model has "
            "only one of them"
        )
    stated, stored = stated_dtype(content), headers.dominant_dtype
    narrows = stored == "F32" and stated != "F32"
    if stated and example_by_dtype and (stated not in example_by_dtype or narrows):
        raise bad_input(f"{file}: dtype is {stated}, but the weights are {stored}")


def _check_layer_count(headers: Headers, content: JsonObject, file: Path) -> None:
    """Raises if the files cannot hold the stated layers. Runs before the architecture is built: a
    million layers would take hours."""
    for section in (content, content.get("text_config")):
        if not isinstance(section, dict):
            continue
        layers = section.get("num_hidden_layers") or section.get("n_layer")
        if isinstance(layers, int) and layers > len(headers.tensors):
            raise bad_input(
                f"{file}: num_hidden_layers is {layers}, but the files hold "
                f"{len(headers.tensors)} tensors"
            )


def _check_fit(folder: Path, empty: Any, headers: Headers) -> None:
    """Raises if transformers would report missing, unexpected or misshapen weights."""
    stored = {name: _meta_tensor(tensor) for name, tensor in headers.tensors.items()}
    family = linear_experts(empty.config.model_type)
    with reading(folder), _silenced_transformers(), family:
        _, info = type(empty).from_pretrained(
            None,
            config=empty.config,
            state_dict=stored,
            device_map="meta",
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    refuse_misfits(folder, info)


def _meta_tensor(tensor: Tensor) -> torch.Tensor:
    dtype = TORCH_DTYPES.get(tensor.dtype, torch.float32)
    return torch.empty(tensor.shape, dtype=dtype, device="meta")


def _check_tied(empty: Any, headers: Headers) -> None:
    """Raises if a stored head that is tied to the embedding differs from it."""
    for target, source in empty.all_tied_weights_keys.items():
        if target not in headers.tensors or source not in headers.tensors:
            continue
        head, embedding = _read_tensor(headers, target), _read_tensor(headers, source)
        if head.dtype != embedding.dtype or not torch.equal(head, embedding):
            raise bad_input(
                f"{headers.owners[target]}: {target} differs from {source}, but config.json says "
                "tie_word_embeddings: true"
            )


def _read_tensor(headers: Headers, name: str) -> torch.Tensor:
    with reading(headers.owners[name]), safe_open(headers.owners[name], "pt") as file:
        tensor: torch.Tensor = file.get_tensor(name)
        return tensor


def _check_generation(folder: Path, empty: Any) -> None:
    """Checks generation_config.json, which is loaded, used and written again."""
    file = folder / GENERATION
    if not file.exists() and not file.is_symlink():
        return
    content = read_object(file)
    text = getattr(empty.config, "text_config", None) or empty.config
    check_token_ids(content, file, text.vocab_size)
    with reading(file), _silenced_transformers():
        from transformers import GenerationConfig

        GenerationConfig.from_dict(content).validate(strict=True)


@contextmanager
def _silenced_transformers() -> Iterator[None]:
    """Silences transformers' log: the same faults are raised here."""
    previous_verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(previous_verbosity)
