"""What is measured, and what a recipe looks like without weights."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tokenizers import Tokenizer

from conf.errors import QuantlineError
from conf.schema.commands import EvaluateConfig
from evaluate.measure.engines import LoadRequest, create
from evaluate.measure.targets import targets
from evaluate.measure.workload import Load, PlannedRequest
from evaluate.pipeline import check_memory, checked_folder
from quantize.pipeline import quantize
from serve.tensors import tensors
from tests.conftest import evaluate_config, quantize_config


def config(*overrides: str) -> EvaluateConfig:
    return evaluate_config("model=tiny", *overrides)


def shapes(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Types and shapes; a CPU without bf16 leaves scales in float32, a GPU in the model's type."""
    found = {name: (tensor.dtype, tensor.shape) for name, tensor in tensors(folder).items()}
    return {
        name: ("BF16" if name.endswith("_scale") and kind == "F32" else kind, shape)
        for name, (kind, shape) in found.items()
    }


def test_random_weights_need_no_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    asked = "recipes=[w8a8_smooth_gptq,w4a16_gptq,sparse24]"
    found = targets(config("weights=random", asked))
    assert [target.name for target in found] == [
        "original", "w8a8_smooth_gptq", "w4a16_gptq", "sparse24",
    ]  # fmt: skip
    assert all(target.dummy and target.folder for target in found)
    assert found[3].folder is not None
    words = Tokenizer.from_file(str(found[3].folder / "tokenizer.json"))
    assert words.decode([5, 7]) == "w5 w7"
    assert "quantization_config" not in json.loads((found[3].folder / "config.json").read_text())
    monkeypatch.setattr("evaluate.measure.targets.call", None)  # kept from the first time
    assert targets(config("weights=random", asked)) == found
    assert targets(config("weights=random", asked, "original=false")) == found[1:]


def test_what_does_not_fit_into_memory_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On a machine without a GPU; there the system would end the engine without a word."""
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    asked = config("weights=random", "recipes=[original]")
    (original,) = targets(asked)
    assert original.folder is not None
    monkeypatch.setattr("evaluate.measure.engine_memory.gpu_memory_gib", list)
    check_memory(original.folder, asked)
    free = SimpleNamespace(available=1e6)
    monkeypatch.setattr("evaluate.measure.engine_memory.psutil.virtual_memory", lambda: free)
    message = r"it needs 0\.0 GiB for its weights, 0\.0 GiB of memory are free"
    with pytest.raises(QuantlineError, match=message):
        check_memory(original.folder, asked)
    assert checked_folder(original, original.folder, asked) == original.folder
    monkeypatch.setattr("evaluate.measure.engine_memory.gpu_memory_gib", lambda: [(80.0, 79.0)])
    check_memory(original.folder, asked)


@pytest.mark.slow
@pytest.mark.usefixtures("programs_here")
@pytest.mark.parametrize(
    "recipe", ["w8a8_smooth_ptq", "w4a16_gptq", "w4afp8_gptq", "fp8_block", "nvfp4a16"]
)
def test_a_described_checkpoint_has_the_real_ones_tensors(recipe: str, tmp_path: Path) -> None:
    options = ["model=tiny", f"recipe={recipe}", f"output_dir={tmp_path}"]
    real = quantize(quantize_config(*options, "calibration.samples=4", "calibration.length=64"))
    assert real is not None
    described = targets(config("weights=random", f"recipes=[{recipe}]"))[1].folder
    assert described is not None
    assert shapes(described) == shapes(real)
    ours, theirs = (
        json.loads((folder / "config.json").read_text())["quantization_config"]
        for folder in (described, real)
    )
    for group in ("format", "ignore", "quant_method", "kv_cache_scheme"):
        assert ours[group] == theirs[group]
    assert ours["config_groups"].keys() == theirs["config_groups"].keys()
    assert held_by_transformers(described, made_up=True) == held_by_transformers(real)


def held_by_transformers(folder: Path, made_up: bool = False) -> dict[str, tuple[object, ...]]:
    """The parameters after an answer, which is when transformers has unpacked them."""
    load = LoadRequest(
        folder,
        config("engine=transformers", "engine.dtype=bfloat16").engine,
        64,
        made_up,
        folder / "log",
    )
    engine = create(load)
    assert [
        r.output_tokens for r in engine.run_requests(Load([PlannedRequest([20] * 8, 3)] * 2, 2))
    ] == [3, 3]
    model = engine.model  # type: ignore[attr-defined]
    return {name: (value.shape, value.dtype) for name, value in model.named_parameters()}


@pytest.mark.usefixtures("programs_here")
def test_a_recipe_that_does_not_fit_is_a_failure_of_its_own() -> None:
    override = "model.architecture.hidden_size=192"
    found = targets(config("weights=random", "recipes=[w4a16_gptq]", override))
    assert found[0].problem is None
    assert found[1].folder is None
    assert "group size 128 does not divide" in str(found[1].problem)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["weights=random", "recipes=[w8a8_smoth_gptq]"], "Did you mean w8a8_smooth_gptq"),
        (["recipes=[w8a8_smooth_gptq]"], "works only with weights=random"),
        (["weights=random", "checkpoints=[a]"], "not checkpoints"),
        (["weights=random", "accuracy=quick"], "has no accuracy"),
        (["original=false"], "works only with weights=random"),
        (["weights=random", "recipes=[original]", "original=false"], "contradicts original=false"),
        (["weights=randm"], "choose one of trained, random"),
        (["engine.url=http://localhost:1"], "works only with engine=vllm_server"),
    ],
)
def test_what_cannot_be_is_refused(overrides: list[str], words: str) -> None:
    with pytest.raises(QuantlineError, match=words) as error:
        targets(config(*overrides))
    assert error.value.exit_code == 2


def test_a_folder_that_is_not_there_is_said_before_anything_is_measured(
    tiny_checkpoint: Path,
) -> None:
    root = f"checkpoint_root={tiny_checkpoint.parent.parent}"
    with pytest.raises(QuantlineError, match=r"=/nowhere/mine: there is no model .* are: .*/w8a8"):
        targets(config(root, "checkpoints=[/nowhere/mine]"))


def test_a_published_checkpoint_is_known_by_its_name(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, root = tiny_checkpoint.name, f"checkpoint_root={tiny_checkpoint.parent.parent}"
    _, target = targets(config(root, f"checkpoints=[{name}]"))
    assert target.folder == tiny_checkpoint
    # A folder of that name in the working folder comes first.
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    _, target = targets(config(root, f"checkpoints=[{name}]"))
    assert target.folder == Path(name)


def test_a_model_without_checkpoints_is_said_to_be_alone(
    tiny: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (original,) = targets(config(f"checkpoint_root={tmp_path}"))
    assert original.name == "original"
    assert (
        "there is no checkpoint of tiny, so only the original is measured"
        in capsys.readouterr().err
    )
