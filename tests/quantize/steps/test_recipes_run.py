"""Every recipe on a real, small model: made, proven, and it answers like the original."""

from pathlib import Path

import pytest

from conf import sources
from quantize.checkpoint import manifest
from quantize.checkpoint.verify import verify
from quantize.pipeline import quantize
from tests.conftest import quantize_config

SMALL = ["model=tiny", "calibration.samples=8", "calibration.length=128"]
FORMATS = {
    "w8a16_awq": "int8, a scale for each group of 128",
    "w8a16_smooth_awq": "int8, a scale for each group of 128",
    "w8a16_sparse_awq": "int8, a scale for each group of 128",
    "w8a8_smooth_gptq": "int8, a scale for each channel",
    "w8a8_smooth_ptq": "int8, a scale for each channel",
    "w8a8_sparse_smooth_gptq": "int8, a scale for each channel",
    "w4a16_gptq": "int4, a scale for each group of 128",
    "w8a16_gptq": "int8, a scale for each group of 128",
    "w4a16_awq": "int4, a scale for each group of 128",
    "w4a16_autoround": "int4, a scale for each group of 128",
    "w4afp8_gptq": "int4, a scale for each group of 128",
    "w4afp8_awq": "int4, a scale for each group of 128",
    "fp8_dynamic": "float8, a scale for each channel",
    "fp8_block": "float8, a scale for each block",
    "nvfp4a16": "float4, a scale for each tensor_group of 16",
    "nvfp4": "float4, a scale for each tensor_group of 16",
    "mxfp4": "float4, a scale for each group of 32",
    "sparse24": "bfloat16",
    "auto": "int4, a scale for each group of 128",
    "auto_fp8": "int4, a scale for each group of 128",
    "vptq_2bit": "vectors of 4 in a codebook of 256 entries (2 bits)",
    "vptq_3bit": "vectors of 8 in codebooks of 512 and 64 entries (1.875 bits)",
}
MIXED = {"auto": {"int4", "int8"}, "auto_fp8": {"int4", "float8"}}  # they have several formats
SMALLER = {
    "auto_fp8": ["recipe.auto.formats=[fp8]"],  # else `tiny` has layers in 16 bit instead
    # Layers of `tiny` have too few vectors for larger codebooks.
    "vptq_3bit": [
        "recipe.weights.codebooks.vector_length=8",
        "recipe.weights.codebooks.entries=512",
        "recipe.weights.codebooks.residual_entries=64",
    ],
}


def test_the_table_names_every_recipe() -> None:
    assert set(FORMATS) == set(sources.choices("recipe", [sources.RECIPES]))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", FORMATS)
def test_a_recipe_gives_what_it_says(recipe: str, tmp_path: Path) -> None:
    options = [*SMALL, f"recipe={recipe}", f"output_dir={tmp_path}", *SMALLER.get(recipe, [])]
    options += ["bits=5"] if recipe in MIXED else []
    folder = quantize(quantize_config(*options, "recipe.autoround.iterations=5"))
    assert folder is not None
    proof = verify(folder)
    assert proof.faults == []
    record = manifest.read(folder)
    if recipe in MIXED:
        assert {name.partition(",")[0] for name in proof.formats} >= MIXED[recipe]
        assert sum(proof.formats.values()) == 15
        assert record.recipe_config.choice is not None
        assert 4.125 < record.recipe_config.choice.bits <= 5
    else:
        assert proof.formats == {FORMATS[recipe]: 14, "tied to the embedding": 1}
    assert record.proof.reload_divergence < 1e-3
    assert "## How to serve it" in (folder / "README.md").read_text()
    expected = {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"}
    assert expected <= {path.name for path in folder.iterdir()}
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "head"),
    [
        (["recipe=w4a16_gptq", "group_size=64", "lm_head=int8"], "int8, a scale for each channel"),
        (["recipe=fp8_dynamic", "lm_head=fp8"], "float8, a scale for each channel"),
        (["recipe=w4a16_awq", "lm_head=int4"], "int4, a scale for each group of 128"),
    ],
)
def test_the_head_can_be_quantized_too(options: list[str], head: str, tmp_path: Path) -> None:
    folder = quantize(quantize_config(*SMALL, *options, f"output_dir={tmp_path}"))
    assert folder is not None
    formats = verify(folder).formats
    assert sum(formats.values()) == 15
    assert head in formats
    assert "tied to the embedding" not in formats


@pytest.mark.slow
def test_a_kv_cache_gets_its_scales(tmp_path: Path) -> None:
    from quantize.checkpoint.tensors import CheckpointTensors

    folder = quantize(quantize_config(*SMALL, "kv_cache=fp8", f"output_dir={tmp_path}"))
    assert folder is not None
    with CheckpointTensors(folder) as tensors:
        scales = [tensors[name] for name in tensors if name.endswith(("k_scale", "v_scale"))]
    assert len(scales) == 4
    assert all((scale > 0).all() for scale in scales)
