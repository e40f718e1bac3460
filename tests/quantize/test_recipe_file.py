"""llm-compressor's own recipe files: what it would pass over in silence is an error here."""

from pathlib import Path

import pytest

from conf.errors import QuantlineError
from quantize.checkpoint import manifest
from quantize.pipeline import quantize
from quantize.recipe_file import from_file, read
from tests.conftest import quantize_config

GOOD = """
quant_stage:
  quant_modifiers:
    GPTQModifier: {scheme: W4A16, targets: [Linear], ignore: [lm_head]}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "theirs.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD.replace("quant_stage", "quant"), r"'quant' needs the suffix _stage"),
        ("defaults: [w8a8_smooth_gptq]", r"of Quantline.* QUANTLINE_RECIPES=.* recipe=theirs"),
        (
            GOOD.replace("quant_modifiers", "mods"),
            r"'quant_stage.mods' needs the suffix _modifiers",
        ),
        ("GPTQModifier: {scheme: W4A16}", r"'GPTQModifier' needs the suffix _stage"),
        ("", r"the file is empty"),
        ("quant_stage: {}", r"'quant_stage' is empty"),
        ("quant_stage:\n  quant_modifiers:\n", r"'quant_stage.quant_modifiers' is empty"),
        ("a: [", r"theirs.yaml:1: no YAML"),
        (GOOD.replace("GPTQMod", "GTPQMod"), r"no 'GTPQModifier'. Did you mean GPTQModifier"),
        (GOOD.replace("ignore", "ingore"), r"no 'ingore'. Did you mean ignore"),
        (GOOD.replace("W4A16", "W4A17"), r"no 'W4A17'. Did you mean W4A16"),
        (GOOD.replace("GPTQModifier", "WandaPruningModifier"), r"can be run and verified here"),
    ],
)
def test_what_would_do_nothing_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(QuantlineError, match=message) as error:
        read(write(tmp_path, text))
    assert error.value.exit_code == 2


def test_a_changed_file_is_another_run(tmp_path: Path) -> None:
    """Layers that a killed run kept are taken over only if the file says the same."""
    from quantize.pipeline import Text, _key

    config = quantize_config("model=tiny", f"recipe.file={write(tmp_path, GOOD)}")
    first = _key(config, "hash", Text([], None))
    write(tmp_path, GOOD.replace("W4A16", "W8A16"))
    assert _key(config, "hash", Text([], None)) != first


def test_a_missing_file_is_named() -> None:
    with pytest.raises(QuantlineError, match="there is no file"):
        read(Path("/nowhere/recipe.yaml"))


def test_a_good_file_is_described(tmp_path: Path) -> None:
    config = quantize_config("model=tiny", f"recipe.file={write(tmp_path, GOOD)}")
    assert config.recipe.name == "theirs"
    recipe, modifiers = from_file(config.recipe)
    assert recipe.steps == ["gptq"]
    assert recipe.ignore == ["lm_head"]
    assert [type(modifier).__name__ for modifier in modifiers] == ["GPTQModifier"]


def test_int4_with_fp8_activations_is_packed_as_engines_load_it(tmp_path: Path) -> None:
    text = GOOD.replace("W4A16", "W4AFP8")
    _, modifiers = from_file(quantize_config(f"recipe.file={write(tmp_path, text)}").recipe)
    (scheme,) = modifiers[0].resolved_config.config_groups.values()
    assert scheme.format == "pack-quantized"
    group = (
        "{group_0: {targets: [Linear], format: int-quantized,"
        " weights: {num_bits: 4, strategy: group, group_size: 128},"
        " input_activations: {num_bits: 8, type: float, strategy: token, dynamic: true}}}"
    )
    text = text.replace("scheme: W4AFP8, targets: [Linear]", f"config_groups: {group}")
    config = quantize_config(f"recipe.file={write(tmp_path, text)}")
    with pytest.raises(QuantlineError, match="engines load these weights as pack-quantized"):
        from_file(config.recipe)


@pytest.mark.slow
def test_a_checkpoints_own_recipe_gives_the_same_bytes_again(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """The recipe.yaml beside the weights is one that llm-compressor accepts."""
    again = quantize(
        quantize_config(
            "model=tiny",
            f"recipe.file={tiny_checkpoint / 'recipe.yaml'}",
            f"output_dir={tmp_path}",
            "calibration.samples=8",
            "calibration.length=128",
        )
    )
    assert again is not None
    file = "model.safetensors"
    assert (again / file).read_bytes() == (tiny_checkpoint / file).read_bytes()
    assert manifest.read(again).proof.faults == []
