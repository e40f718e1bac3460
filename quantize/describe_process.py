"""`python -m quantize.describe_process`: describes checkpoints for another command.

Started by other commands. Makes, for each recipe, a folder with the config and the tensor shapes
that a checkpoint would have, or reports why there can be none.
"""

from conf.process.inside import Send, run_program
from quantize.programs import DESCRIBE, Described, DescribeRequest


def work(request: DescribeRequest, send: Send[Described]) -> None:
    from quantize.describe import describe_all

    describe_all(request, send)


if __name__ == "__main__":
    run_program(DESCRIBE, work, str(__doc__))
