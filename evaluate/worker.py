"""Measures one checkpoint in vLLM, in a process of its own, and sends each row up a pipe."""

import json
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import Any

from conf.compose import from_mapping
from conf.schema import AccuracyConfig, EngineConfig, ScenarioConfig
from conf.text import documents
from evaluate.metrics import Request, batch_values, perplexity
from serve.engine import environment, options

LOWEST_TOKEN = 16  # below lie special tokens


@dataclass
class Job:
    """What one worker measures."""

    folder: str
    engine: EngineConfig
    scenarios: dict[str, ScenarioConfig]
    accuracy: AccuracyConfig
    repeats: int
    context: int
    vocabulary: int


def main() -> None:
    job: Job = from_mapping(Job, json.load(sys.stdin))
    os.environ.update(environment())
    from vllm import LLM

    settings = {
        "max_model_len": job.context,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
    }
    llm = LLM(job.folder, **(settings | options(job.engine)))
    for name, scenario in job.scenarios.items():
        run_batch(
            llm, scenario, random.Random("warm-up"), job.vocabulary
        )  # warms up on other tokens
        for repeat in range(job.repeats):
            send(name, repeat, run_batch(llm, scenario, random.Random(repeat), job.vocabulary))
    if job.accuracy.kind == "quick":
        send("quick", 0, judge(llm, job.accuracy))


def send(measure: str, repeat: int, values: dict[str, float]) -> None:
    line = json.dumps({"measure": measure, "repeat": repeat, "values": values}) + "\n"
    os.write(int(sys.argv[1]), line.encode())


def run_batch(
    llm: Any, scenario: ScenarioConfig, chance: random.Random, vocabulary: int
) -> dict[str, float]:
    """Sends random tokens of exact length and takes exactly as many as asked for."""
    from vllm import SamplingParams

    prompts = [
        {
            "prompt_token_ids": chance.choices(
                range(LOWEST_TOKEN, vocabulary), k=scenario.input_tokens
            )
        }
        for _ in range(scenario.batch)
    ]
    sampling = SamplingParams(
        temperature=0, max_tokens=scenario.output_tokens, ignore_eos=True, detokenize=False
    )
    start = time.perf_counter()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    latency = time.perf_counter() - start
    return batch_values([_request(output) for output in outputs], latency)


def _request(output: Any) -> Request:
    metrics = output.metrics
    first = metrics.first_token_latency
    return Request(
        input_tokens=len(output.prompt_token_ids),
        output_tokens=len(output.outputs[0].token_ids),
        first_token_s=first,
        last_token_s=first + metrics.last_token_ts - metrics.first_token_ts,
    )


def judge(llm: Any, accuracy: AccuracyConfig) -> dict[str, float]:
    """Perplexity on the evaluation part of the text, in windows that do not overlap."""
    from vllm import SamplingParams

    tokenizer = llm.get_tokenizer()
    tokens: list[int] = []
    for document in documents(accuracy.text, "evaluation"):
        tokens += tokenizer(str(document))["input_ids"]
        if len(tokens) >= accuracy.tokens:
            break
    tokens = tokens[: accuracy.tokens]
    windows = [tokens[i : i + accuracy.window] for i in range(0, len(tokens), accuracy.window)]
    windows = [window for window in windows if len(window) > 1]
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    prompts = [{"prompt_token_ids": window} for window in windows]
    found = [
        entry[token].logprob
        for window, output in zip(
            windows, llm.generate(prompts, sampling, use_tqdm=False), strict=True
        )
        for token, entry in zip(window[1:], output.prompt_logprobs[1:], strict=True)
    ]
    return {"perplexity": perplexity(found), "tokens": float(len(found))}


if __name__ == "__main__":
    main()
