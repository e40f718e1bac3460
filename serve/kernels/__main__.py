"""`python -m serve.kernels`: which kernel is the fastest for which layer and number of tokens."""

from conf.app import run
from serve.kernels.command import COMMAND, main

if __name__ == "__main__":
    run(COMMAND, main)
