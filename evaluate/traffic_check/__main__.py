"""`python -m evaluate.traffic_check`: our load generator beside `vllm bench serve`."""

from conf.app import run
from evaluate.traffic_check.command import COMMAND, main

if __name__ == "__main__":
    run(COMMAND, main)
