"""What is wrong for every checkpoint is one error, before an engine starts."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from conf.errors import QuantlineError
from conf.schema.commands import AccuracyConfig
from conf.schema.model import ModelConfig
from conf.schema.text import TextSource
from evaluate.accuracy.preflight import check_limits, check_text
from evaluate.accuracy.tasks.plan import check_model
from tests.conftest import Run, evaluate_config

TOO_MANY = "accuracy.tokens=9999999"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's files: 64 positions, 8 tokens, each word one token."""
    config = {"max_position_embeddings": 64, "vocab_size": 8}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def quick(**fields: int) -> AccuracyConfig:
    return AccuracyConfig(
        kind="quick", **({"window": 32, "continued_tokens": 8, "likely": 4} | fields)
    )


@pytest.mark.parametrize(
    ("fields", "max_model_len", "message"),
    [
        ({"window": 57}, None, "accuracy.window=57: .* needs 65 tokens .* the model's 64"),
        ({"continued_tokens": 40}, None, "needs 72 tokens"),
        ({}, 39, "engine.max_model_len's 39"),
        ({"likely": 9}, None, "accuracy.likely=9: the model's vocabulary has 8 tokens"),
    ],
)
def test_the_models_limits(
    folder: Path, fields: dict[str, int], max_model_len: int | None, message: str
) -> None:
    check_limits(quick(), folder)
    with pytest.raises(QuantlineError, match=message) as caught:
        check_limits(quick(**fields), folder, max_model_len)
    assert caught.value.exit_code == 2


def test_a_text_with_too_few_tokens(folder: Path) -> None:
    check_text(quick(tokens=1000), folder)
    with pytest.raises(QuantlineError, match=f"{TOO_MANY}: the evaluation part of the text has"):
        check_text(quick(tokens=9999999), folder)


def test_a_text_that_is_not_there_is_named_by_its_option(folder: Path) -> None:
    accuracy = quick()
    accuracy.text = TextSource(source="file", path="/nowhere.txt")
    for _ in ("with a tokenizer", "without"):
        with pytest.raises(QuantlineError, match=r"^accuracy.text.path: there is no file /nowhere"):
            check_text(accuracy, folder)
        (folder / "tokenizer.json").unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"needs accuracy\.text\.path=FILE"):
        TextSource(source="file")


def test_questions_know_the_models_limits(folder: Path) -> None:
    tasks = ("accuracy=questions", "accuracy.tasks=[mmlu]")
    check_model(folder, evaluate_config(*tasks, "engine.max_model_len=64"))
    longer = "engine.max_model_len=65"
    with pytest.raises(QuantlineError, match=f"{longer}: the model has 64 positions"):
        check_model(folder, evaluate_config(*tasks, longer))
    check_model(folder, evaluate_config(*tasks, longer, "engine.hf_overrides={a:1}"))
    with pytest.raises(QuantlineError, match="has no chat template"):
        check_model(folder, evaluate_config(*tasks, "accuracy.chat_template=true"))


@pytest.mark.usefixtures("programs_here")
@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "accuracy=quick", "scenario=none", "engine=transformers"),
        ("evaluate", "accuracy=sensitivity", "recipes=[fp8_dynamic]"),
        ("evaluate.tune", "accuracy=quick", "recipe=original", "scenario=interactive"),
    ],
)
def test_no_engine_starts(
    command: tuple[str, ...],
    tiny: tuple[ModelConfig, Path],
    command_here: Run,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("conf.process.running.spawn", None)
    result = command_here(*command, "model=tiny", TOO_MANY)
    assert result.returncode == 2, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if TOO_MANY in line]
    assert line.startswith(f"error: {TOO_MANY}: the evaluation part of the text has ")
    assert not (tmp_path / "results.jsonl").exists()
