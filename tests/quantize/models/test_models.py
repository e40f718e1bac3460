"""Models: made here, taken from a folder, refused when they are not plain safetensors."""

import json
import os
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from filelock import Timeout
from transformers import AutoModelForCausalLM, AutoTokenizer

from conf.errors import QuantlineError
from conf.models import cached_folder
from conf.schema.model import ModelConfig
from conf.schema.text import QUESTION, TextSource
from conf.text import documents
from quantize.models import make as build
from quantize.models.fetch import check_folder, fetch, make_locked, without_weights
from tests.conftest import Run, quantize_config


@pytest.fixture
def copy(tiny: tuple[ModelConfig, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny[1], tmp_path / "copy"))


def test_tiny_knows_its_text_far_better_than_chance(tiny: tuple[ModelConfig, Path]) -> None:
    """On text that it was not trained on; chance is the vocabulary's size."""
    model = AutoModelForCausalLM.from_pretrained(tiny[1], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tiny[1])
    texts = [str(text) for text in documents(TextSource(), "evaluation")]
    tokens = torch.tensor([token for text in texts for token in tokenizer(text)["input_ids"]])
    windows = tokens[: 32 * 128].view(32, 128)
    with torch.no_grad():
        perplexity = model(input_ids=windows, labels=windows).loss.exp().item()
    assert perplexity < model.config.vocab_size / 8


def test_random_weights_are_seeded_and_of_the_full_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    folders = {}
    for seed in (1, 2):
        model = quantize_config("model=tiny", "model.weights=random", f"model.seed={seed}").model
        folders[seed] = fetch(model)
    again = tmp_path / "again"
    build.random_model(
        quantize_config("model=tiny", "model.weights=random", "model.seed=1").model, again
    )
    weights = [
        (folder / "model.safetensors").read_bytes() for folder in (folders[1], folders[2], again)
    ]
    assert weights[0] == weights[2] != weights[1]
    loaded = AutoModelForCausalLM.from_pretrained(folders[1])
    assert loaded.num_parameters() == 1_443_328
    assert AutoTokenizer.from_pretrained(folders[1])("häßlich")["input_ids"]


def test_a_model_is_made_once(tiny: tuple[ModelConfig, Path]) -> None:
    before = (tiny[1] / "model.safetensors").stat().st_mtime_ns
    assert fetch(tiny[0]) == tiny[1] == cached_folder(tiny[0])
    assert (tiny[1] / "model.safetensors").stat().st_mtime_ns == before


def test_a_run_that_waits_for_another_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other run made the model in the meantime."""
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    model = quantize_config("model=tiny").model
    cached_folder(model).mkdir(parents=True)
    lock = Mock(acquire=Mock(side_effect=[Timeout("tiny.lock"), None]))
    monkeypatch.setattr("quantize.models.fetch.FileLock", lambda _: lock)
    assert make_locked(model, cached_folder(model)) == cached_folder(model)
    assert "tiny: waiting for another run, which makes it" in capsys.readouterr().err
    lock.release.assert_called_once_with()


def test_a_half_made_model_is_never_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTLINE_CACHE", str(tmp_path))
    model = quantize_config("model=tiny", "model.weights=random").model
    save = build._save

    def die_after_saving(*arguments: object) -> None:
        save(*arguments)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "_save", die_after_saving)
    with pytest.raises(KeyboardInterrupt):
        fetch(model)
    assert not cached_folder(model).exists()
    monkeypatch.setattr(build, "_save", save)
    assert fetch(model) == cached_folder(model)


@pytest.mark.slow
@pytest.mark.network
def test_smollm2_speaks(tmp_path: Path) -> None:
    from quantize.models.load import answer, load

    model = quantize_config().model
    folder = fetch(model)
    weights, tokenizer = load(folder, model)
    assert "Tokyo" in answer(weights, tokenizer, QUESTION)
    assert tokenizer.eos_token == "<|im_end|>"
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config
    assert config["dtype"] == "bfloat16"


def test_a_hub_model_comes_from_the_hubs_cache(
    tiny: tuple[ModelConfig, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub client's own cache, laid out as a download leaves it, stands in for the hub."""
    repository = tmp_path / "models--org--name"
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = repository / "snapshots" / commit
    (repository / "blobs").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "v1").write_text(commit)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(tiny[1].iterdir())):
        shutil.copy(path, repository / "blobs" / str(number))
        (snapshot / path.name).symlink_to(repository / "blobs" / str(number))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model = quantize_config("model.id=org/name", "model.revision=v1").model
    assert model.name == "name"
    assert fetch(model) == snapshot
    for path in snapshot.glob("*.safetensors"):
        path.unlink()
    with without_weights(model) as folder:
        assert folder == snapshot
    edit(snapshot / "config.json", auto_map={"AutoModelForCausalLM": "evil.Model"})
    with pytest.raises(QuantlineError, match="auto_map asks to run"), without_weights(model):
        pass


def test_a_hub_model_without_a_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(QuantlineError, match=r"model.id=Qwen/Qwen3-8B.*model.path=FOLDER") as error:
        fetch(quantize_config("model=qwen3-8b").model)
    assert error.value.exit_code == 3


# ---- what a folder must be -----------------------------------------------------------------


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def only_bin(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def remote_code(folder: Path) -> None:
    edit(folder / "config.json", auto_map={"AutoModelForCausalLM": "evil.Model"})
    (folder / "evil.py").write_text("raise SystemExit('code ran')")


def shard_outside(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "../other.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def shard_missing(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "gone.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def shard_is_a_link_out(folder: Path) -> None:
    outside = folder.parent / "outside.safetensors"
    (folder / "model.safetensors").rename(outside)
    (folder / "model.safetensors").symlink_to(outside)


def tokenizer_is_a_pipe(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    os.mkfifo(folder / "tokenizer.json")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (only_bin, "no .safetensors weights .only pytorch_model.bin"),
        (remote_code, "auto_map asks to run Python code"),
        (shard_outside, "the shard '../other.safetensors' lies outside"),
        (shard_missing, "the shard 'gone.safetensors' is missing"),
        (shard_is_a_link_out, "model.safetensors is a link out of the folder"),
        (tokenizer_is_a_pipe, "tokenizer.json: is a pipe, socket or device"),
        (lambda folder: (folder / "config.json").unlink(), "there is no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config.json:1: no JSON"),
        (lambda folder: edit(folder / "config.json", hidden_size=64), "hidden_size is 64"),
    ],
)
def test_a_folder_that_is_no_plain_model_is_refused(
    copy: Path, tiny: tuple[ModelConfig, Path], damage: object, message: str
) -> None:
    check_folder(copy, tiny[0])
    damage(copy)  # type: ignore[operator]
    with pytest.raises(QuantlineError, match=message) as error:
        check_folder(copy, tiny[0])
    assert error.value.exit_code == 2


def test_any_folder_works_by_its_path(copy: Path, command_here: Run) -> None:
    model = quantize_config(f"model.path={copy}").model
    assert model.name == "copy"
    assert fetch(model) == copy
    result = command_here("quantize", f"model.path={copy}", "model=qwen3-8b")
    assert result.returncode == 2
    assert "model=qwen3-8b has 4096" in result.stderr
