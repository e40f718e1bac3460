"""The pipeline of a report: read and decide (`contents`), write the files, print the answer."""

import multiprocessing
from pathlib import Path

from conf.errors import environment_failure
from conf.schema.report import ReportConfig
from conf.terminal import say
from evaluate.report.contents import Report, make_report
from evaluate.report.decide.decision import Answer
from evaluate.report.decide.recommend import Choice
from evaluate.report.machine.files import write_files
from evaluate.report.show.charts.library import library
from evaluate.report.show.charts.plots import write_plots
from evaluate.report.show.markdown import write_markdown
from evaluate.report.show.page import write_page


def write_report(config: ReportConfig) -> Report:
    """Writes the page, the Markdown, the plots and the files for programs; prints the answer."""
    report = make_report(config)
    out = Path(config.out).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    # Drawing holds the interpreter's lock; in its own process it runs in parallel.
    drawing = multiprocessing.get_context("fork").Process(target=write_plots, args=(report, out))
    drawing.start()
    write_markdown(report, out)
    write_files(report, out)
    library()  # bundled meanwhile, if it is not cached yet
    drawing.join()
    if drawing.exitcode:
        raise environment_failure(f"{out}: the plots could not be drawn")
    write_page(report, out)
    for fault in report.faults:
        say(f"{fault}; the line is left out")
    for answer in report.answers:
        print(answer_line(answer))
        for choice in answer.by_rate:
            print(rate_line(choice))
    say(f"{out / 'report.html'} and {out / 'report.md'} are written")
    return report


def answer_line(answer: Answer) -> str:
    choice = answer.overall
    return f"{answer.group.title}: {choice.headline}, {choice.why}"


def rate_line(choice: Choice) -> str:
    """The answer of a capacity search."""
    return f"{choice.workload}: {choice.headline}, {choice.why}"
