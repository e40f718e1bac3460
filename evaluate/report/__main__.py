"""`python -m evaluate.report results=[FILE,...] out=DIR`: what to serve, in Markdown and a page."""

from conf.app import run
from evaluate.report.command import COMMAND, main

if __name__ == "__main__":
    run(COMMAND, main)
