"""`python -m evaluate.kernels grid=NAME`: times kernels one by one, beside torch's bf16."""

from conf.app import run
from evaluate.kernels.command import COMMAND, main

if __name__ == "__main__":
    run(COMMAND, main)
