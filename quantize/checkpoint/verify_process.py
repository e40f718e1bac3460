"""`python -m quantize.checkpoint.verify_process`: verifies checkpoints for another command.

The command for people is `python -m quantize.verify PATH`.
"""

from pathlib import Path

from conf.process.inside import Send, run_program
from quantize.programs import VERIFY, Verified, VerifyRequest

NOT_FINITE = "NaN or infinite"


def work(request: VerifyRequest, send: Send[Verified]) -> None:
    from quantize.checkpoint.verify import verify

    for folder in request.folders:
        try:
            faults = verify(Path(folder)).faults
        except Exception:
            if len(request.folders) == 1:
                raise
            continue  # whoever asked for several asks for this one again
        send(Verified(folder, faults, bool(faults) and NOT_FINITE in faults[0]))


if __name__ == "__main__":
    run_program(VERIFY, work, str(__doc__))
