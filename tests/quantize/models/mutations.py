"""Damages a source model's folder at random, by a seed: config.json, weights, index, tokenizer.

`python -m tests.quantize.models.mutations 1000` attacks the checks and prints what came through.
"""

import json
import random
import re
import shutil
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from conf.errors import QuantlineError
from conf.schema.model import ModelConfig
from quantize.models.fetch import fetch
from quantize.models.load import check_finite, check_usable, load
from quantize.models.source import check_source
from tests.conftest import quantize_config

WEIGHTS = "model.safetensors"
PROMPT = "What?"
ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 3, 7, 64, 10**9, 10**30, -1e-6, 1e9, 0.5, 1e-300, float("nan"),
    float("inf"), "", "x", "256", [], [1], {}, {"a": 1}, [[]], "\ud800",
]  # fmt: skip
# Fields that may hold several sensible values, of which nothing in the files tells the right one.
UNKNOWABLE = re.compile(r"config \w+ (rope_theta|rms_norm_eps): .* -> [\d.e+-]+$")


def micro(folder: Path, family: str = "qwen3") -> Path:
    """A random model of a few kilobytes, with a tokenizer."""
    from quantize.models import make as build

    dimensions = {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 260,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    fields = [f"model.architecture.{name}={value}" for name, value in dimensions.items()]
    fields += [f"model.architecture.model_type={family}", "model.weights=random"]
    build.random_model(quantize_config("model=tiny", *fields).model, folder)
    return folder


def config_field(folder: Path, chance: random.Random) -> str:
    """A field of config.json, or of a part of it: gone, doubled, renamed or another value."""
    path = folder / "config.json"
    content = json.loads(path.read_text())
    part = content["rope_parameters"] if chance.random() < 0.15 else content
    name = chance.choice(sorted(part))
    kind = chance.choice(("delete", "value", "value", "value", "nest", "rename", "scale"))
    before = part[name]
    if kind == "delete":
        del part[name]
    elif kind == "nest":
        part[name] = {name: before}
    elif kind == "rename":
        part[f"{name}s"] = part.pop(name)
    elif kind == "scale" and isinstance(before, int | float) and not isinstance(before, bool):
        part[name] = type(before)(before * chance.choice((2, 0.5, -1, 1000, 3)))
    else:
        part[name] = chance.choice(ODD)
    after = part.get(name, "(none)")
    path.write_text(json.dumps(content))
    return f"config {kind} {name}: {before!r} -> {after!r}"


def config_text(folder: Path, chance: random.Random) -> str:
    """config.json as text: cut, doubled, other encodings."""
    path = folder / "config.json"
    text = path.read_text()
    kind = chance.choice(("cut", "empty", "list", "bom", "utf16", "byte", "deep", "folder", "gone"))
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind != "gone":
        content: dict[str, bytes] = {
            "cut": text[: chance.randrange(len(text))].encode(),
            "empty": b"",
            "list": b"[1]",
            "bom": b"\xef\xbb\xbf" + text.encode(),
            "utf16": text.encode("utf-16"),
            "byte": text.encode().replace(b"e", b"\xff", 1),
            "deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        }
        path.write_bytes(content[kind])
    return f"config text {kind}"


def tensors(folder: Path, chance: random.Random) -> str:
    """A tensor of the file: gone, renamed, another shape, type or value."""
    path = folder / WEIGHTS
    stored = load_file(path)
    name = chance.choice(sorted(stored))
    tensor = stored[name]
    kind = chance.choice(
        ("drop", "rename", "extra", "reshape", "cut", "int", "half", "wide", "nan", "inf", "layer")
    )
    if kind == "drop":
        del stored[name]
    elif kind == "rename":
        stored[name.replace("weight", "wieght")] = stored.pop(name)
    elif kind == "extra":
        stored[f"{name}_copy"] = tensor.clone()
    elif kind == "reshape":
        stored[name] = tensor.reshape(-1, 2).contiguous()
    elif kind == "cut":
        stored[name] = tensor[:-1].contiguous()
    elif kind in ("int", "half", "wide"):
        types = {"int": torch.int8, "half": torch.float16, "wide": torch.float64}
        stored[name] = tensor.to(types[kind])
    elif kind in ("nan", "inf"):
        tensor.view(-1)[chance.randrange(tensor.numel())] = float(kind)
    else:
        stored["model.layers.7.mlp.up_proj.weight"] = tensor.clone()
    save_file(stored, path, metadata={"format": "pt"})
    return f"tensor {kind} {name}"


def header(folder: Path, chance: random.Random) -> str:
    """The file's bytes: cut short, longer, or a header that says something else."""
    path = folder / WEIGHTS
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    content = json.loads(data[8 : 8 + length])
    name = chance.choice(sorted(set(content) - {"__metadata__"}))
    kind = chance.choice(
        ("cut", "longer", "length", "offset", "dtype", "shape", "odd", "lost", "garbage", "twice")
    )
    entry = content[name]
    if kind == "offset":
        entry["data_offsets"] = [part + chance.choice((-2, 2)) for part in entry["data_offsets"]]
    elif kind == "dtype":
        entry["dtype"] = chance.choice(("F16", "I16", "F32", "F8_E4M3", "XX", "BOOL"))
    elif kind == "shape":
        entry["shape"] = entry["shape"][::-1] if len(entry["shape"]) > 1 else [*entry["shape"], 1]
    elif kind == "odd":
        entry[chance.choice(sorted(entry))] = chance.choice(ODD)
    elif kind == "lost":
        del content[name]
    elif kind == "twice":
        content[f"{name}2"] = entry
    packed = json.dumps(content).encode()
    made = struct.pack("<Q", len(packed)) + packed + data[8 + length :]
    if kind == "cut":
        made = data[: chance.randrange(len(data))]
    elif kind == "longer":
        made = data + b"\0" * 8
    elif kind == "length":
        made = struct.pack("<Q", chance.choice((0, 1, 2**40, 2**64 - 1, length - 1))) + data[8:]
    elif kind == "garbage":
        made = chance.randbytes(200)
    path.write_bytes(made)
    return f"header {kind} {name}"


def index(folder: Path, chance: random.Random) -> str:
    """Two shards and an index that does not fit them."""
    stored = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(stored)
    half = len(names) // 2
    shards = {"a.safetensors": names[:half], "b.safetensors": names[half:]}
    for file, inside in shards.items():
        save_file({name: stored[name] for name in inside}, folder / file, {"format": "pt"})
    places = {name: file for file, inside in shards.items() for name in inside}
    content: dict[str, Any] = {"metadata": {}, "weight_map": places}
    name = chance.choice(names)
    kind = chance.choice(
        ("swap", "drop", "extra", "outside", "gone", "odd", "type", "double", "both")
    )
    if kind == "swap":
        places[name] = "b.safetensors" if places[name] == "a.safetensors" else "a.safetensors"
    elif kind == "drop":
        del places[name]
    elif kind == "extra":
        places["model.more.weight"] = "a.safetensors"
    elif kind == "outside":
        places[name] = chance.choice(("../x.safetensors", "/etc/passwd", "a/../b.safetensors"))
    elif kind == "gone":
        (folder / places[name]).unlink()
    elif kind == "odd":
        places[name] = chance.choice(ODD)
    elif kind == "type":
        content["weight_map"] = chance.choice(ODD)
    elif kind == "double":
        save_file(stored, folder / "b.safetensors", {"format": "pt"})
    else:
        save_file(stored, folder / WEIGHTS, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    return f"index {kind} {name}"


def small_files(folder: Path, chance: random.Random) -> str:
    """The tokenizer's files and generation_config.json."""
    names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    path = folder / chance.choice((*names, "chat_template.jinja"))
    text = path.read_text()
    kind = chance.choice(("cut", "empty", "byte", "field", "field", "gone", "list"))
    if kind == "field" and path.suffix == ".json":
        content = json.loads(text)
        name = chance.choice(sorted(content))
        content[name] = chance.choice(ODD)
        path.write_text(json.dumps(content))
        return f"{path.name} {name}: {content[name]!r}"
    if kind == "gone":
        path.unlink()
    else:
        made = {"cut": text[: chance.randrange(len(text))], "empty": "", "list": "[1, 2"}
        path.write_bytes(made.get(kind, text.replace("e", "\u00ff", 1)).encode("latin-1", "ignore"))
    return f"{path.name} {kind}"


def nothing(folder: Path, chance: random.Random) -> str:
    """An undamaged folder has to pass."""
    return "nothing"


Damage = Callable[[Path, random.Random], str]
DAMAGES: tuple[Damage, ...] = (
    *(config_field,) * 4, config_text, *(tensors,) * 2, header, index, small_files, nothing,
)  # fmt: skip


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model(torch.arange(16, 80).view(1, -1)).logits
    return found


def outcome(folder: Path) -> tuple[str, torch.Tensor | None]:
    """What a run says of the folder before it calibrates: `accepted`, an exit code, or a crash."""
    model = ModelConfig(path=str(folder))
    try:
        source = fetch(model)
        check_source(source, model)
        weights, tokenizer = load(source, model)
        check_finite(weights)
        check_usable(weights, tokenizer, source, PROMPT)
        return "accepted", logits(weights)
    except QuantlineError as error:
        return f"exit {error.exit_code}: {error}", None
    except Exception as error:
        return f"CRASH {type(error).__name__}: {error}", None


def attack(count: int, seed: int, scratch: Path) -> list[tuple[str, str, bool]]:
    """Damages `count` copies. Each: what was done, the outcome, and whether it answers the same."""
    originals = {family: micro(scratch / family, family) for family in ("qwen3", "llama")}
    expected = {family: outcome(folder)[1] for family, folder in originals.items()}
    found = []
    for number in range(count):
        chance = random.Random(f"{seed} {number}")
        family = chance.choice(sorted(originals))
        copy = scratch / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(originals[family], copy)
        done = chance.choice(DAMAGES)(copy, chance)
        said, answers = outcome(copy)
        alike = answers is not None and torch.equal(answers, expected[family])
        found.append((f"{family}: {done}", said, alike))
    return found


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        found = attack(count, 1, Path(scratch))
    print(Counter(said.split(":")[0].split(" ", 2)[0:2][0] for _, said, _ in found))
    for done, said, alike in found:
        if not said.startswith("exit 2"):
            print("same " if alike else "OTHER", said[:200], "|", done)


if __name__ == "__main__":
    main(int(sys.argv[1]))
