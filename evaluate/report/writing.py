"""The story of a report: read and decide (`contents`), write the files, say the answer."""

import multiprocessing
from pathlib import Path

from conf.errors import world_fault
from conf.schema.report import ReportConfig
from conf.terminal import say
from evaluate.report.contents import Report, make_report
from evaluate.report.decide.decision import Answer
from evaluate.report.show.charts.plots import write_plots
from evaluate.report.show.markdown import write_markdown
from evaluate.report.show.page import library, write_page


def write_report(config: ReportConfig) -> Report:
    """Writes report.md, its plots and report.html, and says the answer."""
    report = make_report(config)
    out = Path(config.out).expanduser()
    out.mkdir(parents=True, exist_ok=True)
    # Drawing holds the interpreter's lock: in a process of its own it costs no time.
    beside = multiprocessing.get_context("fork").Process(target=write_plots, args=(report, out))
    beside.start()
    write_markdown(report, out)
    library()  # packed meanwhile, where it is not kept yet
    beside.join()
    if beside.exitcode:
        raise world_fault(f"{out}: the plots could not be drawn")
    write_page(report, out)
    for fault in report.faults:
        say(f"{fault}; the line is left out")
    for answer in report.answers:
        print(answer_line(answer))
    say(f"{out / 'report.html'} and {out / 'report.md'} are written")
    return report


def answer_line(answer: Answer) -> str:
    whole = answer.whole
    return f"{answer.group.title}: {whole.headline}, {whole.why}"
