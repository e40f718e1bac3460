"""`python -m serve checkpoint=DIR`: serves a checkpoint, or answers one prompt=TEXT."""

from conf.app import run
from serve.command import COMMAND, main

if __name__ == "__main__":
    run(COMMAND, main)
