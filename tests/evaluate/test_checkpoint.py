"""A checkpoint that is not whole never reaches an engine: what is wrong is named."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from conf.checkpoint_hash import checkpoint_hash
from conf.errors import QuantlineError
from conf.schema.load import EngineConfig
from conf.schema.model import ModelConfig
from serve.checks import check
from serve.tensors import INDEX, tensors

WEIGHTS = "model.safetensors"
FOREIGN = {"quantization_config": {"quant_method": "gptq", "bits": 4}}
Change = Callable[[Path], None]
pytestmark = pytest.mark.usefixtures("programs_here")


@pytest.fixture
def broken(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "broken"))


def refuse(folder: Path, original: Path, words: str, **options: Any) -> QuantlineError:
    with pytest.raises(QuantlineError, match=words) as error:
        check(folder, original, EngineConfig(options=options))
    return error.value


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    found = load_file(folder / WEIGHTS)
    change(found)
    save_file(found, folder / WEIGHTS, {"format": "pt"})


def test_a_whole_one_passes_and_is_remembered(
    tiny_checkpoint: Path, tiny: tuple[ModelConfig, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    check(tiny_checkpoint, tiny[1], EngineConfig())
    check(tiny[1], tiny[1], EngineConfig())
    monkeypatch.setattr("serve.checks.call_one", None)  # not called a second time
    check(tiny_checkpoint, tiny[1], EngineConfig())


@pytest.mark.parametrize("part", ["weight_scale", "weight"])
def test_a_missing_tensor_is_named(broken: Path, tiny: tuple[ModelConfig, Path], part: str) -> None:
    name = f"model.layers.1.mlp.up_proj.{part}"
    edit_tensors(broken, lambda found: found.pop(name))
    assert refuse(broken, tiny[1], name.replace(".", r"\.")).exit_code == 2


def test_a_missing_module_of_an_original_is_named(
    tiny: tuple[ModelConfig, Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(tiny[1], tmp_path / "original"))
    edit_tensors(folder, lambda found: found.pop("model.layers.0.self_attn.k_norm.weight"))
    error = refuse(folder, folder, r"model\.layers\.0\.self_attn\.k_norm is missing")
    assert error.exit_code == 2


@pytest.mark.parametrize("lost", ["scales", "qzeros"])
def test_a_missing_tensor_of_another_format_is_named(
    tiny: tuple[ModelConfig, Path], tmp_path: Path, lost: str
) -> None:
    """AWQ's and GPTQ's own files: qweight, scales and qzeros for each layer."""
    folder = Path(shutil.copytree(tiny[1], tmp_path / "gptq"))
    edit_json(folder / "config.json", lambda content: content.update(FOREIGN))

    def as_gptq(found: dict[str, torch.Tensor]) -> None:
        for layer in (0, 1):
            module = f"model.layers.{layer}.mlp.up_proj"
            del found[f"{module}.weight"]
            for part in ("qweight", "scales", "qzeros"):
                found[f"{module}.{part}"] = torch.zeros(4, 4)
        del found[f"model.layers.1.mlp.up_proj.{lost}"]

    edit_tensors(folder, as_gptq)
    refuse(folder, tiny[1], rf"model\.layers\.1\.mlp\.up_proj\.{lost} is missing")


def test_a_scale_that_is_no_number_fails_the_gate(
    broken: Path, tiny: tuple[ModelConfig, Path]
) -> None:
    name = "model.layers.0.mlp.up_proj.weight_scale"
    edit_tensors(broken, lambda found: found[name].fill_(float("nan")))
    assert refuse(broken, tiny[1], "up_proj.weight_scale holds NaN").exit_code == 4


def _truncate(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])


def _no_safetensors(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"not a model at all")


def _bad_header(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((20).to_bytes(8, "little") + b"x" * 40)


def _stale_index(folder: Path) -> None:
    listed = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / INDEX).write_text(json.dumps(listed))


def _short_index(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": WEIGHTS}}))


def _wrong_index(folder: Path) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.other.weight": WEIGHTS}}))


def _no_quantization(folder: Path) -> None:
    edit_json(folder / "config.json", lambda content: content.pop("quantization_config"))


def _no_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def _other_tokenizer(folder: Path) -> None:
    def swap(content: dict[str, Any]) -> None:
        vocabulary = content["model"]["vocab"]
        first, second = list(vocabulary)[300:302]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]

    edit_json(folder / "tokenizer.json", swap)


def _no_vocabulary_size(folder: Path) -> None:
    edit_json(folder / "config.json", lambda content: content.pop("vocab_size"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_truncate, r"model.safetensors: is cut short"),
        (_no_safetensors, r"model.safetensors: is not a complete .safetensors file"),
        (_bad_header, r"model.safetensors: its header is damaged"),
        (_stale_index, r"index.json: names model-00001-of-00002.safetensors, which is not there"),
        (_short_index, r"index.json: does not list model"),
        (_wrong_index, r"index.json: says that model.other.weight is in model.safetensors"),
        (_no_quantization, r"config.json: there is no quantization_config, yet model.layers"),
        (_no_tokenizer, r"there is no tokenizer.json"),
        (_other_tokenizer, r"tokenizer.json: its vocabulary is not the original's"),
        (_no_vocabulary_size, r"config.json: there is no vocab_size"),
    ],
)
def test_a_damaged_folder_is_named(
    broken: Path, tiny: tuple[ModelConfig, Path], change: Change, words: str
) -> None:
    change(broken)
    assert refuse(broken, tiny[1], words).exit_code == 2


def test_an_fp8_cache_needs_scales(tiny_checkpoint: Path, tiny: tuple[ModelConfig, Path]) -> None:
    error = refuse(tiny_checkpoint, tiny[1], "has no scales for it", kv_cache_dtype="fp8_e4m3")
    assert error.exit_code == 2
    allowed = EngineConfig(options={"kv_cache_dtype": "fp8"}, allow_missing_kv_scales=True)
    check(tiny_checkpoint, tiny[1], allowed)


def test_headers_give_types_and_shapes(tiny_checkpoint: Path) -> None:
    found = tensors(tiny_checkpoint)
    weight = found["model.layers.0.mlp.up_proj.weight"]
    assert (weight.dtype, weight.shape, weight.bytes) == ("I8", (512, 256), 512 * 256)
    assert found["model.embed_tokens.weight"].bytes == 1024 * 256 * 2


def test_a_hash_changes_with_the_weights(broken: Path) -> None:
    before = checkpoint_hash(broken)
    assert checkpoint_hash(broken) == before
    edit_tensors(broken, lambda found: found["model.norm.weight"].add_(1))
    assert checkpoint_hash(broken) != before
