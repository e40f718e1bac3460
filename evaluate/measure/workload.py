"""The requests of a run: tokens that are random, of exact length and never the same twice, and
when each is sent."""

import random
from dataclasses import replace

from conf.schema.load import ScenarioConfig

LOWEST_TOKEN = 16  # below lie special tokens
WARM_UP, PROFILE = -1, -2  # runs that are not timed
WARM_UP_REQUESTS, WARM_UP_ROUNDS = 64, 4  # of a load that lasts, which need not last to warm up
WARM_UP_TOKENS = 128  # in an answer: a step that decodes is like the one before


def prompts(scenario: ScenarioConfig, name: str, repeat: int, vocabulary: int) -> list[list[int]]:
    """One run's prompts. Every repeat, and the warm-up, has tokens of its own: a prefix cache that
    is on by mistake finds nothing, and the same command sends the same tokens again."""
    chance = random.Random(f"{name} {repeat}")
    known = range(min(LOWEST_TOKEN, vocabulary - 1), vocabulary)
    return [chance.choices(known, k=scenario.input_tokens) for _ in range(scenario.count)]


def warm_up(scenario: ScenarioConfig) -> ScenarioConfig:
    """The load that comes before the timed ones, as heavy and not as long."""
    shorter = replace(scenario, output_tokens=min(scenario.output_tokens, WARM_UP_TOKENS))
    if scenario.is_sustained:
        most = max(WARM_UP_REQUESTS, WARM_UP_ROUNDS * (scenario.concurrency or 0))
        shorter.requests = min(scenario.count, most)
    return shorter


def schedule(prompts: list[list[int]], scenario: ScenarioConfig) -> tuple[list[float], int]:
    """When each request arrives, in seconds, and how many may run at once. The times are the same
    for every checkpoint and others in every repeat, as the prompts are."""
    if not scenario.rate:
        return [0.0] * len(prompts), scenario.concurrency or len(prompts)
    chance = random.Random(str(prompts[0]))
    moment, times = 0.0, []
    for _ in prompts:
        times.append(moment)
        moment += chance.expovariate(scenario.rate)
    return times, len(prompts)
