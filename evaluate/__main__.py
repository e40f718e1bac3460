"""`python -m evaluate scenario=NAME`: measure the checkpoints of a model beside the original."""

from conf.app import run
from evaluate.command import COMMAND, main

if __name__ == "__main__":
    run(COMMAND, main)
