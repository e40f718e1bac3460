"""The page's lists of sentences, by setup."""

from dataclasses import dataclass, field

from evaluate.report.contents import Report
from evaluate.report.show.notes import findings, left_out, notes
from evaluate.results.rows import Row


@dataclass
class SentenceList:
    """A list of the page: general sentences, and those of each setup."""

    name: str
    title: str
    general: list[str]
    by_setup: list[list[str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.general or any(self.by_setup))


def sentence_lists(report: Report) -> dict[str, SentenceList]:
    """The lists, made for each setup alone, so that the page can show those of the chosen one."""
    groups = report.groups
    each_notes = [notes([group], report.config.results) for group in groups]
    group_notes = {note for setup_notes in each_notes for note in setup_notes}
    lists = (
        SentenceList(
            "findings",
            "What stands out",
            findings([], report.rows),
            [findings([group], []) for group in groups],
        ),
        SentenceList(
            "notes",
            "Before you trust it",
            [note for note in report.notes if note not in group_notes],
            each_notes,
        ),
        SentenceList(
            "left-out",
            "Failed, skipped, or in no average",
            [*left_out(_of_no_setup(report), []), *report.faults],
            [left_out(group.rows, [group]) for group in groups],
        ),
    )
    return {sentences.name: sentences for sentences in lists if sentences}


def _of_no_setup(report: Report) -> list[Row]:
    of_a_setup = {id(row) for group in report.groups for row in group.rows}
    return [row for row in report.rows if id(row) not in of_a_setup]
