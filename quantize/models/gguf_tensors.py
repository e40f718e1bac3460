"""The tensors of a GGUF file under the names of a transformers model, de-quantized in pieces."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, dequantize

from conf.architecture import Architecture
from conf.errors import bad_input, reading

PIECE = 1 << 24  # weights that are de-quantized at once: 64 MiB in float32
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
COMPUTED = ("rope_freqs.weight",)  # transformers computes them from the config
LAYER_TENSOR = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
TENSOR = re.compile(r"(\w+)\.(weight|bias)")
# Fields of the file, after the architecture's name, and of ours.
FIELDS = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
KINDS = ("llama", "qwen2", "qwen3")
FLOAT32_ERROR = 1e-6  # the file has its numbers in float32


@dataclass(frozen=True)
class GgufTensor:
    """A stored tensor. A row of a matrix is a row of `data`, in the file's own encoding."""

    name: str
    data: Any
    kind: Any
    shape: tuple[int, ...]

    def pieces(self) -> Iterator[torch.Tensor]:
        """The numbers in bf16, some rows at a time."""
        rows = max(1, PIECE // max(1, math.prod(self.shape[1:])))
        for start in range(0, self.shape[0], rows):
            # A copy: torch takes no read-only memory.
            values = np.array(dequantize(self.data[start : start + rows], self.kind), np.float32)
            if not np.isfinite(values).all():
                raise bad_input(f"{self.name} holds NaN or infinite values")
            yield torch.from_numpy(values).to(torch.bfloat16)


class GgufFile:
    """A GGUF file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with reading(path):
            self._reader = GGUFReader(path)

    def value(self, key: str) -> Any:
        """A field of the file; None for a field that it does not have."""
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def check(self, architecture: Architecture) -> None:
        """Raises if the file's own description differs from the listed architecture."""
        kind = self.value("general.architecture")
        if kind != architecture.model_type or kind not in KINDS:
            raise bad_input(
                f"{self.path}: the file holds a model of type {kind}, {architecture.model_type} is "
                f"listed; {', '.join(KINDS)} can be converted"
            )
        for key, name in FIELDS.items():
            stored, listed = self.value(f"{kind}.{key}"), getattr(architecture, name)
            if stored is None:
                raise bad_input(f"{self.path}: there is no {kind}.{key}")
            if not math.isclose(stored, listed, rel_tol=FLOAT32_ERROR):
                raise bad_input(
                    f"{self.path}: {kind}.{key} is {stored}, but {name} is listed as {listed}"
                )

    def tensors(self, architecture: Architecture) -> dict[str, GgufTensor]:
        """The tensors by their names in transformers."""
        found: dict[str, GgufTensor] = {}
        for stored in self._reader.tensors:
            if stored.name in COMPUTED:
                continue
            data = stored.data
            if architecture.model_type == "llama":
                data = _in_halves(stored.name, data, architecture)
            shape = tuple(reversed(stored.shape.tolist()))
            found[_name(stored.name)] = GgufTensor(stored.name, data, stored.tensor_type, shape)
        return found


def _name(name: str) -> str:
    """The name of a tensor in transformers."""
    in_layer, outside = LAYER_TENSOR.fullmatch(name), TENSOR.fullmatch(name)
    if in_layer and in_layer[2] in LAYER_NAMES:
        return f"model.layers.{in_layer[1]}.{LAYER_NAMES[in_layer[2]]}.{in_layer[3]}"
    if outside and outside[1] in NAMES:
        return f"{NAMES[outside[1]]}.{outside[2]}"
    raise bad_input(f"{name}: the GGUF file has a tensor that is not known")


def _in_halves(name: str, data: Any, architecture: Architecture) -> Any:
    """Queries and keys in transformers' order of rows. For Llama, the converter of llama.cpp puts
    the two numbers that a rotation mixes beside each other; transformers has them in two halves."""
    heads = {
        "attn_q": architecture.num_attention_heads,
        "attn_k": architecture.num_key_value_heads,
    }
    layer_tensor = LAYER_TENSOR.fullmatch(name)
    if layer_tensor is None or layer_tensor[2] not in heads:
        return data
    order = np.arange(data.shape[0]).reshape(heads[layer_tensor[2]], -1, 2)
    return data[order.swapaxes(1, 2).ravel()]
