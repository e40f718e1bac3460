"""Calibration text: every token is used or counted as left out."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from conf.errors import QuantlineError
from conf.schema.model import ModelConfig
from conf.schema.text import CalibrationConfig
from quantize.calibrate.batches import (
    batches,
    calibration_samples,
    check_document_count,
    tokenize,
)

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@pytest.fixture(scope="module")
def tokenizer(tiny: tuple[ModelConfig, Path]) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(tiny[1])


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Documents of 1 to 40 words, an empty one among them."""
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": f"document {i} " + "word " * i}) for i in range(1, 41)]
    path.write_text("\n".join([*lines, json.dumps({"text": ""})]))
    return path


def test_packed_samples_are_full_and_the_rest_is_counted(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    config = CalibrationConfig(samples=10, length=100, pack=True)
    samples, counts = calibration_samples(config, tokenizer)
    assert [len(sample) for sample in samples] == [100] * 10
    assert counts.samples == 10
    assert counts.tokens == 1000
    texts = [tokenizer(text)["input_ids"] for text in _first_documents(counts.documents)]
    assert counts.tokens + counts.cut_tokens == sum(len(text) + 1 for text in texts)


def _first_documents(count: int) -> list[str]:
    from itertools import islice

    from conf.text import documents

    return [str(text) for text in islice(documents(CalibrationConfig(), "calibration", 0), count)]


def test_unpacked_samples_keep_their_length_and_cuts_are_counted(
    tokenizer: PreTrainedTokenizerFast, rows: Path
) -> None:
    config = CalibrationConfig(
        source="file", path=str(rows), samples=1000, length=32, allow_fewer=True
    )
    samples, counts = calibration_samples(config, tokenizer)
    assert counts.documents == counts.skipped + counts.samples
    assert max(map(len, samples)) == 32
    assert min(map(len, samples)) < 32
    assert counts.cut_tokens > 0
    whole, _ = calibration_samples(
        CalibrationConfig(
            source="file", path=str(rows), samples=1000, length=1000, allow_fewer=True
        ),
        tokenizer,
    )
    assert counts.tokens + counts.cut_tokens == sum(map(len, whole))


def test_too_little_text_is_an_error_that_says_how_much_there_is(
    tokenizer: PreTrainedTokenizerFast, rows: Path
) -> None:
    config = CalibrationConfig(source="file", path=str(rows), samples=1000)
    with pytest.raises(QuantlineError, match=r"calibration.samples=1000: the text gives only \d+"):
        calibration_samples(config, tokenizer)


def test_too_few_documents_are_found_without_a_tokenizer(rows: Path) -> None:
    config = CalibrationConfig(source="file", path=str(rows), samples=1000)
    with pytest.raises(QuantlineError, match=r"samples=1000: .* has only \d+ documents"):
        check_document_count(config)
    check_document_count(replace(config, samples=1))
    check_document_count(replace(config, allow_fewer=True))
    check_document_count(replace(config, pack=True))  # how many samples it gives, tokens decide


def test_the_same_seed_gives_the_same_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    digests = [
        calibration_samples(CalibrationConfig(samples=4, length=64, seed=seed), tokenizer)[1].sha256
        for seed in (1, 1, 2)
    ]
    assert digests[0] == digests[1] != digests[2]


def test_batches_hold_equal_lengths_and_every_token() -> None:
    samples = [[1] * 5, [2] * 3, [3] * 5, [4] * 5, [5] * 3]
    made = batches(samples, batch_size=2)
    assert [tuple(batch["input_ids"].shape) for batch in made] == [(2, 5), (1, 5), (2, 3)]
    assert sum(batch["input_ids"].numel() for batch in made) == sum(map(len, samples))
    assert all(torch.equal(batch["attention_mask"].unique(), torch.tensor([1])) for batch in made)


def test_a_chat_goes_through_the_template(tokenizer: PreTrainedTokenizerFast) -> None:
    text = tokenizer.decode(tokenize(CHAT, tokenizer))
    assert text == "user: Hi\nassistant: Hello\n"


def test_a_chat_without_a_template_is_an_error(tokenizer: PreTrainedTokenizerFast) -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(QuantlineError, match="no chat template"):
        tokenize(CHAT, bare)


def test_a_chat_that_the_template_refuses_is_named(tokenizer: PreTrainedTokenizerFast) -> None:
    strict = copy.copy(tokenizer)
    strict.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(QuantlineError, match=r"refuses .*Hello.*: roles must alternate") as error:
        tokenize(CHAT, strict)
    assert error.value.exit_code == 2


def test_documents_are_joined_only_with_an_end_of_text_token(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(QuantlineError, match=r"calibration.pack=true: the tokenizer has no end-of"):
        calibration_samples(CalibrationConfig(samples=2, length=32, pack=True), bare)


def test_a_doubled_first_token_is_an_error(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(QuantlineError, match="twice"):
        tokenize(f"{tokenizer.bos_token}{tokenizer.bos_token} text", tokenizer)
