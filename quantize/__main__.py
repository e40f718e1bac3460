"""`python -m quantize recipe=NAME model=NAME`: calibrate, export, publish."""

from conf.app import run
from quantize.command import COMMAND, main

if __name__ == "__main__":
    run(COMMAND, main)
