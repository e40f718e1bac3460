"""Loads a checkpoint in vLLM and writes log-probabilities of prompts and greedy answers as JSON.

python -m tests.serve.kernels.served_logits FOLDER KERNELS OUT
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from conf.hardware import gpu_memory_gib
from conf.schema.kernels import KernelsConfig
from conf.schema.load import KV_CACHE_SIZE, MEMORY_SHARE, EngineConfig
from serve.engine.launch import environment, options
from tests.serve.kernels.scores import ROOT, Place, Scores

CONTEXT = 2048
TEXT = ROOT / "docs" / "quantizing.md"
LENGTHS = (1, 2, 7, 16, 17, 40, 64, 65, 128, 200, 513, 1100, 1800)
"""Tokens of prompts. Each is one step of as many tokens, so every range of our kernels reads text
that both engines see alike."""
BATCHES = (1, 8, 40)
"""Prompts that are answered together: steps of one token for each."""
BATCH_LENGTH, ANSWER = 24, 16
LIKELY = 20  # vLLM's most
MEMORY_GIB = 14
"""What an engine takes of a GPU, so that several fit on a large one side by side."""
CACHE_BYTES = 2 * 2**30
"""Of its KV cache. Without a size vLLM measures what is free, and stops where another process gives
memory back meanwhile."""


def main(folder: str, kernels: str, out: str) -> None:
    engine = EngineConfig(
        max_model_len=CONTEXT,
        kernels=KernelsConfig(kernels.split(",")),
        options={"enable_prefix_caching": False} | memory(),
    )
    os.environ.update(environment(engine.options))
    from vllm import LLM

    llm = LLM(folder, **options(engine))
    tokens = llm.get_tokenizer()(TEXT.read_text())["input_ids"]
    prompts = [tokens[number : number + length] for number, length in enumerate(LENGTHS)]
    single = [answered(llm, [prompt], 1, True)[0] for prompt in prompts]
    batches = [
        output
        for size in BATCHES
        for output in answered(llm, batch_of(tokens, size), ANSWER, False)
    ]
    scores = Scores(
        prompts,
        [prompt_scores(output) for output in single],
        [answer_of(output) for output in (*single, *batches)],
    )
    Path(out).write_text(json.dumps(asdict(scores)))


def memory() -> dict[str, Any]:
    if not (gpus := gpu_memory_gib()):
        return {}
    total, _ = gpus[0]
    return {MEMORY_SHARE: min(0.85, MEMORY_GIB / total), KV_CACHE_SIZE: CACHE_BYTES}


def batch_of(tokens: list[int], size: int) -> list[list[int]]:
    return [tokens[BATCH_LENGTH * number :][:BATCH_LENGTH] for number in range(size)]


def answered(llm: Any, prompts: list[list[int]], tokens: int, has_scores: bool) -> list[Any]:
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=LIKELY,
        prompt_logprobs=0 if has_scores else None,
    )  # fmt: skip
    inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
    outputs: list[Any] = llm.generate(inputs, sampling, use_tqdm=False)
    return outputs


def prompt_scores(output: Any) -> list[float]:
    """The first token has none."""
    places = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return [place[token].logprob for token, place in places]


def answer_of(output: Any) -> list[Place]:
    (answer,) = output.outputs
    return [
        Place(token, {int(key): value.logprob for key, value in place.items()})
        for token, place in zip(answer.token_ids, answer.logprobs, strict=True)
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
