"""Reads a file of traffic in any of the known formats. An error is one line with file and place."""

from dataclasses import dataclass, field
from functools import cached_property
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
from evaluate.measure.traffic.record import Record
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
    reader = _Reader(path, name, unit, block_tokens, needs_times)
    for record in records(path, may_be_cut):
        reader.read(record)
    reader.leave_out_faults(skip_bad)
    if not may_be_cut:  # of our own file it is known
        reader.say_unanswered()
    return reader.in_seconds()


@dataclass
class _Reader:
    """What was read of one file. The first good record decides its format."""

    path: Path
    name: str
    unit: str
    block_tokens: int
    needs_times: bool
    kind: TrafficFormat | None = None
    conversations: list[Conversation] = field(default_factory=list)
    faults: _Faults = field(default_factory=_Faults)
    times: FileTimes = field(default_factory=FileTimes)
    unread: set[str] = field(default_factory=set)
    """Keys with texts that the format does not read."""
    total: int = 0

    @cached_property
    def cells(self) -> Cells:
        assert self.kind is not None
        return Cells(self.kind)

    def read(self, record: Record) -> None:
        self.total += 1
        if self.total > MOST_RECORDS:
            raise bad_input(f"{shown_path(self.path)}: has more than {MOST_RECORDS:,} records")
        if record.fault is not None:
            self.faults.add(record.fault)
            return
        if self.kind is None:
            self.kind = self._format_by(record)
        if self.kind is not None:
            self._read_as(self.kind, record)

    def _format_by(self, record: Record) -> TrafficFormat | None:
        """The format of the file, by this record; None, with a fault, if it has none."""
        kind = FORMATS.get(self.name) or format_of(record.content)
        if kind is None:
            self.faults.add(self.faults.first or unknown_format(record.content, record.where))
            return None
        return _for_file(kind, self.unit, self.block_tokens, self.path)

    def _read_as(self, kind: TrafficFormat, record: Record) -> None:
        content = self.cells.typed(record.content) if record.is_row else record.content
        try:
            conversation, no_time = _conversation(kind, content, record.where, self.needs_times)
            self.unread.update(unread_texts(kind, content, record.where))
        except QuantlineError as fault:
            self.faults.add(fault)
            return
        except RecursionError as error:
            self.faults.add(no_json(error, record.where))
            return
        if conversation is not None:
            self.conversations.append(conversation)
            self.times.add(conversation.arrival_s, record.where, no_time)

    def leave_out_faults(self, skip_bad: bool) -> None:
        """Leaves out records that cannot be read, or raises."""
        if self.kind is not None:
            self.cells.check(self.path, self.conversations)
        if skip_bad and self.times.known:
            self._leave_out_unreadable_times()
        self.faults.close(self.path, self.total, skip_bad)
        if not self.conversations:
            raise bad_input(f"{shown_path(self.path)}: has no request with a prompt and an answer")

    def _leave_out_unreadable_times(self) -> None:
        """Takes only conversations with readable times, in a file that has such times."""
        unreadable = self.times.unreadable
        for fault in unreadable.values():
            self.faults.add(fault)
        numbered = enumerate(self.conversations)
        self.conversations = [each for number, each in numbered if number not in unreadable]
        self.times.count, self.times.unreadable = len(self.conversations), {}

    def say_unanswered(self) -> None:
        unanswered = self.total - self.faults.count - len(self.conversations)
        if unanswered:
            counts = f"{unanswered:,} of {self.total:,} records have no answer"
            say(f"{shown_path(self.path)}: {counts}: left out")

    def in_seconds(self) -> list[Conversation]:
        """The conversations with sound times, in seconds. Says what has no effect."""
        assert self.kind is not None
        found = with_sound_times(self.conversations, self.times, self.path, self.needs_times)
        _say_unused_blocks(found, self.block_tokens, self.path)
        if self.unread:
            names = listed([shown_key(key) for key in sorted(self.unread)])
            say(
                f"{shown_path(self.path)}: texts that the format {self.kind.name} does not read: "
                f"{names}"
            )
        return in_seconds(found, self.kind.unit if self.unit == AUTO else self.unit)


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
