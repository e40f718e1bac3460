"""vLLM in this process. Requests are added and stepped one by one, to time every token."""

import itertools
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

from conf.errors import QuantlineError, environment_failure
from conf.process.endings import ending, oom_kills
from conf.schema.load import EngineOptions
from evaluate.measure.engines import Engine, LoadRequest, Positions, Stop
from evaluate.measure.engines.vllm_log import loaded
from evaluate.measure.engines.vllm_steps import SteppedRun
from evaluate.measure.metrics import Request
from evaluate.measure.workload import Load, PlannedRequest
from serve.engine.launch import environment, options

RANDOM_WEIGHTS = "evaluate.measure.engines.vllm_random.RandomWeights"


def engine_settings(load: LoadRequest) -> EngineOptions:
    """Engine options for a fair measurement; the user's options take precedence."""
    settings: EngineOptions = {
        "max_model_len": load.context,
        "enable_prefix_caching": False,
        "jit_monitor_verbose": True,
    }
    if load.likely:
        settings["max_logprobs"] = load.likely
    if load.dummy:
        settings |= {
            "load_format": "dummy",
            "worker_extension_cls": RANDOM_WEIGHTS,
            "skip_tokenizer_init": True,
        }
    if load.traces:
        settings["profiler_config"] = {
            "profiler": "torch",
            "torch_profiler_dir": str(load.traces),
            "torch_profiler_with_stack": False,
        }
    return settings | options(load.engine)


class VllmEngine(Engine):
    """`vllm.LLM`, and the engine inside it for timed runs."""

    def __init__(self, load: LoadRequest) -> None:
        os.environ.update(environment(load.engine.options))
        begin = time.perf_counter()
        from vllm import LLM

        imported = time.perf_counter()
        # The log statistics include the prefix cache's counters.
        self.llm = LLM(str(load.folder), disable_log_stats=False, **engine_settings(load))
        self.log, self.kills_before = load.log, oom_kills()
        self.processes = multiprocessing.active_children()
        self.traces = load.traces
        self.numbers = itertools.count()
        self.loaded = loaded(load)
        self.loaded.startup.import_s = imported - begin
        self.loaded.startup.start_s = time.perf_counter() - imported
        cache = self.llm.llm_engine.vllm_config.cache_config
        if self.loaded.memory.kv_cache_tokens is None and cache.num_gpu_blocks:
            tokens = cache.num_gpu_blocks * cache.block_size
            self.loaded.memory.kv_cache_tokens = float(tokens)

    def death(self) -> QuantlineError | None:
        """The cause of death, which vLLM's own error does not name."""
        for process in self.processes:
            if process.exitcode:
                text = self.log.read_text(errors="replace")
                cause = ending(process.exitcode, text, self.kills_before)
                return environment_failure(f"the engine's process {process.name} {cause}")
        return None

    def run_requests(self, load: Load, stop: Stop | None = None) -> list[Request]:
        """Adds each request at its time, with `at_once` conversations in progress, and steps. A
        request that arrives during a step waits for it: its clock starts at its arrival time. With
        limited concurrency, its clock starts when it is added."""
        return SteppedRun(self.llm.llm_engine, load, self._add_request, stop).run()

    def _add_request(self, planned: PlannedRequest) -> str:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        name = str(next(self.numbers))
        sampling = SamplingParams(
            temperature=0,
            max_tokens=planned.output_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt: dict[str, Any] = {"prompt_token_ids": planned.prompt}
        if planned.salt:
            prompt["cache_salt"] = planned.salt
        self.llm.llm_engine.add_request(name, prompt, sampling)
        return name

    def generate(self, prompts: list[list[int]], tokens: int) -> list[list[int]]:
        from vllm import SamplingParams

        greedy = SamplingParams(temperature=0, max_tokens=tokens, detokenize=False)
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self.llm.generate(inputs, greedy, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def score_window(self, window: list[int], likely: int) -> Positions:
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0,
            max_tokens=1,
            prompt_logprobs=likely,
            detokenize=False,
            flat_logprobs=True,
        )
        (output,) = self.llm.generate([{"prompt_token_ids": window}], sampling, use_tqdm=False)
        flat = output.prompt_logprobs
        positions = Positions([], [], [])
        for place in range(1, len(window)):
            start, end = flat.start_indices[place], flat.end_indices[place]
            # The text's own token comes first, then the most likely ones by rank.
            positions.chosen.append(flat.logprobs[start])
            positions.likely.append(flat.token_ids[start + 1 : end][:likely])
            positions.scores.append(flat.logprobs[start + 1 : end][:likely])
        return positions

    def tokens_of(self, text: str) -> list[int]:
        tokens: list[int] = self.llm.get_tokenizer()(text)["input_ids"]
        return tokens

    def prefix_cache(self) -> tuple[float, float]:
        totals = {metric.name: getattr(metric, "value", 0) for metric in self.llm.get_metrics()}
        hits = totals.get("vllm:prefix_cache_hits", 0)
        return float(hits), float(totals.get("vllm:prefix_cache_queries", 0))

    def profile(self, load: Load) -> Path:
        assert self.traces is not None
        traces_before = set(self.traces.rglob("*.json*"))
        self.llm.start_profile()
        self.run_requests(load)
        self.llm.stop_profile()
        new_traces = set(self.traces.rglob("*.json*")) - traces_before
        # The worker's trace has the operators; the front end writes another, small one.
        return max(new_traces, key=lambda path: path.stat().st_size)


ENGINE = VllmEngine
