"""Turns documents into token batches, and counts the tokens that were used or left out."""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from conf.errors import bad_input, reading
from conf.files.json_files import shown
from conf.schema.text import CalibrationConfig
from conf.text import Document, documents

Tokens = list[int]
SHORTEST_DOCUMENT = 8  # tokens; a shorter one says nothing about activations


@dataclass
class TextCounts:
    """Counts of the calibration text; stored with the checkpoint."""

    documents: int = 0
    """Documents that were read."""
    skipped: int = 0
    """Documents that were empty or too short to use."""
    samples: int = 0
    """Token sequences that were used."""
    tokens: int = 0
    """Tokens in these sequences."""
    cut_tokens: int = 0
    """Tokens that were read but not used: beyond the last sequence or the length limit."""
    sha256: str = ""
    """Hash of all token ids in their order."""


def calibration_samples(
    config: CalibrationConfig, tokenizer: Any
) -> tuple[list[Tokens], TextCounts]:
    """The token sequences to calibrate on: a seeded choice, packed or one per document."""
    if config.pack and tokenizer.eos_token_id is None:
        raise bad_input("calibration.pack=true: the tokenizer has no end-of-text token")
    counts = TextCounts()
    token_lists = _tokenized_documents(
        documents(config, "calibration", config.seed), config, tokenizer, counts
    )
    if config.pack:
        samples = _packed_samples(token_lists, config, tokenizer, counts)
    else:
        samples = _one_sample_per_document(token_lists, config, counts)
    counts.samples = len(samples)
    counts.tokens = sum(map(len, samples))
    if len(samples) < config.samples and not config.allow_fewer:
        raise bad_input(
            f"calibration.samples={config.samples}: the text gives only {len(samples)} "
            f"({counts.documents} documents, {counts.skipped} of them too short to use); "
            "lower calibration.samples, or set calibration.allow_fewer=true"
        )
    if not samples:
        raise bad_input("calibration: the text gives no sample at all")
    counts.sha256 = hashlib.sha256(repr(samples).encode()).hexdigest()
    return samples, counts


def check_document_count(config: CalibrationConfig) -> None:
    """Raises if a local source has fewer documents than samples are asked for. It needs no
    tokenizer, so it comes before the model is made or fetched."""
    if config.source == "hub" or config.pack or config.allow_fewer:
        return
    source_documents = documents(config, "calibration", config.seed)
    count = sum(1 for _ in itertools.islice(source_documents, config.samples))
    if count < config.samples:
        raise bad_input(
            f"calibration.samples={config.samples}: the calibration part of the text has only "
            f"{count} documents; lower calibration.samples, or set calibration.allow_fewer=true"
        )


def _tokenized_documents(
    source_documents: Iterator[Document],
    config: CalibrationConfig,
    tokenizer: Any,
    counts: TextCounts,
) -> Iterator[Tokens]:
    for document in source_documents:
        counts.documents += 1
        tokens = tokenize(document, tokenizer)
        if len(tokens) < SHORTEST_DOCUMENT:
            counts.skipped += 1
        else:
            yield tokens


def tokenize(document: Document, tokenizer: Any) -> Tokens:
    """Token ids of a text or a chat, with exactly the special tokens the model was trained on."""
    if isinstance(document, str):
        tokens: Tokens = tokenizer(document)["input_ids"]
    else:
        if not tokenizer.chat_template:
            raise bad_input("calibration: the set holds chats and the model has no chat template")
        # The template writes its own special tokens; adding them again would double the first.
        with reading(f"calibration: the chat template refuses {shown(document)}"):
            text = tokenizer.apply_chat_template(document, tokenize=False)
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(tokens) > 1 and tokens[0] == tokens[1] == tokenizer.bos_token_id:
        raise bad_input(
            f"calibration: the tokenizer begins a text with '{tokenizer.bos_token}' twice"
        )
    return tokens


def _one_sample_per_document(
    token_lists: Iterator[Tokens], config: CalibrationConfig, counts: TextCounts
) -> list[Tokens]:
    samples = []
    for tokens in itertools.islice(token_lists, config.samples):
        samples.append(tokens[: config.length])
        counts.cut_tokens += max(0, len(tokens) - config.length)
    return samples


def _packed_samples(
    token_lists: Iterator[Tokens], config: CalibrationConfig, tokenizer: Any, counts: TextCounts
) -> list[Tokens]:
    tokens_needed = config.samples * config.length
    stream: Tokens = []
    for tokens in token_lists:
        stream += [*tokens, tokenizer.eos_token_id]
        if len(stream) >= tokens_needed:
            break
    sample_count = min(len(stream) // config.length, config.samples)
    counts.cut_tokens = len(stream) - sample_count * config.length
    return [
        stream[number * config.length : (number + 1) * config.length]
        for number in range(sample_count)
    ]


def batches(samples: list[Tokens], batch_size: int) -> list[dict[str, torch.Tensor]]:
    """Batches of samples of equal length, so that none is padded or cut."""
    by_length: dict[int, list[Tokens]] = defaultdict(list)
    for sample in samples:
        by_length[len(sample)].append(sample)
    return [
        {"input_ids": torch.tensor(batch), "attention_mask": torch.ones(len(batch), length).long()}
        for length, same_length in by_length.items()
        for batch in (
            same_length[start : start + batch_size]
            for start in range(0, len(same_length), batch_size)
        )
    ]
