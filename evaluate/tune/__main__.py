"""`python -m evaluate.tune scenario=NAME budget=20m`: searches the fastest engine settings."""

from conf.app import run
from evaluate.tune.command import COMMAND, main

if __name__ == "__main__":
    run(COMMAND, main)
