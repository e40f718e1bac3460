"""Synthetic conversations: lengths of a distribution, shared prefixes and several turns."""

import math
import random

from conf.schema.traffic import FIXED, UNIFORM, LengthsConfig, TrafficConfig
from evaluate.measure.traffic.conversation import Conversation, Passage, Turn


def synthetic_conversations(config: TrafficConfig) -> list[Conversation]:
    """As many conversations as the requests need. The same options give the same ones."""
    generator = random.Random(config.seed)
    count = -(-config.requests // config.turns)
    return [_conversation(config, generator) for _ in range(count)]


def _conversation(config: TrafficConfig, generator: random.Random) -> Conversation:
    shared = f"prefix {generator.randrange(config.prefixes)}"
    prefix = (Passage(tokens=config.prefix_tokens, seed=shared),) if config.prefix_tokens else ()
    turns = []
    for number in range(config.turns):
        asked = Passage(tokens=length(config.input, generator))
        answer = Passage(tokens=length(config.output, generator))
        turns.append(Turn((*prefix, asked) if number == 0 else (asked,), answer))
    return Conversation(tuple(turns))


def length(config: LengthsConfig, generator: random.Random) -> int:
    """One length of the distribution, within its limits."""
    if config.distribution == FIXED:
        return config.median
    if config.distribution == UNIFORM:
        return generator.randint(config.low, config.high)
    drawn = round(generator.lognormvariate(math.log(config.median), config.sigma))
    return min(max(drawn, config.low), config.high)
