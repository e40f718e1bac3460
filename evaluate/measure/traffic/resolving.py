"""Turns the traffic of an evaluation into requests of known length, once for all checkpoints."""

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conf.errors import bad_input
from conf.files.tokenizer_file import read_tokenizer
from conf.models import TOKENIZER, read_config, required_int
from conf.schema.commands import EvaluateConfig
from conf.schema.load import ScenarioConfig
from conf.schema.traffic import (
    BURSTY,
    CLOSED,
    FILE,
    POISSON,
    REPLAYED,
    SHAREGPT,
    TrafficConfig,
    TrafficLoad,
)
from conf.terminal import listed, say
from evaluate.measure.traffic.answers import with_answers
from evaluate.measure.traffic.conversation import Conversation, Passage
from evaluate.measure.traffic.reader import read_conversations
from evaluate.measure.traffic.resolved import (
    ResolvedConversation,
    ResolvedTurn,
    TokenPassage,
    write_resolved,
)
from evaluate.measure.traffic.sharegpt_package import sharegpt_file
from evaluate.measure.traffic.synthetic import synthetic_conversations
from evaluate.measure.traffic.times import check_replayed

PREFIX_CACHING = "enable_prefix_caching"
# A request of traffic counts as good within these where no targets are given.
USUAL_TTFT_MS, USUAL_TPOT_MS = 500.0, 50.0
Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class Limits:
    """Lengths beyond which a conversation is left out or cut."""

    context: int
    input_tokens: int
    output_tokens: int | None


def read_traffic(config: TrafficConfig) -> list[Conversation]:
    """The conversations of the source, all of them. Bad files are refused here, early."""
    if config.source == FILE:
        path = Path(str(config.path)).expanduser()
        conversations = read_conversations(
            path,
            config.format,
            config.time_unit,
            config.block_tokens,
            skip_bad=config.skip_bad,
            needs_times=config.arrivals == REPLAYED,
        )
        conversations = with_answers(conversations, config)
    elif config.source == SHAREGPT:
        conversations = read_conversations(sharegpt_file(), SHAREGPT, may_be_cut=True)
    else:
        conversations = synthetic_conversations(config)
    if config.arrivals == REPLAYED:
        check_replayed(conversations, config)
    return conversations


def with_traffic(
    config: EvaluateConfig, conversations: list[Conversation], folder: Path
) -> EvaluateConfig:
    """The config with its traffic's facts in every scenario that takes requests from it. `folder`
    is the original's.

    The prefix cache is an option of the engine, and all scenarios of a command share one. The
    prompts of the others have nothing in common, so it does not help them: hits make their runs
    invalid. Its own cost is small, but not zero, so their rows have another key than without it."""
    load = _resolve(config, conversations, folder)
    options = {PREFIX_CACHING: load.prefix_caching} | config.engine.options
    load.prefix_caching = bool(options[PREFIX_CACHING])
    # A trace with times begins at its beginning.
    searched = load if _has_times(conversations) else replace(load, begins_elsewhere=True)
    scenarios = {
        name: _with_load(config, scenario, searched if scenario.search else load)
        if scenario.from_traffic
        else scenario
        for name, scenario in config.scenario.items()
    }
    others = [name for name, scenario in scenarios.items() if not scenario.from_traffic]
    if load.prefix_caching and others and PREFIX_CACHING not in config.engine.options:
        say(
            f"traffic: the engine's prefix cache is on. {listed(others)} will run with it, too, "
            "without hits"
        )
    return replace(config, scenario=scenarios, engine=replace(config.engine, options=options))


def _with_load(
    config: EvaluateConfig, scenario: ScenarioConfig, load: TrafficLoad
) -> ScenarioConfig:
    found: dict[str, Any] = {
        "ttft_ms": config.targets.ttft_ms or USUAL_TTFT_MS,
        "tpot_ms": config.targets.tpot_ms or USUAL_TPOT_MS,
        "traffic": load,
    }
    if scenario.search:
        if load.arrivals in (CLOSED, REPLAYED):
            raise bad_input(
                f"traffic.arrivals={load.arrivals}: a search changes the rate of arrivals; choose "
                f"{POISSON} or {BURSTY}"
            )
        return replace(scenario, **found, capacity=config.capacity)
    return replace(
        scenario,
        **found,
        requests=load.requests,
        concurrency=config.traffic.concurrency if load.arrivals == CLOSED else None,
        rate=config.traffic.rate if load.arrivals in (POISSON, BURSTY) else None,
    )


def _resolve(
    config: EvaluateConfig, conversations: list[Conversation], folder: Path
) -> TrafficLoad:
    traffic = config.traffic
    context = required_int(read_config(folder), "max_position_embeddings")
    context = min(context, config.engine.max_model_len or context)
    limits = Limits(context, traffic.max_input_tokens or context, traffic.max_output_tokens)
    tokenizer = folder / TOKENIZER
    # The tokenizer beside random weights is a made-up one.
    is_real = tokenizer.is_file() and config.weights != "random"
    encode = _encoder(tokenizer) if is_real else None
    resolver = _Resolver(traffic, limits, encode)
    resolved = resolver.resolve(_ordered(conversations, traffic))
    if not resolved:
        raise bad_input(
            f"traffic={traffic.source}: none of its {len(conversations):,} conversations fits into "
            f"{limits.input_tokens:,} tokens of a prompt and {context:,} in all"
        )
    if resolver.left_out:
        say(f"traffic={traffic.source}: {resolver.left_out:,} conversations are too long: left out")
    if resolver.later_turns:
        say(
            f"traffic={traffic.source}: {resolver.later_turns:,} turns beyond "
            f"traffic.turns={traffic.turns} are left out"
        )
    if resolver.long_turns:
        say(
            f"traffic={traffic.source}: {resolver.long_turns:,} turns of longer conversations are "
            "too long: left out"
        )
    requests = [
        (conversation.input_tokens(turn), turn.output_tokens)
        for conversation in resolved
        for turn in conversation.turns
    ]
    return TrafficLoad(
        source=traffic.source,
        sha256=write_resolved(resolved),
        arrivals=traffic.arrivals,
        burstiness=traffic.burstiness if traffic.arrivals == BURSTY else None,
        speed=traffic.speed if traffic.arrivals == REPLAYED else None,
        pause_s=traffic.pause_s or None,
        prefix_caching=traffic.prefix_caching,
        tokens=resolver.tokens_from,
        conversations=len(resolved),
        requests=len(requests),
        left_out=resolver.left_out,
        longest_tokens=max(inputs + outputs for inputs, outputs in requests),
        input_tokens_mean=sum(inputs for inputs, _ in requests) / len(requests),
        output_tokens_mean=sum(outputs for _, outputs in requests) / len(requests),
        reusable_share=reusable_share(resolved),
        whole_conversations=(
            True if traffic.arrivals == CLOSED and len(requests) > len(resolved) else None
        ),
        drawn_answers=resolver.drawn_answers or None,
    )


def _has_times(conversations: list[Conversation]) -> bool:
    """Whether it is a trace with times: all of its requests have one, or none."""
    return conversations[0].arrival_s is not None


def _ordered(conversations: list[Conversation], traffic: TrafficConfig) -> list[Conversation]:
    """A trace keeps its order. Of other data, the requests are a random choice."""
    if traffic.source not in (FILE, SHAREGPT) or _has_times(conversations):
        return conversations
    return random.Random(traffic.seed).sample(conversations, len(conversations))


def _encoder(path: Path) -> Encode:
    tokenizer = read_tokenizer(path)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return encode


class _Resolver:
    """Finds the tokens of conversations, until there are enough requests."""

    def __init__(self, traffic: TrafficConfig, limits: Limits, encode: Encode | None) -> None:
        self.traffic, self.limits, self.encode = traffic, limits, encode
        self.left_out = self.drawn_answers = 0
        self.later_turns = 0
        """Turns beyond `traffic.turns`."""
        self.long_turns = 0
        """Turns that do not fit, after others that do."""
        self.tokens_from = "given"

    def resolve(self, conversations: Iterable[Conversation]) -> list[ResolvedConversation]:
        resolved: list[ResolvedConversation] = []
        left = self.traffic.requests
        for number, conversation in enumerate(conversations):
            most = min(left, self.traffic.turns)
            fitting = self._fitting(conversation, number, most)
            if fitting.turns:
                resolved.append(fitting)
                left -= len(fitting.turns)
                turns = len(conversation.turns)
                self.later_turns += max(0, turns - self.traffic.turns)
                self.long_turns += min(turns, most) - len(fitting.turns)
            else:
                self.left_out += 1
            if not left:
                break
        return resolved

    def _fitting(self, conversation: Conversation, number: int, most: int) -> ResolvedConversation:
        """The conversation up to the last turn that fits."""
        passages: list[TokenPassage] = []
        turns: list[ResolvedTurn] = []
        for turn in conversation.turns[:most]:
            for passage in turn.prompt:
                passages.append(self._tokens(passage, f"{number} {len(passages)}"))
            assert turn.answer is not None  # drawn when the file was read
            answer = self._tokens(turn.answer, f"{number} {len(passages)}")
            if self.limits.output_tokens is not None:
                most_tokens = self.limits.output_tokens
                tokens = min(answer.tokens, most_tokens)
                answer = replace(answer, ids=answer.ids[:most_tokens], tokens=tokens)
            inputs = sum(passage.length for passage in passages)
            too_long = inputs + answer.length > self.limits.context
            if too_long or inputs > self.limits.input_tokens:
                break
            turns.append(ResolvedTurn(len(passages), answer.length))
            self.drawn_answers += turn.answer.is_drawn
            passages.append(answer)
        used = turns[-1].passages if turns else 0
        return ResolvedConversation(passages[:used], turns, conversation.arrival_s)

    def _tokens(self, passage: Passage, place: str) -> TokenPassage:
        seed = f"{self.traffic.seed} {passage.seed or place}"
        if passage.text is None:
            return TokenPassage(seed=seed, tokens=passage.tokens)
        if self.encode is not None:
            self.tokens_from = "tokenizer"
            ids = self.encode(passage.text)
            return TokenPassage(ids=ids) if ids else TokenPassage(seed=seed, tokens=1)
        self.tokens_from = "characters"
        tokens = max(1, round(len(passage.text) / self.traffic.characters_per_token))
        # Equal texts stay equal.
        digest = hashlib.sha256(passage.text.encode(errors="replace")).hexdigest()[:16]
        return TokenPassage(seed=f"{self.traffic.seed} text {digest}", tokens=tokens)


def reusable_share(conversations: list[ResolvedConversation]) -> float:
    """The share of the prompts' tokens in passages with which an earlier prompt began, too."""
    seen: set[str] = set()
    reused = total = 0
    for conversation in conversations:
        for turn in conversation.turns:
            digest, is_new = hashlib.sha256(), False
            for passage in conversation.passages[: turn.passages]:
                digest.update(repr(passage).encode())
                begun = digest.hexdigest()
                is_new = is_new or begun not in seen
                seen.add(begun)
                reused += 0 if is_new else passage.length
                total += passage.length
    return reused / total if total else 0.0
