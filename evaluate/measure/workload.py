"""The requests of a run: random prompts of exact length that never repeat, and their arrival
times."""

import random
from dataclasses import replace

from conf.schema.load import ScenarioConfig

LOWEST_TOKEN = 16  # smaller ids are special tokens
WARM_UP, PROFILE = -1, -2  # runs that are not timed
WARM_UP_REQUESTS, WARM_UP_ROUNDS = 64, 4  # of a sustained workload; the warm-up is shorter
WARM_UP_TOKENS = 128  # per answer; later decode steps are like earlier ones


def prompts(scenario: ScenarioConfig, name: str, repeat: int, vocabulary: int) -> list[list[int]]:
    """The prompts of one run. Every repeat and the warm-up have different tokens, so that a prefix
    cache that is on by mistake has no hits. The same command always sends the same tokens."""
    generator = random.Random(f"{name} {repeat}")
    token_range = range(min(LOWEST_TOKEN, vocabulary - 1), vocabulary)
    return [generator.choices(token_range, k=scenario.input_tokens) for _ in range(scenario.count)]


def warm_up(scenario: ScenarioConfig) -> ScenarioConfig:
    """The warm-up of a scenario: the same load for a shorter time."""
    shorter = replace(scenario, output_tokens=min(scenario.output_tokens, WARM_UP_TOKENS))
    if scenario.is_sustained:
        request_limit = max(WARM_UP_REQUESTS, WARM_UP_ROUNDS * (scenario.concurrency or 0))
        shorter.requests = min(scenario.count, request_limit)
    return shorter


def schedule(prompts: list[list[int]], scenario: ScenarioConfig) -> tuple[list[float], int]:
    """The arrival time of each request in seconds, and how many may run at once. Like the prompts,
    the times are the same for every checkpoint and differ between repeats."""
    if not scenario.rate:
        return [0.0] * len(prompts), scenario.concurrency or len(prompts)
    generator = random.Random(str(prompts[0]))
    moment, times = 0.0, []
    for _ in prompts:
        times.append(moment)
        moment += generator.expovariate(scenario.rate)
    return times, len(prompts)
