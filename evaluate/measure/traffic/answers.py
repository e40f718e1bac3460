"""Lengths of the answers for which a file has none."""

import random
from collections.abc import Iterator
from dataclasses import replace

from conf.errors import bad_input
from conf.schema.traffic import FIXED, UNIFORM, LengthsConfig, TrafficConfig
from conf.terminal import say
from evaluate.measure.traffic.conversation import Conversation, Passage, Turn
from evaluate.measure.traffic.synthetic import length


def with_answers(conversations: list[Conversation], config: TrafficConfig) -> list[Conversation]:
    """The conversations of a file, with a drawn length for each answer that has none. Says how
    many. The same file and options give the same lengths."""
    turns = [turn for conversation in conversations for turn in conversation.turns]
    missing = sum(turn.answer is None for turn in turns)
    if not missing:
        _check_unused(config)
        return conversations
    say(
        f"traffic.path={config.path}: {missing:,} of {len(turns):,} requests do not say how long "
        f"their answer is; it has {_described(config.output)} (traffic.output)"
    )
    generator = random.Random(f"{config.seed} answers")

    def drawn(turns: tuple[Turn, ...]) -> Iterator[Turn]:
        for turn in turns:
            tokens = length(config.output, generator) if turn.answer is None else 0
            yield replace(turn, answer=turn.answer or Passage(tokens=tokens, is_drawn=True))

    return [replace(each, turns=tuple(drawn(each.turns))) for each in conversations]


def _check_unused(config: TrafficConfig) -> None:
    if config.output != LengthsConfig():
        raise bad_input(
            "traffic.output: works only with traffic=synthetic or answers without a length; "
            f"all answers of traffic.path={config.path} have one"
        )


def _described(config: LengthsConfig) -> str:
    if config.distribution == FIXED:
        return f"{config.median:,} tokens"
    if config.distribution == UNIFORM:
        return f"{config.low:,} to {config.high:,} tokens"
    return f"{config.median:,} tokens in the median"
