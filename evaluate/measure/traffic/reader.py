"""Reads a file of traffic in any of the known formats. An error is one line with file and place."""

from dataclasses import dataclass
from pathlib import Path

from conf.errors import QuantlineError, bad_input
from conf.files.json_files import JsonObject, no_json, shown_path, validated
from conf.schema.traffic import AUTO, BLOCK_TOKENS, MOONCAKE
from conf.terminal import listed, say
from evaluate.measure.traffic.conversation import Conversation
from evaluate.measure.traffic.formats import mooncake
from evaluate.measure.traffic.formats.base import TrafficFormat
from evaluate.measure.traffic.formats.known import (
    FORMATS,
    check_answer_key,
    check_lengths,
    format_of,
    shown_key,
    unknown_format,
)
from evaluate.measure.traffic.formats.unread import unread_texts
from evaluate.measure.traffic.records import records
from evaluate.measure.traffic.table import Cells
from evaluate.measure.traffic.times import FileTimes, in_seconds, with_sound_times

MOST_RECORDS = 10**7


@dataclass
class _Faults:
    """Records that cannot be read."""

    first: QuantlineError | None = None
    count: int = 0

    def add(self, fault: QuantlineError) -> None:
        self.first = self.first or fault
        self.count += 1

    def close(self, path: Path, total: int, skips: bool) -> None:
        """Says that they are left out, or raises."""
        if self.first is None:
            return
        if self.count == total:
            every = f" (all {total:,} records are bad)" if total > 1 else ""
            raise bad_input(f"{self.first}{every}") from self.first
        bad = f"{self.count:,} of {total:,} records are bad"
        if not skips:
            raise bad_input(
                f"{self.first} ({bad}; traffic.skip_bad=true leaves them out)"
            ) from self.first
        say(f"{shown_path(path)}: {bad}: left out. The first one: {self.first}")


def read_conversations(
    path: Path,
    name: str = AUTO,
    unit: str = AUTO,
    block_tokens: int = BLOCK_TOKENS,
    may_be_cut: bool = False,
    skip_bad: bool = False,
    needs_times: bool = True,
) -> list[Conversation]:
    """All conversations of a file. `may_be_cut` takes what precedes the place where a JSON list
    breaks off. `unit` is that of the times, if it is not the format's own. `skip_bad` leaves out
    records that cannot be read. Without `needs_times`, a file whose times cannot be replayed has
    none."""
    kind: TrafficFormat | None = None
    cells: Cells | None = None
    conversations: list[Conversation] = []
    unread: set[str] = set()
    faults, times, total = _Faults(), FileTimes(), 0
    for record in records(path, may_be_cut):
        total += 1
        if total > MOST_RECORDS:
            raise bad_input(f"{shown_path(path)}: has more than {MOST_RECORDS:,} records")
        if record.fault is not None:
            faults.add(record.fault)
            continue
        if kind is None:
            kind = FORMATS.get(name) or format_of(record.content)
            if kind is None:
                faults.add(faults.first or unknown_format(record.content, record.where))
                continue
            kind = _for_file(kind, unit, block_tokens, path)
            cells = Cells(kind)
        assert cells is not None
        content = cells.typed(record.content) if record.is_row else record.content
        try:
            conversation, no_time = _conversation(kind, content, record.where, needs_times)
            unread.update(unread_texts(kind, content, record.where))
        except QuantlineError as fault:
            faults.add(fault)
            continue
        except RecursionError as error:
            faults.add(no_json(error, record.where))
            continue
        if conversation is not None:
            conversations.append(conversation)
            times.add(conversation.arrival_s, record.where, no_time)
    if cells is not None:
        cells.check(path, conversations)
    if skip_bad and times.known:
        conversations = _without(conversations, times, faults)
    faults.close(path, total, skip_bad)
    unanswered = total - faults.count - len(conversations)
    if not conversations:
        raise bad_input(f"{shown_path(path)}: has no request with a prompt and an answer")
    if unanswered and not may_be_cut:  # of our own file it is known
        say(f"{shown_path(path)}: {unanswered:,} of {total:,} records have no answer: left out")
    conversations = with_sound_times(conversations, times, path, needs_times)
    _say_unused_blocks(conversations, block_tokens, path)
    assert kind is not None
    if unread:
        names = listed([shown_key(key) for key in sorted(unread)])
        say(f"{shown_path(path)}: texts that the format {kind.name} does not read: {names}")
    return in_seconds(conversations, kind.unit if unit == AUTO else unit)


def _for_file(kind: TrafficFormat, unit: str, block_tokens: int, path: Path) -> TrafficFormat:
    """The format with the options of this file."""
    kind = _with_blocks(kind, block_tokens, path)
    if kind.has_dates and unit != AUTO:
        raise bad_input(
            f"traffic.time_unit={unit}: {shown_path(path)} has dates (format {kind.name})"
        )
    return kind


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


def _without(
    conversations: list[Conversation], times: FileTimes, faults: _Faults
) -> list[Conversation]:
    """The conversations with readable times, in a file that has such times."""
    unreadable = times.unreadable
    for fault in unreadable.values():
        faults.add(fault)
    kept = [each for number, each in enumerate(conversations) if number not in unreadable]
    times.count, times.unreadable = len(kept), {}
    return kept


def _conversation(
    kind: TrafficFormat, content: JsonObject, where: str, needs_times: bool
) -> tuple[Conversation | None, QuantlineError | None]:
    """The conversation of a record, and why its time is left out."""
    try:
        return _whole_conversation(kind, content, where), None
    except QuantlineError as fault:
        if needs_times or kind.time_key not in content:
            raise
        timeless = {key: value for key, value in content.items() if key != kind.time_key}
        return _whole_conversation(kind, timeless, where), fault


def _whole_conversation(
    kind: TrafficFormat, content: JsonObject, where: str
) -> Conversation | None:
    record = validated(kind.record, content, where)
    try:
        conversation = kind.conversation(record)
    except ValueError as error:
        raise bad_input(f"{where}: {error}") from error
    answers = [turn.answer for turn in conversation.turns] if conversation else []
    if None in answers:
        check_answer_key(kind, content, where)
    elif len(answers) == 1 and answers[0] is not None and answers[0].tokens:
        check_lengths(kind, content, where, answers[0].tokens)
    return conversation
