"""Tables that are made of words: what is chosen for each load, and every judgement of accuracy."""

from evaluate.report.decide.recommend import UNJUDGED, Choice
from evaluate.report.show.tables import NONE
from evaluate.results.row_values import QuickAccuracy, TaskAccuracy
from evaluate.results.rows import AccuracyRow, Row

CHOICE_TITLES = ("scenario", "serve", "times as fast", "quality left", "next", "would change it")


def choice_words(choice: Choice) -> list[str]:
    """A choice as a line of a table."""
    left = choice.quality.recovery if choice.quality else None
    return [
        choice.load,
        _served(choice),
        f"{choice.ratio.ratio:.2f}" if choice.ratio else NONE,
        f"{left:.1%}" if left is not None else NONE,
        "; then ".join(filter(None, [_level(choice), choice.second])) or NONE,
        "; ".join(words for words in choice.changes if words != UNJUDGED) or NONE,
    ]


def _served(choice: Choice) -> str:
    if choice.candidate is None:
        return f"none: {choice.why}"
    return f"{choice.candidate} (accuracy not judged)" if choice.unjudged else choice.candidate


def _level(choice: Choice) -> str:
    return f"{', '.join(choice.tied)} (level with it)" if choice.tied else ""


def choice_table(choices: list[Choice]) -> tuple[list[str], list[list[str]]]:
    """Titles and lines, without columns that say nothing."""
    lines = [choice_words(choice) for choice in choices]
    used = [
        place
        for place in range(len(CHOICE_TITLES))
        if place < 2 or any(line[place] != NONE for line in lines)
    ]
    titles = [CHOICE_TITLES[place] for place in used]
    return titles, [[line[place] for place in used] for line in lines]


def accuracy_lines(rows: list[Row]) -> tuple[list[str], list[list[str]]] | None:
    """Every judgement as a line, with the titles."""
    judged = [row for row in rows if isinstance(row, AccuracyRow)]
    if not judged:
        return None
    titles = ["model", "checkpoint", "measure", "engine", "perplexity or score", "quality left"]
    titles.append("verdict")
    lines = []
    for row in judged:
        where = [row.model, row.checkpoint, row.measure, row.environment.engine or ""]
        figures = [_score(row.values), _quality_left(row.values), row.values.verdict or NONE]
        lines.append([*where, *figures])
    return titles, lines


def _score(values: QuickAccuracy | TaskAccuracy) -> str:
    score = values.score
    if isinstance(values, QuickAccuracy) and values.perplexity is not None:
        score = values.perplexity
    return NONE if score is None else f"{score:.4g}"


def _quality_left(values: QuickAccuracy | TaskAccuracy) -> str:
    if values.recovery is None:
        return NONE
    low, high = values.recovery_low, values.recovery_high
    between = f" ({low:.2%} to {high:.2%})" if low is not None and high is not None else ""
    return f"{values.recovery:.2%}{between}"
