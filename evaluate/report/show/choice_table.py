"""The table of the choice for each workload."""

from evaluate.report.decide.close_calls import MORE_RUNS
from evaluate.report.decide.recommend import UNJUDGED, Choice
from evaluate.report.show.tables import NONE

CHOICE_TITLES = ("scenario", "serve", "times as fast", "quality left", "next", "would change it")


def _line(choice: Choice) -> list[str]:
    """A choice as a line of a table."""
    recovery = choice.quality.recovery if choice.quality else None
    return [
        choice.workload,
        _served(choice),
        f"{choice.ratio.ratio:.2f}" if choice.ratio else NONE,
        f"{recovery:.1%}" if recovery is not None else NONE,
        "; then ".join(filter(None, [_ties(choice), choice.second])) or NONE,
        "; ".join(_changes(choice)) or NONE,
    ]


def _changes(choice: Choice) -> list[str]:
    """What would change it. Doubts about targets are many where runs differ much, so they are not
    told one by one here."""
    changes = [change for change in choice.changes if change != UNJUDGED]
    others = [change for change in changes if not change.startswith(MORE_RUNS)]
    return others if others == changes else [*others, f"{MORE_RUNS}, within the noise"]


def _served(choice: Choice) -> str:
    if choice.candidate is None:
        return f"none: {choice.why}"
    return f"{choice.candidate} (accuracy not judged)" if choice.unjudged else choice.candidate


def _ties(choice: Choice) -> str:
    return f"{', '.join(choice.tied)} (level with it)" if choice.tied else ""


def choice_table(choices: list[Choice]) -> tuple[list[str], list[list[str]]]:
    """Titles and lines, without empty columns."""
    lines = [_line(choice) for choice in choices]
    used = [
        place
        for place in range(len(CHOICE_TITLES))
        if place < 2 or any(line[place] != NONE for line in lines)
    ]
    titles = [CHOICE_TITLES[place] for place in used]
    return titles, [[line[place] for place in used] for line in lines]
