"""`python -m serve.kernels`: which kernel runs which layer, and how fast each candidate was."""

from conf.app import run
from serve.kernels.command import COMMAND, main

if __name__ == "__main__":
    run(COMMAND, main)
