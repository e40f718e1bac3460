"""Prints the answer alone, as text or as JSON."""

from conf.schema.report import ANSWER_JSON, ReportConfig
from evaluate.report.contents import read_rows
from evaluate.report.decide.decision import decide
from evaluate.report.decide.recommend import UNJUDGED
from evaluate.report.machine import schema
from evaluate.report.machine.build import setup_answer
from evaluate.report.machine.files import as_json

NOTHING = "No speed was measured: nothing to recommend."


def print_answer(config: ReportConfig) -> list[str]:
    """Prints what to serve for each setup, and returns the lines that could not be read."""
    rows, faults, _ = read_rows(config)
    decision = decide(rows, config)
    found = [setup_answer(config, decision.qualities, answer) for answer in decision.answers]
    answers = [
        schema.ShortAnswer(
            one.setup, one.answer, one.serve_commands, one.missing, one.capacity_answers
        )
        for one in found
    ]
    if config.answer == ANSWER_JSON:
        print(as_json(schema.AnswerFile(schema.VERSION, answers)))
    else:
        print("\n\n".join(answer_text(answer) for answer in answers) or NOTHING)
    return faults


def answer_text(found: schema.ShortAnswer) -> str:
    """A short block: the setup, what to serve, why, what would change that, and the commands. Then
    the same for capacity searches beside other workloads."""
    lines = [found.setup.title, *_choice_lines(found.answer)]
    lines += [f"  command: {command}" for command in found.serve_commands]
    for one in found.capacity_answers:
        if one != found.answer:  # where nothing else was measured, a search is the answer
            lines += [f"  for:     {one.scenario}", *_choice_lines(one)]
    for missing in found.missing:
        lines += [f"  missing: {missing.what}", f"           {missing.command}"]
    return "\n".join(lines)


def _choice_lines(answer: schema.Recommendation) -> list[str]:
    served = answer.serve or "no recommendation"
    if answer.serve and not answer.accuracy_judged:
        served += " (fastest; its accuracy was not judged)"
    lines = [f"  serve:   {served}", f"  why:     {answer.reason}"]
    if answer.level_with:
        lines.append(f"  level:   {', '.join(answer.level_with)}")
    changes = [sentence for sentence in answer.would_change if sentence != UNJUDGED]
    return [*lines, *(f"  but:     {sentence}" for sentence in changes)]
