"""`python -m evaluate scenario=NAME`: measures a model's checkpoints and the original."""

from conf.app import run
from evaluate.command import COMMAND, main

if __name__ == "__main__":
    run(COMMAND, main)
