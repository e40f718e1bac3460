"""A choice is recorded: for a resume, in the manifest, on the card, and as what verify expects."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from rich.console import Console

from conf.formats.quant_args import INT, QuantArgs, QuantGroup
from conf.schema.mixed import Choice, FormatGroup, MixedRecipe, with_choice
from conf.schema.number_format import NumberFormat
from quantize.calibrate.resume import WorkFolder
from quantize.checkpoint.card import choice_lines
from quantize.checkpoint.manifest_parts import RecipeClaim
from quantize.checkpoint.verify.recipe import recipe_faults, requested_recipe
from quantize.mixed.run import chosen_recipe
from quantize.steps.base.formats import formats
from tests.conftest import quantize_config

INT4 = NumberFormat(type="int", bits=4, strategy="group", group_size=128)
INT8 = NumberFormat(type="int", bits=8, strategy="group", group_size=128)
GROUPS = [
    FormatGroup("w4a16_g128", INT4, None, ["a.q_proj", "a.k_proj"]),
    FormatGroup("w8a16", INT8, None, ["a.o_proj"]),
    FormatGroup("original", None, None, ["a.down_proj"]),
]


def mixed_recipe() -> MixedRecipe:
    choice = Choice(GROUPS, 5.5, 0.02, 0.03, 0.97)
    return with_choice(quantize_config("recipe=auto").recipe, choice)


def claim() -> RecipeClaim:
    return RecipeClaim.model_validate(asdict(mixed_recipe()))


def stored_groups(**bits: int) -> dict[str, QuantGroup]:
    """The groups of a config, by module; `bits`: those of a module that differ."""
    expected = {"a.q_proj": 4, "a.k_proj": 4, "a.o_proj": 8} | bits
    return {
        name: QuantGroup("g", QuantArgs(INT, width, "group", 128))
        for name, width in expected.items()
        if width < 16
    }


def faults(groups: dict[str, QuantGroup], *more_targeted: str) -> list[str]:
    targeted = {name for group in GROUPS for name in group.modules} | {*more_targeted}
    return recipe_faults(requested_recipe(claim()), targeted, groups, has_kv_cache=False)


def test_modules_are_compared_with_the_choice() -> None:
    assert faults(stored_groups()) == []
    assert faults(stored_groups(**{"a.o_proj": 4})) == [
        "a.o_proj: weights have bits 4, the recipe asks for 8"
    ]
    assert faults(stored_groups(**{"a.k_proj": 16})) == ["a.k_proj is not quantized"]
    assert faults(stored_groups(**{"a.down_proj": 8})) == [
        "a.down_proj is quantized, but the recipe does not ask for it"
    ]


def test_a_choice_that_leaves_a_module_out_is_a_fault() -> None:
    assert faults(stored_groups(), "a.up_proj") == [
        "a.up_proj: the choice and the recipe's targets differ"
    ]


def test_groups_name_their_modules_and_no_class() -> None:
    """vLLM would take a class for every merged module, in whichever group it is."""
    fields = formats(mixed_recipe())
    groups, ignore = fields["config_groups"], fields["ignore"]
    assert isinstance(groups, dict)
    assert [group.targets for group in groups.values()] == [["a.q_proj", "a.k_proj"], ["a.o_proj"]]
    assert ignore == ["lm_head", "a.down_proj"]


@pytest.mark.slow
def test_vllm_finds_the_format_of_each_merged_layer() -> None:
    """By the names of its parts, in vLLM's own search; no model is loaded."""
    from compressed_tensors.quantization import QuantizationConfig
    from vllm.model_executor.layers.quantization.compressed_tensors import compressed_tensors

    class QKVParallelLinear(torch.nn.Module):
        """Its name holds that of the class Linear."""

    merged = {"qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]}
    groups = [
        FormatGroup("w4a16_g128", INT4, None, [f"a.{part}" for part in merged["qkv_proj"]]),
        FormatGroup("w8a16", INT8, None, [f"a.{part}" for part in merged["gate_up_proj"]]),
        FormatGroup("original", None, None, [f"b.{part}" for part in merged["qkv_proj"]]),
    ]
    recipe = with_choice(quantize_config("recipe=auto").recipe, Choice(groups, 5, 0, 0, 1))
    content = QuantizationConfig(**formats(recipe)).model_dump(mode="json")
    config = compressed_tensors.CompressedTensorsConfig.from_config(content)
    config.packed_modules_mapping = merged
    found = {
        name: config.get_scheme_dict(QKVParallelLinear(), name)
        for name in ("a.qkv_proj", "a.gate_up_proj", "b.qkv_proj")
    }
    bits = {name: entry and entry["weights"].num_bits for name, entry in found.items()}
    assert bits == {"a.qkv_proj": 4, "a.gate_up_proj": 8, "b.qkv_proj": None}


def test_the_card_says_what_was_chosen() -> None:
    assert choice_lines(claim()) == [
        "- 5.500 bits a weight of the layers: 2 w4a16_g128, 1 w8a16, 1 original",
        "- predicted by plain rounding: divergence 0.0300, recovery 0.9700",
    ]


def test_an_interrupted_run_keeps_its_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, console = quantize_config("recipe=auto").recipe, Console(stderr=True)
    measured: list[str] = []

    def measure(*_: object) -> Choice:
        measured.append("once")
        return mixed_recipe().made_choice

    monkeypatch.setattr("quantize.mixed.run._measured", measure)
    for _ in range(2):
        work = WorkFolder(tmp_path / "work", {"key": 1})
        run = chosen_recipe(recipe, None, "tiny", [], work, console)
        assert run.choice == mixed_recipe().choice
    assert measured == ["once"]
    (tmp_path / "work" / "choice.json").write_text('{"groups": [')
    chosen_recipe(recipe, None, "tiny", [], work, console)
    assert len(measured) == 2  # a record that was cut short is measured again
