"""`python -m evaluate.benchmark scenario=NAME`: compares our timed loop with `LLM.generate`.

Runs both loops in turn on the same shapes in one loaded engine, to show the cost of timing every
token. Takes the options of `python -m evaluate` and measures the original.
"""

import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

from conf.app import run
from conf.cache import log_file
from conf.errors import bad_input
from conf.models import read_config, required_int
from conf.schema.commands import EvaluateConfig
from conf.terminal import library_output_to
from evaluate.command import COMMAND as EVALUATE
from evaluate.measure.engines import LoadRequest
from evaluate.measure.metrics import batch_values
from evaluate.measure.targets import targets
from evaluate.measure.workload import load_of, prompts

COMMAND = replace(
    EVALUATE,
    module="evaluate.benchmark",
    purpose="Compares the timed loop with plain LLM.generate in one loaded engine: what timing "
    "every token\ncosts. Measures the original. Prints JSON.",
    examples=(
        "python -m evaluate.benchmark scenario=interactive",
        "python -m evaluate.benchmark model=tiny 'scenario=[interactive,base]' repeats=5",
        "python -m evaluate.benchmark model=qwen3-8b weights=random scenario=high_concurrency",
    ),
)


def benchmark(config: EvaluateConfig) -> None:
    """Prints the median latencies of both loops and their ratio, as JSON."""
    if config.engine.kind != "vllm":
        raise bad_input("evaluate.benchmark works only with engine=vllm")
    target = targets(config)[0]
    assert target.folder is not None
    context = max(scenario.tokens for scenario in config.scenario.values())
    log = log_file("evaluate-benchmark")
    with library_output_to(log):
        figures = _measure(
            config, LoadRequest(target.folder, config.engine, context, target.dummy, log)
        )
    print(json.dumps(figures))


def _measure(config: EvaluateConfig, load: LoadRequest) -> dict[str, dict[str, float]]:
    from vllm import SamplingParams

    from evaluate.measure.engines.vllm import VllmEngine

    engine = VllmEngine(load)
    vocabulary = required_int(read_config(Path(load.folder)), "vocab_size")
    figures = {}
    for name, scenario in config.scenario.items():
        sampling = SamplingParams(
            temperature=0, max_tokens=scenario.output_tokens, ignore_eos=True, detokenize=False
        )
        timed_loop: list[float] = []
        plain_generate: list[float] = []
        for repeat in range(-1, config.repeats):
            sent = load_of(scenario, name, 2 * repeat, vocabulary)
            values = batch_values(engine.run_requests(sent))
            timed_loop.append(values.latency_s or 0.0)
            tokens = prompts(scenario, name, 2 * repeat + 1, vocabulary)
            start = time.perf_counter()
            engine.llm.generate(
                [{"prompt_token_ids": prompt} for prompt in tokens], sampling, use_tqdm=False
            )
            plain_generate.append(time.perf_counter() - start)
        medians = [statistics.median(times[1:]) for times in (timed_loop, plain_generate)]
        figures[name] = {
            "ours_s": medians[0],
            "plain_s": medians[1],
            "ratio": medians[0] / medians[1],
        }
    return figures


if __name__ == "__main__":
    run(COMMAND, benchmark)
