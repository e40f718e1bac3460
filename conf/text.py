"""Text for calibration and evaluation, as documents. No document is in both parts."""

import hashlib
import json
import random
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from conf.errors import bad_input, environment_failure, one_line, reading, unknown
from conf.files.json_files import no_json, without_repeats
from conf.schema.commands import AccuracyConfig
from conf.schema.text import TextSource
from conf.terminal import say

Part = Literal["calibration", "evaluation"]
Chat = list[dict[str, str]]
Document = str | Chat
TextRow = Mapping[str, object]
"""A row of a data set, by column."""

EVALUATION_SHARE = 0.3
PYTHON_DOCS_PIECE = 2000  # characters: about 500 tokens
SHORTEST_PARAGRAPH = 60  # shorter ones (headings, "Changed in version ...") repeat by nature
HUB_BUFFER = 10_000  # documents of a hub set that the seeded shuffle holds


def documents(source: TextSource, part: Part, seed: int = 0) -> Iterator[Document]:
    """The documents of one part, in a seeded order.

    A document's part depends only on its own text, so that calibration and evaluation never share
    a document, whatever the seed and the number of documents.
    """
    return (document for document in _read_documents(source, seed) if _part_of(document) == part)


def windows(accuracy: AccuracyConfig, tokens_of: Callable[[str], list[int]]) -> list[list[int]]:
    """The evaluation text as token ids, in windows that do not overlap."""
    tokens: list[int] = []
    for document in documents(accuracy.text, "evaluation", accuracy.seed):
        tokens += tokens_of(str(document))
        if len(tokens) >= accuracy.tokens:
            break
    else:
        raise bad_input(
            f"accuracy.tokens={accuracy.tokens}: the evaluation part of the text has "
            f"{len(tokens)}; ask for fewer, or give more text"
        )
    tokens, size = tokens[: accuracy.tokens], accuracy.window
    chunks = [tokens[start : start + size] for start in range(0, len(tokens), size)]
    return [chunk for chunk in chunks if len(chunk) > 1]


def _part_of(document: Document) -> Part:
    text = document if isinstance(document, str) else json.dumps(document, sort_keys=True)
    digest = hashlib.sha256(text.encode()).digest()
    share = int.from_bytes(digest[:4], "big") / 2**32
    return "evaluation" if share < EVALUATION_SHARE else "calibration"


def _read_documents(source: TextSource, seed: int) -> Iterator[Document]:
    if source.source == "hub":
        return _from_rows(_hub_rows(source, seed), source)
    pieces = list(_file_documents(source)) if source.source == "file" else list(python_docs())
    random.Random(seed).shuffle(pieces)
    return iter(pieces)


def python_docs() -> Iterator[str]:
    """CPython's documentation topics in pieces of a page.

    Topics repeat paragraphs of other topics. Only the first copy of a paragraph is used, so that
    no two pieces share one.
    """
    from pydoc_data.topics import topics

    seen: set[str] = set()
    for name in sorted(topics):
        paragraphs = []
        for paragraph in re.split(r"\n\s*\n", topics[name]):
            text = paragraph.strip()
            if text in seen or not text:
                continue
            if len(text) >= SHORTEST_PARAGRAPH:
                seen.add(text)
            paragraphs.append(paragraph.rstrip())
        yield from _pieces(paragraphs)


def _pieces(paragraphs: Iterable[str]) -> Iterator[str]:
    piece: list[str] = []
    for paragraph in paragraphs:
        piece.append(paragraph)
        if sum(map(len, piece)) >= PYTHON_DOCS_PIECE:
            yield "\n\n".join(piece)
            piece = []
    if sum(map(len, piece)) >= SHORTEST_PARAGRAPH:
        yield "\n\n".join(piece)


def _file_documents(source: TextSource) -> Iterator[Document]:
    path = Path(str(source.path)).expanduser()
    if not path.is_file():
        raise bad_input(f"{source.OPTION}.path: there is no file {path}")
    readers = {".txt": _text_file, ".jsonl": _jsonl_file, ".parquet": _parquet_file}
    if path.suffix not in readers:
        raise unknown(f"{source.OPTION}.path={path}", path.suffix, readers)
    return readers[path.suffix](path, source)


def _text_file(path: Path, source: TextSource) -> Iterator[Document]:
    """Documents are separated by two blank lines; in a file without those, by one."""
    if source.is_chat:
        raise bad_input(f"{path}: a text file holds no chats; use .jsonl or .parquet")
    with reading(path):
        text = path.read_text(encoding="utf-8-sig")
    separator = r"\n\s*\n\s*\n" if re.search(r"\n\s*\n\s*\n", text) else r"\n\s*\n"
    return (piece.strip() for piece in re.split(separator, text) if piece.strip())


def _jsonl_file(path: Path, source: TextSource) -> Iterator[Document]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}:{number}"
                yield from _document(_json_row(line, where), source, where)


def _json_row(line: bytes, where: str) -> TextRow:
    try:
        row = without_repeats(line.decode())
    except UnicodeDecodeError as error:
        raise bad_input(f"{where}: is not UTF-8 ({error.reason})") from error
    except (ValueError, RecursionError) as error:
        raise no_json(error, where, is_line=True) from error
    if not isinstance(row, dict):
        raise bad_input(f"{where}: an object is needed, found {type(row).__name__}")
    return row


def _parquet_file(path: Path, source: TextSource) -> Iterator[Document]:
    """Only the columns of the text are read: others may hold what Python has no value for."""
    import pyarrow
    import pyarrow.parquet

    try:
        known = pyarrow.parquet.read_schema(path).names
        _check_columns(known, source, str(path))
        table = pyarrow.parquet.read_table(path, columns=_columns(source))
        # The pages of a damaged file may hold bytes that are no text.
        rows = table.to_pylist()
    except UnicodeDecodeError as error:
        raise bad_input(f"{path}: holds a text that is not UTF-8 ({error.reason})") from error
    except (OSError, pyarrow.ArrowException) as error:
        raise bad_input(f"{path}: no parquet file ({one_line(error)})") from error
    for number, row in enumerate(rows, start=1):
        yield from _document(row, source, f"{path}: row {number}")


def check_hub_set(source: TextSource) -> None:
    """Raises if the hub does not give the set, or the set has no such configuration or split."""
    _hub_rows(source, seed=0)


@contextmanager
def _offline_without_address(source: TextSource) -> Iterator[None]:
    """Makes `datasets` work offline, from its cache, where the hub's name cannot be resolved. It
    would try for 23 s."""
    import datasets
    from huggingface_hub import constants

    is_local = Path(str(source.id)).exists()
    if is_local or datasets.config.HF_HUB_OFFLINE or _has_address(constants.ENDPOINT):
        yield
        return
    say(
        f"{source.OPTION}.id={source.id}: {constants.ENDPOINT} has no address here; looking for "
        "the set in the cache"
    )
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = datasets.config.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE = before, False


def _has_address(endpoint: str) -> bool:
    """Whether the hub may be reached: its name has an address, or a proxy resolves it."""
    parts = urlsplit(endpoint)
    host = parts.hostname
    if host is None:
        return True  # no URL: whoever uses it will say so
    if getproxies().keys() & {parts.scheme, "all"} and not proxy_bypass(host):
        return True
    try:
        socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return True


def _hub_rows(source: TextSource, seed: int) -> Iterable[TextRow]:
    """Rows of a hub set, streamed: a sample of a large set does not fetch all of it."""
    import datasets

    try:
        with _offline_without_address(source):
            rows = datasets.load_dataset(
                str(source.id),
                source.subset,
                split=source.split,
                revision=source.revision,
                streaming=True,
            )
    except (OSError, ValueError, datasets.exceptions.DatasetNotFoundError) as error:
        reason = " ".join(str(error).split())
        raise environment_failure(
            f"{source.OPTION}.id={source.id}: cannot be read: {reason}"
        ) from error
    shuffled: Iterable[TextRow] = rows.shuffle(seed=seed, buffer_size=HUB_BUFFER)
    return shuffled


def _from_rows(rows: Iterable[TextRow], source: TextSource) -> Iterator[Document]:
    for number, row in enumerate(rows, start=1):
        yield from _document(row, source, f"{source.id}: row {number}")


def _columns(source: TextSource) -> list[str]:
    return [source.column, *([source.answer_column] if source.answer_column else [])]


def _check_columns(known: Iterable[str], source: TextSource, where: str) -> None:
    for column in _columns(source):
        if column not in known:
            raise unknown(f"{where}: {source.OPTION}.column", column, known)


def _document(row: TextRow, source: TextSource, where: str) -> Iterator[Document]:
    _check_columns(row, source, where)
    if source.answer_column:
        turns = zip(("user", "assistant"), _columns(source), strict=True)
        yield [
            {"role": role, "content": _text(row[column], f"{where}: {column}")}
            for role, column in turns
        ]
    elif source.chat:
        yield _chat(row[source.column], where)
    else:
        yield _text(row[source.column], f"{where}: {source.column}")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise bad_input(f"{where} should be a text and is {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise bad_input(f"{where} holds half of a surrogate pair, which is no text") from error
    return value


def _chat(value: object, where: str) -> Chat:
    turns = value if isinstance(value, list) else []
    is_chat = all(isinstance(turn, dict) and {"role", "content"} <= set(turn) for turn in turns)
    if not turns or not is_chat:
        raise bad_input(f"{where}: a chat is a list of turns with role and content")
    return [
        {key: _text(turn[key], f"{where}: {key} of turn {number}") for key in ("role", "content")}
        for number, turn in enumerate(turns, start=1)
    ]
