"""The requests of a run: their prompts, the lengths of their answers, and their arrival times."""

import itertools
import math
import random
import uuid
from dataclasses import dataclass, replace

from conf.schema.load import ScenarioConfig
from conf.schema.traffic import CLOSED
from evaluate.measure.traffic.arrivals import arrival_times
from evaluate.measure.traffic.resolved import ResolvedConversation

LOWEST_TOKEN = 16  # smaller ids are special tokens
WARM_UP, PROFILE = -1, -2  # runs that are not timed
WARM_UP_REQUESTS, WARM_UP_ROUNDS = 64, 4  # of a sustained workload; the warm-up is shorter
ALL_AT_ONCE = math.inf  # the rate of a burst
GOLDEN = 0.6180339887  # multiples of it, modulo 1, lie far apart
WARM_UP_TOKENS = 128  # per answer; later decode steps are like earlier ones


@dataclass(frozen=True)
class PlannedRequest:
    """One request, before it is sent."""

    prompt: list[int]
    output_tokens: int
    """Tokens of the answer, exactly."""
    arrival_s: float = 0.0
    """Seconds after the run's start, or after the answer that it waits for."""
    after: int | None = None
    """The place of the request whose answer it waits for."""
    salt: str = ""
    """Requests with different salts share no prefixes in the engine's cache."""


@dataclass(frozen=True)
class Load:
    """The requests of one run, and how many conversations may be in progress at once. A request
    that follows no other begins a conversation."""

    requests: list[PlannedRequest]
    at_once: int
    shares_prefixes: bool = False
    """Whether hits in the prefix cache are part of the workload."""
    most_s: float | None = None
    """Seconds after which a request to a server has failed; None for the client's own limit."""
    silence_s: float | None = None
    """Seconds after which a server that sends nothing, for any request, has failed all that wait;
    None for no such limit."""

    @property
    def conversations(self) -> list[list[int]]:
        """The places of each conversation's requests, in their order."""
        by_last: dict[int, list[int]] = {}
        for place, planned in enumerate(self.requests):
            earlier = [] if planned.after is None else by_last.pop(planned.after)
            by_last[place] = [*earlier, place]
        return sorted(by_last.values())

    @property
    def takes_turns(self) -> bool:
        """Whether requests wait for others: then the clock starts when a request is sent."""
        return self.at_once < len(self.requests)

    @property
    def is_open(self) -> bool:
        """Whether requests come at times of their own, not all at once or one after another."""
        return not self.takes_turns and any(request.arrival_s for request in self.requests)


def load_of(scenario: ScenarioConfig, name: str, repeat: int, vocabulary: int) -> Load:
    """The requests of one run of a scenario with fixed lengths."""
    assert scenario.output_tokens is not None
    tokens = prompts(scenario, name, repeat, vocabulary)
    times, at_once = schedule(tokens, scenario)
    requests = [
        PlannedRequest(prompt, scenario.output_tokens, time)
        for prompt, time in zip(tokens, times, strict=True)
    ]
    return Load(requests, at_once)


def prompts(scenario: ScenarioConfig, name: str, repeat: int, vocabulary: int) -> list[list[int]]:
    """Random prompts. Every repeat and the warm-up have different tokens, so that a prefix cache
    that is on by mistake has no hits. The same command always sends the same tokens."""
    assert scenario.input_tokens is not None
    generator = random.Random(f"{name} {repeat}")
    ids = token_range(vocabulary)
    return [generator.choices(ids, k=scenario.input_tokens) for _ in range(scenario.count)]


def token_range(vocabulary: int) -> range:
    return range(min(LOWEST_TOKEN, vocabulary - 1), vocabulary)


def warm_up(scenario: ScenarioConfig) -> ScenarioConfig:
    """The warm-up of a scenario: the same load for a shorter time."""
    shorter = replace(scenario)
    if scenario.output_tokens is not None:
        shorter.output_tokens = min(scenario.output_tokens, WARM_UP_TOKENS)
    if scenario.is_sustained:
        request_limit = max(WARM_UP_REQUESTS, WARM_UP_ROUNDS * (scenario.concurrency or 0))
        shorter.requests = min(scenario.count or request_limit, request_limit)
    if scenario.capacity is not None:
        shorter.rate = ALL_AT_ONCE
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


def traffic_load(
    scenario: ScenarioConfig,
    conversations: list[ResolvedConversation],
    name: str,
    repeat: int,
    vocabulary: int,
) -> Load:
    """The requests of one run of traffic: the same in every repeat, at other times. A search takes
    a part of them, in every repeat another one. A longer run sends them again. The salts keep
    prefixes of earlier runs, and of earlier rounds of this run, out of the cache."""
    assert scenario.traffic is not None
    run, ids, most = f"{name} {repeat}", token_range(vocabulary), scenario.count
    unique = uuid.uuid4().hex
    requests: list[PlannedRequest] = []
    if scenario.traffic.begins_elsewhere:
        place = int(repeat * GOLDEN % 1 * len(conversations))
        conversations = conversations[place:] + conversations[:place]
    begun: list[ResolvedConversation] = []
    firsts: list[int] = []
    for number, conversation in enumerate(itertools.cycle(conversations)):
        if len(requests) >= most:
            break
        salt = f"{unique} {number // len(conversations)}"
        begun.append(conversation)
        firsts.append(len(requests))
        requests += _turns(conversation, scenario, ids, salt, len(requests))[: most - len(requests)]
    recorded = [conversation.arrival_s for conversation in begun]
    generator = random.Random(f"{run} arrivals")
    times = arrival_times(len(begun), scenario, recorded, generator)
    for first, time in zip(firsts, times, strict=True):
        requests[first] = replace(requests[first], arrival_s=time)
    is_closed = scenario.traffic.arrivals == CLOSED
    at_once = scenario.concurrency if is_closed and scenario.concurrency else len(requests)
    return Load(requests, at_once, shares_prefixes=True)


def _turns(
    conversation: ResolvedConversation, scenario: ScenarioConfig, ids: range, salt: str, place: int
) -> list[PlannedRequest]:
    assert scenario.traffic is not None
    passages = [passage.token_ids(ids) for passage in conversation.passages]
    pause = scenario.traffic.pause_s or 0.0
    return [
        PlannedRequest(
            prompt=list(itertools.chain(*passages[: turn.passages])),
            output_tokens=turn.output_tokens,
            arrival_s=pause if number else 0.0,
            after=place + number - 1 if number else None,
            salt=salt,
        )
        for number, turn in enumerate(conversation.turns)
    ]


def shortened(load: Load) -> Load:
    """The same requests with short answers, for a warm-up. They all come at once where they would
    come slowly: a warm-up shall see large batches."""
    requests = [
        replace(request, output_tokens=min(request.output_tokens, WARM_UP_TOKENS))
        for request in load.requests
    ]
    return all_at_once(replace(load, requests=requests))


def all_at_once(load: Load) -> Load:
    """The same requests, none of which waits for its time."""
    return replace(load, requests=[replace(request, arrival_s=0.0) for request in load.requests])
