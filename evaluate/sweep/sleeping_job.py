"""The job of `evaluate.sweep.benchmark`, as a launcher starts it."""

from evaluate.sweep.benchmark import JOB_COMMAND as COMMAND
from evaluate.sweep.benchmark import sleep as main

__all__ = ["COMMAND", "main"]
