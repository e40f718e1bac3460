"""`python -m evaluate.report.show.charts.draw_process`: draws charts as SVG files.

Started by the report. Drawing holds the interpreter's lock, so a process of its own draws while the
report writes its other files. It is no fork: the charting library has threads, and a fork of a
program that has drawn something itself, as a notebook may, would wait for them for ever.
"""

from pathlib import Path

from conf.errors import one_line
from conf.files.write_whole import write_whole
from conf.process.inside import Send, run_program
from evaluate.report.programs import DRAW, Drawn, DrawRequest


def work(request: DrawRequest, send: Send[Drawn]) -> None:
    send(Drawn(draw(request)))


def draw(request: DrawRequest) -> dict[str, str]:
    """Draws every chart. Returns the reasons of those that could not be drawn: the page and the
    tables are worth having without them."""
    import vl_convert

    failures = {}
    for name, spec in request.specs.items():
        try:
            svg = vl_convert.vegalite_to_svg(spec)
            with write_whole(Path(request.out) / name) as unfinished:
                unfinished.write_text(svg, encoding="utf-8")
        except Exception as error:  # also those of the charting library
            failures[name] = one_line(error)
    return failures


if __name__ == "__main__":
    run_program(DRAW, work, str(__doc__))
