"""`python -m evaluate.report results=[FILE,...] out=DIR`: what to serve, in Markdown and a page."""

import sys

from conf.app import run
from evaluate.report.command import COMMAND, main, with_answer_option

if __name__ == "__main__":
    sys.argv[1:] = with_answer_option(sys.argv[1:])
    run(COMMAND, main)
