"""`python -m quantize recipe=NAME model=NAME`: calibrate, export, publish."""

from conf.app import run
from quantize.command import COMMAND, main
from quantize.parallel.torchrun import silence_further_ranks

if __name__ == "__main__":
    silence_further_ranks()
    run(COMMAND, main)
