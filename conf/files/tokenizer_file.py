"""Reads a model's tokenizer.json."""

from pathlib import Path
from typing import TYPE_CHECKING

from conf.errors import reading
from conf.files.json_files import read_text

if TYPE_CHECKING:  # imported only where a tokenizer is read
    from tokenizers import Tokenizer


def read_tokenizer(path: Path) -> "Tokenizer":
    """The tokenizer in a file. Raises bad input where it holds none."""
    from tokenizers import Tokenizer

    text = read_text(path)
    with reading(f"{path}: is no tokenizer"):
        return Tokenizer.from_str(text)
