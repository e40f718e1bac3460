"""`python -m evaluate.compare results=[A,B]`: better, worse, or no significant difference.

Compares two results files, or two checkpoints within the given results: speed cell by cell, and
accuracy block by block or question by question. A verdict uses a confidence interval, never bare
means. For two files, it also prints how their environments differ. With thresholds it is a gate:
the exit code says whether the second is at least as good.
"""

from conf.app import run
from evaluate.compare.command import COMMAND, main

if __name__ == "__main__":
    run(COMMAND, main)
