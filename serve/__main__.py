"""`python -m serve checkpoint=DIR`: serve a checkpoint, or ask it one thing with prompt=TEXT."""

from conf.app import run
from serve.command import COMMAND, main

if __name__ == "__main__":
    run(COMMAND, main)
