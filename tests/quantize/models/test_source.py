"""A source folder whose config.json, weights and tokenizer do not fit each other is refused."""

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from conf.errors import QuantlineError
from conf.schema.model import ModelConfig
from quantize.models.fetch import check_folder, fetch
from quantize.models.load import check_finite, check_usable, load
from quantize.models.source import check_source
from tests.conf.files.made_tokenizers import PREFIX_LONGER_THAN_TOKENS
from tests.conftest import Run
from tests.quantize.models.mutations import UNKNOWABLE, attack, micro

Damage = Callable[[Path], object]
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {family: micro(root / family, family) for family in ("llama", "qwen2", "qwen3")}


@pytest.fixture
def copy(models: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(models["llama"], tmp_path / "copy"))


def check(folder: Path) -> None:
    """Everything that a run checks before it calibrates."""
    model = ModelConfig(path=str(folder))
    check_source(fetch(model), model)
    weights, tokenizer = load(folder, model)
    check_finite(weights)
    check_usable(weights, tokenizer, folder, "What?")


@contextmanager
def edited(path: Path) -> Iterator[dict[str, Any]]:
    content = json.loads(path.read_text())
    yield content
    path.write_text(json.dumps(content))


@contextmanager
def weights_of(folder: Path) -> Iterator[dict[str, torch.Tensor]]:
    stored = load_file(folder / "model.safetensors")
    yield stored
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


def config(**changes: object) -> Damage:
    """Other fields; `...` takes one out."""

    def damage(folder: Path) -> None:
        with edited(folder / "config.json") as content:
            content.update(changes)
            for name in [name for name, value in changes.items() if value is ...]:
                del content[name]

    return damage


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(folder: Path) -> None:
        with weights_of(folder) as stored:
            change(stored)

    return damage


def both(*damages: Damage) -> Damage:
    def damage(folder: Path) -> None:
        for one in damages:
            one(folder)

    return damage


def rename(old: str, new: str) -> Damage:
    return tensors(lambda stored: stored.update({new: stored.pop(old)}))


def put(name: str, tensor: torch.Tensor) -> Damage:
    return tensors(lambda stored: stored.update({name: tensor}))


def header(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / "model.safetensors"
        data = path.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        content = json.loads(data[8 : 8 + length])
        change(content)
        packed = json.dumps(content).encode()
        path.write_bytes(struct.pack("<Q", len(packed)) + packed + data[8 + length :])

    return damage


def text(name: str, content: str | bytes) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def small(name: str, **changes: object) -> Damage:
    def damage(folder: Path) -> None:
        with edited(folder / name) as content:
            content.update(changes)

    return damage


def index(**places: str) -> Damage:
    """One shard with an index; places of tensors by name."""

    def damage(folder: Path) -> None:
        names = load_file(folder / "model.safetensors")
        (folder / "model.safetensors").rename(folder / "a.safetensors")
        listed = dict.fromkeys(names, "a.safetensors") | {
            name.replace("__", "."): file for name, file in places.items()
        }
        listed = {name: file for name, file in listed.items() if file}
        content = json.dumps({"metadata": {}, "weight_map": listed})
        (folder / "model.safetensors.index.json").write_text(content)

    return damage


def twice(folder: Path) -> None:
    index()(folder)
    stored = load_file(folder / "a.safetensors")
    save_file({UP: stored[UP]}, folder / "b.safetensors")
    with edited(folder / "model.safetensors.index.json") as content:
        content["weight_map"][UP] = "b.safetensors"


REFUSED: dict[str, tuple[Damage, str]] = {
    # Weights that are not what config.json asks for.
    "a weight is gone": (tensors(lambda s: s.pop(UP)), f"lacks weights.*{UP}"),
    "a norm is gone": (tensors(lambda s: s.pop("model.norm.weight")), "lacks.*model.norm.weight"),
    "a weight has another name": (rename(UP, f"{UP}s"), "lacks weights"),
    "one too many": (
        put("model.extra.weight", torch.ones(2).bfloat16()),
        "not describe.*model.extra",
    ),
    "a layer too many": (config(num_hidden_layers=1), r"does not describe.*model\.layers\.1"),
    "a layer too few": (config(num_hidden_layers=3), r"lacks.*model\.layers\.2"),
    "a billion layers": (config(num_hidden_layers=10**9), "num_hidden_layers is 1000000000"),
    "more layers than tensors": (config(num_hidden_layers=4000), "files hold"),
    "another width": (config(hidden_size=64), "other shapes"),
    "another inner width": (config(intermediate_size=64), "other shapes.*48 x 32, 64 x 32"),
    "another vocabulary": (config(vocab_size=512), "other shapes.*embed_tokens"),
    "more heads": (config(num_attention_heads=8), "other shapes|no multiple"),
    "fewer KV heads": (config(num_key_value_heads=1), "other shapes.*k_proj"),
    "another head width": (config(head_dim=16), "other shapes"),
    "a bias": (config(attention_bias=True), "lacks.*bias"),
    "not tied": (config(tie_word_embeddings=False), "lacks.*lm_head.weight"),
    "tied, but another head": (
        put("lm_head.weight", torch.ones(260, 32).bfloat16()),
        "lm_head.weight differs from model.embed_tokens.weight",
    ),
    "another family": (config(model_type="qwen3"), "lacks.*q_norm"),
    "an unknown family": (config(model_type="nonsense"), "nonsense"),
    "already quantized": (
        config(quantization_config={"quant_method": "gptq"}),
        "quantized already",
    ),
    "an adapter": (text("adapter_config.json", "{}"), "adapter"),
    "weights elsewhere": (config(transformers_weights="../x"), "transformers_weights"),
    # Types of numbers.
    "another type": (config(dtype="float16"), "dtype is F16, but the weights are BF16"),
    "weights wider than stated": (
        tensors(lambda s: s.update({name: s[name].float() for name in s if name != UP})),
        "dtype is BF16, but the weights are F32",
    ),
    "an unknown type": (config(dtype="bfloat17"), "dtype is 'bfloat17'"),
    "two types": (config(torch_dtype="float32"), "dtype and torch_dtype differ"),
    "an integer weight": (
        tensors(lambda s: s.update({UP: s[UP].to(torch.int8)})),
        f"{UP} is stored as I8",
    ),
    "one weight in half": (tensors(lambda s: s.update({UP: s[UP].half()})), "F16 and .* as BF16"),
    "NaN": (tensors(lambda s: s[UP].fill_(float("nan"))), f"{UP} holds NaN"),
    "infinite": (
        tensors(lambda s: s[UP].view(-1)[3].fill_(float("inf"))),
        f"{UP} holds NaN or inf",
    ),
    "weights that overflow": (tensors(lambda s: s[UP].fill_(3e38)), "computes NaN or infinite"),
    # Values that change the numbers and no shape.
    "a negative epsilon": (config(rms_norm_eps=-1e-6), "rms_norm_eps is -1e-06; should be"),
    "a huge epsilon": (config(rms_norm_eps=1e9), "rms_norm_eps is 1000000000.0"),
    "no epsilon": (config(rms_norm_eps=...), "there is no rms_norm_eps"),
    "epsilon as text": (config(rms_norm_eps="1e-6"), "rms_norm_eps is '1e-6'"),
    "an unknown activation": (config(hidden_act="silly"), "silly"),
    "no activation": (config(hidden_act=...), "there is no hidden_act"),
    "no rope": (config(rope_parameters=...), "there is no rope_theta"),
    "a rope without a base": (config(rope_parameters={"rope_type": "default"}), "no rope_theta"),
    "an unknown rope": (config(rope_parameters={"rope_type": "x", "rope_theta": 1e4}), "rope|'x'"),
    "a rope without its type": (
        config(rope_parameters={"factor": 8.0, "rope_theta": 1e4}),
        "rope_parameters has no rope_type",
    ),
    "a rope in a rope": (
        config(rope_parameters={"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        "rope_parameters.rope_parameters is an object",
    ),
    "a negative rope": (
        config(rope_parameters={"rope_type": "default", "rope_theta": -1e4}),
        "rope_parameters.rope_theta is -10000.0",
    ),
    "a rope that shrinks": (
        config(rope_parameters={"rope_type": "linear", "factor": 0.1, "rope_theta": 1e4}),
        "rope_parameters.factor is 0.1",
    ),
    "no context": (config(max_position_embeddings=0), "max_position_embeddings is 0"),
    "a token outside": (
        config(eos_token_id=260),
        "eos_token_id is 260, .* ends at 259",
    ),
    "a list of tokens outside": (config(eos_token_id=[1, -3]), "eos_token_id"),
    "not a number": (text("config.json", '{"rms_norm_eps": NaN}'), "rms_norm_eps is nan"),
    "a key twice": (text("config.json", '{"a": 1, "a": 2}'), "twice"),
    "an empty config": (text("config.json", ""), "config.json: is empty"),
    "a config of another kind": (text("config.json", "[]"), "holds a list"),
    # The weight files.
    "cut short": (
        lambda folder: (
            (folder / "model.safetensors").write_bytes(
                (folder / "model.safetensors").read_bytes()[:-2]
            )
            and None
        ),
        r"model.safetensors: is cut short",
    ),
    "no header": (text("model.safetensors", b"\xff" * 100), "is not a complete .safetensors"),
    "an empty file": (text("model.safetensors", b""), "is not a complete .safetensors"),
    "wrong offsets": (
        header(lambda h: h[UP].update(data_offsets=[0, 10])),
        r"model.safetensors: its header is damaged",
    ),
    "another type in the header": (header(lambda h: h[UP].update(dtype="F16")), "F16 and"),
    "an unknown type in the header": (
        header(lambda h: h[UP].update(dtype="Q4")),
        "unknown type 'Q4'",
    ),
    "another shape in the header": (header(lambda h: h[UP].update(shape=[24, 64])), "other shapes"),
    "an index outside": (index(model__norm__weight="../b.safetensors"), "outside the folder"),
    "an index of a missing shard": (index(model__norm__weight="b.safetensors"), "is missing"),
    "an index without a tensor": (index(model__norm__weight=""), "does not list model.norm.weight"),
    "an index with one too many": (index(more="a.safetensors"), "says that 'more' is in a.safe"),
    "a tensor in two shards": (twice, f"{UP} is in a.safetensors, too"),
    "an index of another kind": (
        both(index(), text("model.safetensors.index.json", '{"weight_map": [1]}')),
        "index.json: weight_map",
    ),
    # What is loaded, used and written beside the weights.
    "a broken tokenizer": (text("tokenizer.json", "{"), "tokenizer"),
    "a tokenizer at which its library panics": (
        text("tokenizer.json", json.dumps(PREFIX_LONGER_THAN_TOKENS)),
        "tokenizer",
    ),
    "a broken template": (text("chat_template.jinja", "{% for %}"), "cannot be asked"),
    "a template that fails": (text("chat_template.jinja", "{{ 1 / 0 }}"), "cannot be asked"),
    "a broken generation config": (text("generation_config.json", "{"), "generation_config.json:1"),
    "a generation config that fails": (
        small("generation_config.json", num_beams=0),
        "cannot be asked",
    ),
    "an end outside": (small("generation_config.json", eos_token_id=999), "eos_token_id is 999"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_source_that_does_not_fit_is_refused(name: str, copy: Path) -> None:
    damage, message = REFUSED[name]
    damage(copy)
    with pytest.raises(QuantlineError, match=message) as error:
        check(copy)
    assert error.value.exit_code == 2, error.value


ACCEPTED: dict[str, Damage] = {
    "as it is": lambda folder: None,
    "two shards": index(),
    "a head that is the embedding": tensors(
        lambda s: s.update({"lm_head.weight": s["model.embed_tokens.weight"].clone()})
    ),
    "an old file's rotary table": put(
        "model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(4)
    ),
    "an old file's mask": put(
        "model.layers.0.self_attn.masked_bias", torch.ones(1, dtype=torch.uint8)
    ),
    "norms in float32": tensors(
        lambda s: s.update({"model.norm.weight": s["model.norm.weight"].float()})
    ),
    "an old Llama": both(
        config(rope_parameters=..., transformers_version="4.28.1", pad_token_id=-1),
        config(rope_scaling=None, head_dim=..., attention_bias=..., mlp_bias=...),
    ),
    "a rope of its time": config(rope_parameters=..., rope_theta=500000.0),
    "a stretched rope": config(
        rope_parameters=...,
        rope_theta=500000.0,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1024,
        },
    ),
    "no type": config(dtype=...),
    "several ends": config(eos_token_id=[1, 2]),
    "no generation config": lambda folder: (folder / "generation_config.json").unlink(),
    "no template": lambda folder: (folder / "chat_template.jinja").unlink(),
    "a second copy": text("consolidated.safetensors", b"in another layout"),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_real_folders_look_like_is_accepted(name: str, copy: Path) -> None:
    if name == "a second copy":
        index()(copy)
    ACCEPTED[name](copy)
    check(copy)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_models_that_are_made_here_are_accepted(family: str, models: dict[str, Path]) -> None:
    check(models[family])


def test_the_trained_model_is_accepted(tiny: tuple[ModelConfig, Path]) -> None:
    check_source(tiny[1], tiny[0])


def test_a_wrong_head_count_of_a_listed_model_is_named(
    tiny: tuple[ModelConfig, Path], tmp_path: Path
) -> None:
    """Twice the heads of half the width have the same shapes; the list knows better."""
    copy = Path(shutil.copytree(tiny[1], tmp_path / "copy"))
    config(num_attention_heads=8)(copy)
    with pytest.raises(QuantlineError, match="num_attention_heads is 8, but model=tiny has 4"):
        check_folder(copy, tiny[0])


def test_no_weight_is_read_to_refuse_a_model(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of any size is refused by its headers."""
    monkeypatch.setattr("quantize.models.load.AutoModelForCausalLM.from_pretrained", pytest.fail)
    config(num_hidden_layers=3)(copy)
    with pytest.raises(QuantlineError, match="lacks weights"):
        check_source(copy, ModelConfig(path=str(copy)))


def test_loading_itself_refuses_weights_that_were_filled_in(copy: Path) -> None:
    tensors(lambda stored: stored.pop(UP))(copy)
    with pytest.raises(QuantlineError, match=f"lacks weights.*{UP}") as error:
        load(copy, ModelConfig(path=str(copy)))
    assert error.value.exit_code == 2


def test_a_tokenizer_of_a_larger_model_is_refused(copy: Path) -> None:
    with edited(copy / "tokenizer.json") as content:
        first = content["added_tokens"][0]
        content["added_tokens"] += [
            first | {"id": number, "content": f"<|{number}|>"} for number in range(258, 265)
        ]
    with pytest.raises(QuantlineError, match="the tokenizer has a token 264, the embedding 260"):
        check(copy)


def test_the_command_refuses_it_before_anything_is_written(
    copy: Path, quantize_here: Run, tmp_path: Path
) -> None:
    tensors(lambda stored: stored.pop(UP))(copy)
    result = quantize_here(f"model.path={copy}", "output_dir=out", "recipe=fp8_dynamic")
    assert result.returncode == 2, result.stderr
    assert UP in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


def test_mutated_folders_never_crash_and_never_answer_otherwise(tmp_path: Path) -> None:
    """Seeded. `python -m tests.quantize.models.mutations 1000` attacks with more."""
    for done, said, alike in attack(60, 7, tmp_path):
        assert not said.startswith("CRASH"), (done, said)
        if said.startswith("accepted"):
            assert alike or UNKNOWABLE.search(done), done
