"""The pipeline of a report: read and decide (`contents`), write the files, print the answer."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from filelock import FileLock

from conf.errors import QuantlineError, environment_failure, writing
from conf.files.new_folder import new_folder
from conf.files.outputs import check_folder
from conf.process.running import start
from conf.schema.report import ReportConfig, changed_options
from conf.terminal import say
from evaluate.report.contents import Report, make_report
from evaluate.report.decide.decision import Answer
from evaluate.report.decide.recommend import Choice
from evaluate.report.machine.files import write_files
from evaluate.report.programs import DRAW
from evaluate.report.show.charts.library import library
from evaluate.report.show.charts.plots import draw_request
from evaluate.report.show.markdown import write_markdown
from evaluate.report.show.page import write_page

LOCK = ".report.lock"


def write_report(config: ReportConfig) -> Report:
    """Writes the page, the Markdown, the plots and the files for programs; prints the answer."""
    out = Path(config.out).expanduser()
    check_folder("out", out)
    report = make_report(config)
    with writing(out), new_folder(out), _only_writer(out):
        failures = _write(report, out)
    for fault in report.faults:
        say(f"{fault}; the line is left out")
    _say_unused(report)
    for answer in report.answers:
        print(answer_line(answer))
        for choice in answer.by_rate:
            print(rate_line(choice))
    say(f"{out / 'report.html'} and {out / 'report.md'} are written")
    if failures:
        name, reason = next(iter(failures.items()))
        raise environment_failure(f"{out}: {len(failures)} plots are missing; {name}: {reason}")
    return report


def _say_unused(report: Report) -> None:
    """Names given options of the recommendation where there is none."""
    options = changed_options(report.config)
    if options and not report.answers:
        verb = "has" if len(options) == 1 else "have"
        say(
            f"{', '.join(options)} {verb} no effect: the results hold no speed, so nothing is "
            "recommended"
        )


@contextmanager
def _only_writer(out: Path) -> Iterator[None]:
    """Waits while another report is written to the same folder."""
    with FileLock(out / LOCK):
        try:
            yield
        finally:
            (out / LOCK).unlink(missing_ok=True)


def _write(report: Report, out: Path) -> dict[str, str]:
    """Writes all files. Returns the reasons of plots that could not be drawn."""
    with closing(start(DRAW, draw_request(report, out), None)) as drawing:
        drawing.begin()
        write_markdown(report, out)
        write_files(report, out)
        library()  # bundled meanwhile, if it is not cached yet
        try:
            (drawn,) = drawing.events()
            failures = drawn.failures
        except QuantlineError as error:
            failures = {"all": str(error)}
    write_page(report, out)
    return failures


def answer_line(answer: Answer) -> str:
    choice = answer.overall
    return f"{answer.group.title}: {choice.headline}, {choice.why}"


def rate_line(choice: Choice) -> str:
    """The answer of a capacity search."""
    return f"{choice.workload}: {choice.headline}, {choice.why}"
