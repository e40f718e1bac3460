"""What is caught before a weight is read."""

import json
import re
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import save_file

from conf.errors import QuantlineError
from conf.schema.model import ModelConfig
from quantize import preflight as module
from quantize.models.fetch import without_weights
from quantize.preflight import check_machine, preflight
from quantize.preflight_plan import Preflight
from tests.conftest import Run, quantize_config

Disk = namedtuple("Disk", "total used free")
LONG_TEXT = ("calibration.samples=256", "calibration.length=2048", "calibration.pack=true")


def check(source: Path, *options: str) -> module.Preflight:
    return preflight(source, quantize_config("model=tiny", *options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["ignore=['re:.*down_porj']"], r"recipe.ignore: 're:.*down_porj' matches no module"),
        (["recipe.ignore=[lm_head,lm_haed]"], r"'lm_haed' matches no module. Did you mean lm_head"),
        (["recipe.targets=[Linaer]"], r"recipe.targets: 'Linaer' matches .* Did you mean Linear"),
        (["recipe.ignore=[]"], r"lm_head is the embedding in this model"),
        (["group_size=64"], r"recipe=w8a8_smooth_gptq has no groups"),
        (["recipe=w4a16_gptq", "group_size=96"], r"group size 96 does not divide .*q_proj \(256"),
        (["recipe=w4a16_gptq", "group_size=7"], r"group_size=7: weight-only kernels take groups"),
        (["recipe=nvfp4a16", "group_size=32"], r"group_size=32: NVFP4 has groups of 16"),
        (["recipe.ignore=['re:.*']"], r"recipe: no linear layer of Qwen3ForCausalLM is left"),
        (["recipe=sparse24", "ignore=['re:.*_proj$']"], r"recipe: no linear layer .* is left"),
        (["recipe.targets=[Qwen3RMSNorm]"], r"'Qwen3RMSNorm' matches no linear layer"),
        (["recipe.targets=[Linear,Embedding]"], r"'Embedding' matches no linear layer"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(
    tiny: tuple[ModelConfig, Path], options: list[str], message: str
) -> None:
    with pytest.raises(QuantlineError, match=message) as error:
        check(tiny[1], *options)
    assert error.value.exit_code == 2


def test_all_experts_count_and_routers_do_not(tmp_path: Path) -> None:
    """Of Qwen2's mixture: 64 experts and a shared one in every layer, without any gate."""
    from quantize.models.architecture_config import architecture_config

    model = quantize_config("model=qwen2-57b-a14b").model
    assert model.architecture is not None
    architecture = replace(model.architecture, num_hidden_layers=2)
    architecture_config(architecture).save_pretrained(tmp_path)
    found = check(tmp_path, "recipe=w4a16_gptq", "gpu=h200", "preflight=only")
    assert found.modules == 2 * (4 + 3 + 64 * 3)
    assert found.recipe.ignore == ["lm_head", r"re:.*\.mlp\.shared_expert_gate$"]
    assert found.disk_gib == pytest.approx(architecture.parameters * 4 / 2**30)


def test_experts_in_codebooks_are_refused(tmp_path: Path) -> None:
    from quantize.models.architecture_config import architecture_config

    model = quantize_config("model=tiny-moe").model
    assert model.architecture is not None
    architecture_config(model.architecture).save_pretrained(tmp_path)
    with pytest.raises(QuantlineError, match="no engine runs experts in codebooks"):
        check(tmp_path, "recipe=vptq_2bit")


def test_auto_takes_the_largest_group_that_fits(tiny: tuple[ModelConfig, Path]) -> None:
    found = check(tiny[1], "recipe=w4a16_gptq", "group_size=auto")
    assert found.recipe.weights is not None
    assert found.recipe.weights.group_size == 128


def test_smollm2_has_576_columns(tmp_path: Path) -> None:
    """From its config alone: preflight reads no weights."""
    from quantize.models.architecture_config import architecture_config

    model = quantize_config().model
    assert model.architecture is not None
    architecture_config(model.architecture).save_pretrained(tmp_path)
    fitting = preflight(tmp_path, quantize_config("recipe=w4a16_gptq", "group_size=auto"))
    assert fitting.recipe.weights is not None
    assert fitting.recipe.weights.group_size == 64
    with pytest.raises(QuantlineError, match="and 175 more; group_size=auto"):
        preflight(tmp_path, quantize_config("recipe=w4a16_gptq"))
    # No hint leads to a size that the format cannot have.
    for recipe in ("w4afp8_gptq", "fp8_block"):
        with pytest.raises(QuantlineError, match=r"and 175 more$"):
            preflight(tmp_path, quantize_config(f"recipe={recipe}"))
    message = "tries groups of 128 for recipe=w4afp8_gptq: none divides 576 and 1536 columns"
    with pytest.raises(QuantlineError, match=message):
        preflight(tmp_path, quantize_config("recipe=w4afp8_gptq", "group_size=auto"))


@pytest.mark.parametrize(("recipe", "size"), [("nvfp4", 16), ("mxfp4", 32), ("w4afp8_awq", 128)])
def test_auto_keeps_the_only_size_of_a_format(
    recipe: str, size: int, tiny: tuple[ModelConfig, Path]
) -> None:
    found = check(tiny[1], f"recipe={recipe}", "group_size=auto")
    assert found.recipe.weights is not None
    assert found.recipe.weights.group_size == size


def test_an_architecture_without_a_mapping_is_named(tmp_path: Path) -> None:
    from transformers import GPT2Config

    GPT2Config(n_embd=64, n_layer=1, n_head=2, vocab_size=64).save_pretrained(tmp_path)
    with pytest.raises(QuantlineError, match="GPT2LMHeadModel"):
        preflight(tmp_path, quantize_config("model=tiny", "recipe.targets=[Linear]"))


def test_too_little_disk_or_memory_is_a_fault_of_the_world(
    tiny: tuple[ModelConfig, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = quantize_config("model=tiny")
    plan = preflight(tiny[1], config)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: Disk(1, 1, 0))
    with pytest.raises(QuantlineError, match=r"0\.0 GiB are free") as error:
        check_machine(plan, config)
    assert error.value.exit_code == 3
    memory = namedtuple("Memory", "available")(0)
    monkeypatch.setattr(module.psutil, "virtual_memory", lambda: memory)
    with pytest.raises(QuantlineError, match=r"GiB are free, .* GiB of memory are free") as error:
        check_machine(plan, config)
    assert error.value.exit_code == 3


def test_the_plan_is_printed_where_the_machine_is_too_small(
    quantize_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = namedtuple("Memory", "available")(16 * 2**30)
    monkeypatch.setattr(module.psutil, "virtual_memory", lambda: small)
    result = quantize_here("model=llama-3.1-70b", "preflight=only")
    assert result.returncode == 3
    assert "560 modules, smoothquant, then gptq" in result.stderr
    assert "vLLM will run it with" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("error: ")
    assert "are needed" in result.stderr.splitlines()[-1]


@pytest.mark.parametrize(("gpu", "memory", "code"), [("h200", 141, 0), ("t4", 1, 3)])
def test_a_plan_for_another_gpu(gpu: str, memory: int, code: int, quantize_here: Run) -> None:
    options = [f"gpu={gpu}", "gpu.name=Another", f"gpu.memory_gib={memory}", "preflight=only"]
    result = quantize_here("model=qwen3-8b", *options)
    assert result.returncode == code, result.stderr
    assert "not for this machine" in result.stderr
    assert "252 modules" in result.stderr
    assert ("has 1.0 GiB" in result.stderr) == (code == 3)


def test_another_gpu_can_only_be_planned_for(quantize_here: Run) -> None:
    result = quantize_here("model=tiny", "gpu=t4", "gpu.name=Another")
    assert result.returncode == 2
    assert "gpu= works only with preflight=only" in result.stderr


def test_preflight_only_reads_and_makes_no_weights(
    tmp_path: Path, quantize_here: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    result = quantize_here("model=tiny", "preflight=only", QUANTLINE_CACHE=str(cache))
    assert result.returncode == 0, result.stderr
    assert "14 modules, smoothquant, then gptq" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]
    assert not (cache / "models").exists()
    # The variable HF_HUB_OFFLINE, which the library has read already.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    hub = quantize_here("model=qwen2-0.5b", "preflight=only")
    assert "168 modules" in hub.stderr


def test_a_weight_that_is_no_number_is_named(
    tiny: tuple[ModelConfig, Path], tmp_path: Path, quantize_here: Run
) -> None:
    import shutil

    from safetensors.torch import load_file

    copy = Path(shutil.copytree(tiny[1], tmp_path / "copy"))
    tensors = load_file(copy / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, copy / "model.safetensors", metadata={"format": "pt"})
    result = quantize_here(f"model.path={copy}", "recipe=fp8_dynamic")
    assert result.returncode == 2
    assert "model.norm.weight holds NaN" in result.stderr
    assert json.loads((copy / "config.json").read_text())


def test_a_width_that_a_mask_or_a_word_does_not_divide_is_named(tmp_path: Path) -> None:
    """A model of 18 columns: no multiple of 4, nor of the 8 that make a word of 4-bit weights."""
    from transformers import LlamaConfig

    LlamaConfig(
        hidden_size=18,
        intermediate_size=18,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=3,
        head_dim=6,
        vocab_size=32,
        tie_word_embeddings=False,
    ).save_pretrained(tmp_path)
    for options, message in (
        (["recipe=sparse24"], r"the width of a 2:4 mask, 4, does not divide .*q_proj \(18 columns"),
        (["recipe.steps=[gptq]", "recipe.activations=null", "recipe.weights.bits=4"], "packing"),
        (["recipe=fp8_block"], r"group size 128 does not divide .*q_proj \(18 columns"),
        (["recipe=nvfp4a16"], r"group size 16 does not divide .*q_proj \(18 columns"),
    ):
        with pytest.raises(QuantlineError, match=message) as error:
            check(tmp_path, *options)
        assert error.value.exit_code == 2
    assert check(tmp_path, "recipe=fp8_dynamic").modules == 7


def test_targets_that_overlap_are_no_fault(tiny: tuple[ModelConfig, Path]) -> None:
    found = check(tiny[1], "recipe.targets=['re:.*_proj$',Linear]", "recipe=w4a16_gptq")
    assert found.modules == 14


@pytest.mark.parametrize("model", ["llama-3.1-70b", "qwen2-72b"])
def test_one_card_suffices_for_70b(model: str, quantize_here: Run) -> None:
    result = quantize_here(f"model={model}", "gpu=h200", "preflight=only", *LONG_TEXT)
    assert result.returncode == 0, result.stderr
    assert re.search(r"one GPU suffices: \d\d\.\d of 141 GiB at the peak", result.stderr)


def test_the_peak_of_a_gpu_does_not_depend_on_the_number_of_layers() -> None:
    plans = []
    for layers in (3, 80):
        config = quantize_config("model=llama-3.1-70b", "gpu=h200", "preflight=only", *LONG_TEXT)
        assert config.model.architecture is not None
        config.model.architecture.num_hidden_layers = layers
        with without_weights(config.model) as folder:
            plans.append(preflight(folder, config))
    assert plans[0].gpu_gib == plans[1].gpu_gib
    assert plans[0].gpu_peak_gib == plans[1].gpu_peak_gib
    assert plans[0].host_gib < plans[1].host_gib / 5


def test_several_gpus_share_the_text_and_each_holds_the_model() -> None:
    plans = []
    for gpus in (1, 8):
        options = ("gpu=h200", "preflight=only", f"gpus={gpus}", *LONG_TEXT)
        config = quantize_config("model=llama-3.1-70b", *options)
        with without_weights(config.model) as folder:
            plans.append(preflight(folder, config))
    assert plans[1].calibration_s < plans[0].calibration_s / 2.5
    assert plans[1].host_gib == pytest.approx(plans[0].host_gib * 8, rel=0.05)
    assert "8 GPUs share the text" in " ".join(plans[1].lines())


@pytest.mark.parametrize(
    ("calibration_s", "text"),
    [
        (0.0, "about 18 s to load, save and verify"),
        (0.2, "about 1 s to calibrate and 18 s to load, save and verify"),
        (41316.0, "about 11.5 h to calibrate and 18 s to load, save and verify"),
    ],
)
def test_times_are_in_the_unit_that_suits_them(calibration_s: float, text: str) -> None:
    recipe = quantize_config("recipe=fp8_dynamic").recipe
    plan = Preflight(recipe, 1, 1, 1, 1, 1, 1, calibration_s=calibration_s, other_s=18.0)
    assert plan.lines()[1].endswith(text)
