"""Runs a checkpoint in vLLM, in a process of its own: prints log probabilities of tokens as JSON.

python -m tests.serve.kernels.vptq.served FOLDER
"""

import json
import os
import sys

from serve.engine.launch import environment

TOKENS = list(range(5, 45))
CONTINUED = 6
MARK = "log probabilities: "


def main() -> None:
    os.environ.update(environment())
    from vllm import LLM, SamplingParams

    # Without compiling, which takes a minute; the op itself is the same.
    llm = LLM(sys.argv[1], max_model_len=128, dtype="float32", enforce_eager=True)
    sampling = SamplingParams(
        temperature=0, max_tokens=CONTINUED, ignore_eos=True, prompt_logprobs=0, logprobs=0
    )
    (output,) = llm.generate([{"prompt_token_ids": TOKENS}], sampling, use_tqdm=False)
    (answer,) = output.outputs
    tokens = [*TOKENS, *answer.token_ids]
    places = [*output.prompt_logprobs[1:], *answer.logprobs]
    values = [place[token].logprob for token, place in zip(tokens[1:], places, strict=True)]
    print(MARK + json.dumps([tokens, values]), flush=True)


if __name__ == "__main__":
    main()
