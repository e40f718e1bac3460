"""The small files beside the weights: tokenizer, chat template, generation settings."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from conf.files.json_files import read_object, read_text, shown, validated
from conf.files.tokenizer_file import read_tokenizer
from conf.models import TOKENIZER

OBJECTS = ("special_tokens_map.json", "added_tokens.json", "chat_template.json")
Token = Annotated[int, Field(ge=-1)]
Amount = Annotated[float, Field(ge=0, le=1e6)]
Whole = Annotated[int, Field(ge=0, le=2**62)]


class AddedToken(BaseModel):
    """A special token with the rules for finding it in a text."""

    model_config = ConfigDict(strict=True, extra="allow")
    content: str | None = None
    lstrip: bool | None = None
    rstrip: bool | None = None
    normalized: bool | None = None
    single_word: bool | None = None
    special: bool | None = None


class TokenizerConfig(BaseModel):
    """The fields of tokenizer_config.json that can make transformers fail."""

    model_config = ConfigDict(strict=True, extra="allow")
    tokenizer_class: str | None = None
    chat_template: str | list[dict[str, str]] | dict[str, str] | None = None
    bos_token: str | AddedToken | None = None
    eos_token: str | AddedToken | None = None
    pad_token: str | AddedToken | None = None
    unk_token: str | AddedToken | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    model_max_length: Annotated[float, Field(ge=1)] | None = None
    added_tokens_decoder: dict[str, AddedToken] | None = None


class GenerationConfig(BaseModel):
    """The fields of generation_config.json that engines use as defaults."""

    model_config = ConfigDict(strict=True, extra="allow")
    bos_token_id: Token | list[Token] | None = None
    eos_token_id: Token | list[Token] | None = None
    pad_token_id: Token | list[Token] | None = None
    do_sample: bool | None = None
    use_cache: bool | None = None
    output_attentions: bool | None = None
    output_hidden_states: bool | None = None
    temperature: Amount | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=1e6)] | None = None
    max_length: Whole | None = None
    max_new_tokens: Whole | None = None


def small_file_faults(folder: Path, vocabulary: int | None) -> list[str]:
    """Raises if a file cannot be read; returns contradictions to the model."""
    for name, schema in (
        ("tokenizer_config.json", TokenizerConfig),
        ("generation_config.json", GenerationConfig),
    ):
        if _exists(folder / name):
            validated(schema, read_object(folder / name), str(folder / name))
    for name in OBJECTS:
        if _exists(folder / name):
            read_object(folder / name)
    if _exists(folder / "chat_template.jinja"):
        read_text(folder / "chat_template.jinja")
    if _exists(folder / TOKENIZER):
        return _tokenizer_faults(folder / TOKENIZER, vocabulary)
    return []


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _tokenizer_faults(path: Path, vocabulary: int | None) -> list[str]:
    read_object(path)
    tokens = read_tokenizer(path).get_vocab(with_added_tokens=True)
    if not tokens:
        return [f"{path.name}: has no tokens"]
    token, token_number = max(tokens.items(), key=lambda item: item[1])
    if vocabulary and token_number >= vocabulary:
        return [
            f"{path.name}: the token {shown(token)} has the number {token_number}, "
            f"vocab_size is {vocabulary}"
        ]
    return []
