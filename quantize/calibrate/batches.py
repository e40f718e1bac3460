"""From documents to token batches, with a count of every token that was used or left out."""

import hashlib
import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from conf.errors import bad_input
from conf.schema.commands import CalibrationConfig
from conf.text import Document, documents

Tokens = list[int]
SHORTEST_SAMPLE = 8  # tokens; below that a sample says nothing about activations


@dataclass
class TextCounts:
    """What was really used; stored with the checkpoint."""

    documents: int = 0
    """Documents that were read."""
    skipped: int = 0
    """Of them, those that were empty or a few tokens long."""
    samples: int = 0
    """Sequences that were used."""
    tokens: int = 0
    """Tokens in them."""
    cut_tokens: int = 0
    """Tokens of the documents read that lie beyond the last sequence or the length limit."""
    sha256: str = ""
    """Hash of all token ids in their order."""


def calibration_samples(
    config: CalibrationConfig, tokenizer: Any
) -> tuple[list[Tokens], TextCounts]:
    """The token sequences to calibrate on: a seeded choice, packed or one a document."""
    counts = TextCounts()
    texts = _tokenized(documents(config, "calibration", config.seed), config, tokenizer, counts)
    if config.pack:
        samples = _packed(texts, config, tokenizer, counts)
    else:
        samples = _one_each(texts, config, counts)
    counts.samples = len(samples)
    counts.tokens = sum(map(len, samples))
    if len(samples) < config.samples and not config.allow_fewer:
        raise bad_input(
            f"calibration.samples={config.samples}: the text gives only {len(samples)} "
            f"({counts.documents} documents, {counts.skipped} of them too short to use); "
            "ask for fewer, or set calibration.allow_fewer=true"
        )
    if not samples:
        raise bad_input("calibration: the text gives no sample at all")
    counts.sha256 = hashlib.sha256(repr(samples).encode()).hexdigest()
    return samples, counts


def _tokenized(
    texts: Iterator[Document], config: CalibrationConfig, tokenizer: Any, counts: TextCounts
) -> Iterator[Tokens]:
    for text in texts:
        counts.documents += 1
        tokens = tokenize(text, tokenizer)
        if len(tokens) < SHORTEST_SAMPLE:
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
        text = tokenizer.apply_chat_template(document, tokenize=False)
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(tokens) > 1 and tokens[0] == tokens[1] == tokenizer.bos_token_id:
        raise bad_input(
            f"calibration: the tokenizer begins a text with '{tokenizer.bos_token}' twice"
        )
    return tokens


def _one_each(
    texts: Iterator[Tokens], config: CalibrationConfig, counts: TextCounts
) -> list[Tokens]:
    samples = []
    for tokens in itertools.islice(texts, config.samples):
        samples.append(tokens[: config.length])
        counts.cut_tokens += max(0, len(tokens) - config.length)
    return samples


def _packed(
    texts: Iterator[Tokens], config: CalibrationConfig, tokenizer: Any, counts: TextCounts
) -> list[Tokens]:
    wanted = config.samples * config.length
    stream: Tokens = []
    for tokens in texts:
        stream += [*tokens, tokenizer.eos_token_id]
        if len(stream) >= wanted:
            break
    full = min(len(stream) // config.length, config.samples)
    counts.cut_tokens = len(stream) - full * config.length
    return [stream[i * config.length : (i + 1) * config.length] for i in range(full)]


def batches(samples: list[Tokens], batch_size: int) -> list[dict[str, torch.Tensor]]:
    """Batches of equal lengths: nothing is padded and nothing is cut to the shortest."""
    by_length: dict[int, list[Tokens]] = defaultdict(list)
    for sample in samples:
        by_length[len(sample)].append(sample)
    return [
        {"input_ids": torch.tensor(group), "attention_mask": torch.ones(len(group), length).long()}
        for length, equal in by_length.items()
        for group in (equal[i : i + batch_size] for i in range(0, len(equal), batch_size))
    ]
