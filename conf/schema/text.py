"""The options of text: where it comes from, and what is calibrated on."""

from dataclasses import dataclass, field
from typing import ClassVar

from conf.schema.ranges import SEED_MOST, TOKENS_MOST, choices, not_empty, within

# Small models know it surely; for the capital of France SmolLM2 has two first words that tie.
QUESTION = "What is the capital of Japan?"
TEXT_SOURCES = ("python_docs", "file", "hub")


@dataclass
class TextSource:
    """Where text comes from: CPython's documentation, a file, or a set on the hub."""

    OPTION: ClassVar[str] = "accuracy.text"
    """The option that holds it, for messages."""
    source: str = field(default="python_docs", metadata=choices(*TEXT_SOURCES))
    """python_docs, file or hub."""
    path: str | None = None
    """For a file: its path (.txt, .jsonl or .parquet)."""
    id: str | None = None
    """For a hub set: its id, or a local folder that holds such a set."""
    subset: str | None = None
    """For a hub set: the configuration name."""
    split: str = field(default="train", metadata=not_empty())
    """For a hub set: the split to read."""
    revision: str | None = None
    """For a hub set: branch, tag or commit."""
    column: str = field(default="text", metadata=not_empty())
    """The field that holds the text; for a chat, the list of messages."""
    answer_column: str | None = None
    """A second field that answers the first: together they are a chat of two turns."""
    chat: bool = False
    """The field holds messages (role and content); the model's chat template writes them out."""

    def __post_init__(self) -> None:
        if self.source == "file" and not self.path:
            raise ValueError(f"{self.OPTION}.source=file needs {self.OPTION}.path=FILE")
        if self.source == "hub" and not self.id:
            raise ValueError(f"a data set of the hub needs its id: {self.OPTION}.id=ORG/NAME")

    @property
    def is_chat(self) -> bool:
        return self.chat or self.answer_column is not None


@dataclass
class CalibrationConfig(TextSource):
    """The text a recipe is calibrated on, and how much of it."""

    OPTION: ClassVar[str] = "calibration"
    samples: int = field(default=64, metadata=within(1, 10**6))
    """Sequences to calibrate on."""
    length: int = field(default=512, metadata=within(8, TOKENS_MOST))
    """Tokens in a sequence; a longer document is cut there."""
    pack: bool = False
    """Join documents, each closed by the end-of-text token, so that every sequence is full."""
    seed: int = field(default=0, metadata=within(0, SEED_MOST))
    """Seed of the choice of documents."""
    allow_fewer: bool = False
    """Go on where the text has fewer samples, instead of stopping."""
