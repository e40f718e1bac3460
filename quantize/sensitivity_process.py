"""`python -m quantize.sensitivity_process`: measures blocks of layers for another command.

Started by `python -m evaluate accuracy=sensitivity`: says how much each block loses by a recipe's
format.
"""

from conf.process.inside import Send, run_program
from quantize.programs import SENSITIVITY, BlockMeasured, SensitivityRequest


def work(request: SensitivityRequest, send: Send[BlockMeasured]) -> None:
    from quantize.sensitivity import measure_blocks

    measure_blocks(request, send)


if __name__ == "__main__":
    run_program(SENSITIVITY, work, str(__doc__))
