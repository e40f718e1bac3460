"""`python -m quantize.benchmark recipe=NAME`: Quantline against llm-compressor's own loop.

The same model, recipe and tokens, one after the other in one process: seconds a layer, peak GPU
memory, and how far each quantized layer's output lies from the original's. Both run on two depths
of the model, after a short run that is not timed, which compiles kernels; the slope is what a layer
costs, without what a run costs. Our own runs also save each layer, as a real run does. Tokens are
random: the time does not depend on them, and a model with random weights has no text of its own.
"""

from conf.app import run
from quantize.benchmark.command import COMMAND, main

if __name__ == "__main__":
    run(COMMAND, main)
