"""What the page says in sentences, by the setup that it is said of."""

from dataclasses import dataclass, field

from evaluate.report.contents import Report
from evaluate.report.show.notes import findings, left_out, notes
from evaluate.results.rows import Row


@dataclass
class SentenceList:
    """A list of the page: what holds for every setup, and for each one alone."""

    name: str
    title: str
    general: list[str]
    by_setup: list[list[str]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.general or any(self.by_setup))


def sentence_lists(report: Report) -> dict[str, SentenceList]:
    """Made anew for each setup alone, so that the page can show what belongs to the chosen one."""
    groups = report.groups
    each_notes = [notes([group], report.config.results) for group in groups]
    said = {words for found in each_notes for words in found}
    found = (
        SentenceList(
            "findings",
            "What stands out",
            findings([], report.rows),
            [findings([group], []) for group in groups],
        ),
        SentenceList(
            "notes",
            "Before you trust it",
            [words for words in report.notes if words not in said],
            each_notes,
        ),
        SentenceList(
            "left-out",
            "Failed, skipped, or in no average",
            [*left_out(_of_no_setup(report), []), *report.faults],
            [left_out(group.rows, [group]) for group in groups],
        ),
    )
    return {one.name: one for one in found if one}


def _of_no_setup(report: Report) -> list[Row]:
    of_a_setup = {id(row) for group in report.groups for row in group.rows}
    return [row for row in report.rows if id(row) not in of_a_setup]
