"""Reads a file of traffic in any of the known formats. An error is one line with file and place."""

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from conf.errors import bad_input
from conf.files.json_files import JsonObject, check_regular, parse_object, shown_path, validated
from conf.schema.traffic import AUTO, BLOCK_TOKENS, MOONCAKE
from conf.terminal import listed, say
from evaluate.measure.traffic.conversation import Conversation
from evaluate.measure.traffic.formats import mooncake
from evaluate.measure.traffic.formats.base import TrafficFormat
from evaluate.measure.traffic.formats.known import FORMATS, check_answer_key, format_of, shown_key
from evaluate.measure.traffic.formats.unread import unread_texts
from evaluate.measure.traffic.times import in_seconds

LARGEST_FILE = 1 << 31  # bytes
LONGEST_LINE = 1 << 27  # characters
MOST_RECORDS = 10**7
SPACE = " \t\r\n"


class Record(NamedTuple):
    """A record of a file, and where it stands there."""

    content: JsonObject
    where: str


def read_conversations(
    path: Path,
    name: str = AUTO,
    unit: str = AUTO,
    block_tokens: int = BLOCK_TOKENS,
    may_be_cut: bool = False,
) -> list[Conversation]:
    """All conversations of a file. `may_be_cut` takes what precedes the place where a JSON list
    breaks off. `unit` is that of the times, if it is not the format's own."""
    kind: TrafficFormat | None = None
    conversations = []
    unread: set[str] = set()
    for record in _records(path, may_be_cut):
        if kind is None:
            kind = FORMATS.get(name) or format_of(record.content, record.where)
            kind = _with_blocks(kind, block_tokens, path)
        conversation = _conversation(kind, record)
        unread.update(unread_texts(kind, record.content, record.where))
        if conversation is not None:
            conversations.append(conversation)
        if len(conversations) > MOST_RECORDS:
            raise bad_input(f"{shown_path(path)}: has more than {MOST_RECORDS:,} records")
    if not conversations:
        raise bad_input(f"{shown_path(path)}: has no request with a prompt and an answer")
    _check_times(conversations, path)
    _say_unused_blocks(conversations, block_tokens, path)
    assert kind is not None
    if unread:
        names = listed([shown_key(key) for key in sorted(unread)])
        say(f"{shown_path(path)}: texts that the format {kind.name} does not read: {names}")
    return in_seconds(conversations, kind.unit if unit == AUTO else unit)


def _with_blocks(kind: TrafficFormat, block_tokens: int, path: Path) -> TrafficFormat:
    """The format, with blocks of this size where it has blocks."""
    if kind.name == MOONCAKE:
        return mooncake.format_of(block_tokens)
    if block_tokens != BLOCK_TOKENS:
        raise bad_input(
            f"traffic.block_tokens={block_tokens}: works only with the format {MOONCAKE}; "
            f"{shown_path(path)} has the format {kind.name}"
        )
    return kind


def _say_unused_blocks(conversations: list[Conversation], block_tokens: int, path: Path) -> None:
    if block_tokens == BLOCK_TOKENS:
        return
    prompts = (turn.prompt for conversation in conversations for turn in conversation.turns)
    if not any(passage.seed for prompt in prompts for passage in prompt):
        say(f"traffic.block_tokens has no effect: {shown_path(path)} has no hash_ids")


def _conversation(kind: TrafficFormat, record: Record) -> Conversation | None:
    content = validated(kind.record, record.content, record.where)
    try:
        conversation = kind.conversation(content)
    except ValueError as error:
        raise bad_input(f"{record.where}: {error}") from error
    if conversation is not None and any(turn.answer is None for turn in conversation.turns):
        check_answer_key(kind, record.content, record.where)
    return conversation


def _check_times(conversations: list[Conversation], path: Path) -> None:
    """Either all requests have a time of arrival or none has, and the times do not go back."""
    times = [conversation.arrival_s for conversation in conversations]
    known = [time for time in times if time is not None]
    if known and len(known) < len(times):
        raise bad_input(
            f"{shown_path(path)}: {len(known)} of {len(times)} requests have a timestamp; all or "
            "none must have one"
        )
    for number, (before, after) in enumerate(itertools.pairwise(known), start=2):
        if after < before:
            raise bad_input(
                f"{shown_path(path)}: the timestamp of request {number} is before the one of "
                f"request {number - 1}; sort the file by time"
            )


def _records(path: Path, may_be_cut: bool) -> Iterator[Record]:
    check_regular(Path(os.path.realpath(path)))  # a data set is often a link to a shared disk
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise bad_input(f"{shown_path(path)}: has {size:,} bytes, more than {LARGEST_FILE:,}")
    try:
        with path.open(encoding="utf-8-sig") as file:  # Windows writes a byte order mark
            first = file.read(1)
            while first and first in SPACE:
                first = file.read(1)
            if not first:
                raise bad_input(f"{shown_path(path)}: is empty")
            file.seek(0)
            if first == "[":
                yield from _listed(file.read(), path, may_be_cut)
                return
            for number, line in enumerate(file, start=1):
                if len(line) > LONGEST_LINE:
                    raise bad_input(f"{shown_path(path)}:{number}: the line is too long")
                if line.strip():
                    where = f"{shown_path(path)}:{number}"
                    yield Record(parse_object(line, where, is_line=True), where)
    except UnicodeDecodeError as error:
        raise bad_input(f"{shown_path(path)}: is not UTF-8 (byte {error.start})") from error


def _listed(text: str, path: Path, may_be_cut: bool) -> Iterator[Record]:
    """The objects of a JSON list, one by one, so that those before a cut can be read."""
    decoder, place = json.JSONDecoder(), text.index("[") + 1
    for number in itertools.count(1):
        where = f"{shown_path(path)}: record {number}"
        place = _next_place(text, place)
        if text[place : place + 1] == "]":
            _check_end(text, place + 1, path)
            return
        if number > 1 and text[place : place + 1] == ",":
            place = _next_place(text, place + 1)
        elif number > 1 and place < len(text):
            raise bad_input(f"{where}: no JSON (there is no comma before it)")
        begin = place
        try:
            content, place = decoder.raw_decode(text, begin)
        except json.JSONDecodeError as error:
            if may_be_cut:
                return
            reason = "the file is cut off" if begin >= len(text.rstrip()) else "no JSON"
            raise bad_input(f"{where}: {reason} ({str(error).splitlines()[0]})") from error
        except RecursionError as error:
            raise bad_input(f"{where}: is nested too deeply") from error
        except ValueError as error:  # more digits than Python converts
            raise bad_input(f"{where}: holds a number that is too large") from error
        if not may_be_cut or not isinstance(content, dict):  # ours is known by its hash
            content = parse_object(text[begin:place], where, is_line=True)
        yield Record(content, where)


def _next_place(text: str, place: int) -> int:
    """The place of the next character that is no space."""
    while place < len(text) and text[place] in SPACE:
        place += 1
    return place


def _check_end(text: str, place: int, path: Path) -> None:
    if text[place:].strip(SPACE):
        raise bad_input(f"{shown_path(path)}: there is more after the end of the list")
