"""Checks accuracy=quick and accuracy=sensitivity before an engine starts.

All checkpoints of a model share its text, tokenizer and limits: what is wrong there is one error,
not one for each."""

from pathlib import Path

from conf.errors import bad_input
from conf.files.tokenizer_file import read_tokenizer
from conf.models import TOKENIZER, read_config, required_int
from conf.schema.commands import AccuracyConfig
from conf.text import documents, windows


def check_limits(accuracy: AccuracyConfig, folder: Path, max_model_len: int | None = None) -> None:
    """Raises where the model at `folder` has a shorter context or fewer tokens than are needed."""
    config = read_config(folder)
    trained = required_int(config, "max_position_embeddings")
    longest = min(trained, max_model_len or trained)
    needed = accuracy.window + accuracy.continued_tokens
    if needed > longest:
        limit = "the model's" if longest == trained else "engine.max_model_len's"
        raise bad_input(
            f"accuracy.window={accuracy.window}: with accuracy.continued_tokens="
            f"{accuracy.continued_tokens} it needs {needed} tokens of context, more than {limit} "
            f"{longest}"
        )
    vocabulary = required_int(config, "vocab_size")
    if accuracy.likely > vocabulary:
        raise bad_input(
            f"accuracy.likely={accuracy.likely}: the model's vocabulary has {vocabulary} tokens"
        )


def check_text(accuracy: AccuracyConfig, folder: Path) -> None:
    """Raises where the text cannot be read, or has fewer tokens than are asked for, by the
    tokenizer of the model at `folder`. An engine alone can count by a tokenizer of another kind."""
    path = folder / TOKENIZER
    if not path.is_file():
        next(documents(accuracy.text, "evaluation", accuracy.seed), None)
        return
    tokenizer = read_tokenizer(path)
    windows(accuracy, lambda text: list(tokenizer.encode(text).ids))
