"""The accuracy of two sets of results: the table, and the gate."""

from rich.table import Table

from conf.schema.report import CompareConfig
from conf.terminal import say, table_console
from evaluate.accuracy.divergence import LEVEL
from evaluate.accuracy.pairs import (
    BETTER,
    BOTH_BROKEN,
    EQUAL,
    ONLY_FIRST,
    WORSE,
    Compared,
    compared,
)
from evaluate.compare.gate import Finding, Verdict, share_finding
from evaluate.compare.matching import NARROWEST_TABLE, Matching

BY_VERDICT = {BETTER: Verdict.GOOD, WORSE: Verdict.WORSE, BOTH_BROKEN: Verdict.WORSE}
MORE_TEXT = "more accuracy.tokens, or more questions, make these intervals narrower"


def compare_accuracy(config: CompareConfig, matching: Matching) -> list[Finding]:
    """Prints the table of all pairs, and of rows that the second lacks; the findings of the
    gate."""
    least, titles = config.min_quality, matching.titles
    lines = [(pair[1].checkpoint, compared(pair)) for pair in matching.judged]
    lines += [
        (row.checkpoint, [Compared(row.measure, ONLY_FIRST)]) for row in matching.missing_accuracy
    ]
    if not lines:
        missing = Finding(titles[1], Verdict.UNKNOWN, "no accuracy of both was judged alike")
        return [] if least is None else [missing]
    label_column = [] if config.checkpoints else ["checkpoint"]
    headings = ("change", f"{LEVEL:.0%} interval", "verdict")
    table = Table("accuracy", *label_column, *titles, *headings)
    for label, of_pair in lines:
        for line in of_pair:
            names = [line.measure] if config.checkpoints else [line.measure, label]
            figures = (line.first, line.second, line.change, line.interval)
            table.add_row(*names, *figures, line.verdict)
    table_console(NARROWEST_TABLE).print(table)
    if any(line.verdict == EQUAL for _, of_pair in lines for line in of_pair):
        say(MORE_TEXT)
    if least is None:
        return []
    return [_finding(label, of_pair[0], least) for label, of_pair in lines]


def _finding(label: str, line: Compared, least: float) -> Finding:
    what = f"{label} in {line.measure}"
    if line.quality is not None:
        return share_finding(what, line.quality, least)
    verdict = BY_VERDICT.get(line.verdict, Verdict.UNKNOWN)
    broken = f"the first one {line.first}, the second one {line.second}" if line.first else ""
    return Finding(what, verdict, broken or line.verdict.removeprefix("unknown: "))
