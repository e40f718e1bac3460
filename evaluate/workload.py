"""The tokens of a run: random, of exact length, and never the same twice."""

import random

from conf.load_schema import ScenarioConfig

LOWEST_TOKEN = 16  # below lie special tokens
WARM_UP, PROFILE = -1, -2  # runs that are not timed


def prompts(scenario: ScenarioConfig, name: str, repeat: int, vocabulary: int) -> list[list[int]]:
    """One run's prompts. Every repeat, and the warm-up, has tokens of its own: a prefix cache that
    is on by mistake finds nothing, and the same command sends the same tokens again."""
    chance = random.Random(f"{name} {repeat}")
    known = range(min(LOWEST_TOKEN, vocabulary - 1), vocabulary)
    return [chance.choices(known, k=scenario.input_tokens) for _ in range(scenario.count)]
