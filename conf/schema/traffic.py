"""Options of traffic: requests with lengths, prefixes, turns and arrivals of their own."""

from dataclasses import asdict, dataclass, field
from typing import Any

from conf.schema.ranges import SEED_MOST, TOKENS_MOST, above, choices, within

FILE, SHAREGPT, SYNTHETIC = "file", "sharegpt", "synthetic"
SOURCES = (FILE, SHAREGPT, SYNTHETIC)
AUTO = "auto"
MOONCAKE = "mooncake"
FORMATS = ("plain", "sharegpt", "chat", "vllm", "guidellm", MOONCAKE, "azure", "burstgpt")
BLOCK_TOKENS = 512
"""Of Mooncake's own traces."""
CLOSED, POISSON, BURSTY, REPLAYED = "closed", "poisson", "bursty", "replayed"
ARRIVALS = (CLOSED, POISSON, BURSTY, REPLAYED)
FIXED, UNIFORM, LOGNORMAL = "fixed", "uniform", "lognormal"
SECONDS, MILLISECONDS = "s", "ms"
UNITS = {SECONDS: 1.0, MILLISECONDS: 1e3, "us": 1e6, "ns": 1e9}
"""Units of timestamps: so many are a second."""
ONE_PATTERN = "one pattern"
"""How a capacity search draws times of arrival: once for all rates, which scale them."""
DISTRIBUTIONS = (FIXED, UNIFORM, LOGNORMAL)


@dataclass
class LengthsConfig:
    """A distribution of lengths in tokens."""

    distribution: str = field(default=LOGNORMAL, metadata=choices(*DISTRIBUTIONS))
    """fixed (all have the median), uniform (from low to high) or lognormal."""
    median: int = field(default=256, metadata=within(1, TOKENS_MOST))
    """The median of fixed and lognormal lengths."""
    sigma: float = field(default=0.8, metadata=within(0, 5))
    """For lognormal: the standard deviation of the logarithm."""
    low: int = field(default=1, metadata=within(1, TOKENS_MOST))
    """The shortest length; a shorter one is drawn again as this one."""
    high: int = field(default=4096, metadata=within(1, TOKENS_MOST))
    """The longest length."""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low={self.low} is above high={self.high}")
        if self.distribution != UNIFORM and not self.low <= self.median <= self.high:
            raise ValueError(
                f"median={self.median} is not between low={self.low} and high={self.high}"
            )


@dataclass
class TrafficConfig:
    """The requests of scenario=traffic and scenario=capacity, and when they arrive."""

    source: str = field(default=SYNTHETIC, metadata=choices(*SOURCES))
    """file, sharegpt (packaged conversations) or synthetic."""
    path: str | None = None
    """For a file: a trace or data set, .jsonl, .json or .csv, packed with gzip or not."""
    format: str = field(default=AUTO, metadata=choices(AUTO, *FORMATS))
    """For a file: plain, sharegpt, chat, vllm, guidellm, mooncake, azure or burstgpt; auto tells it
    by its keys."""
    time_unit: str = field(default=AUTO, metadata=choices(AUTO, *UNITS))
    """For a file: the unit of its timestamps: s, ms, us or ns. auto is the format's own, seconds or
    (mooncake) milliseconds; replayed refuses times that do not look like it."""
    block_tokens: int = field(default=BLOCK_TOKENS, metadata=within(1, 2**16))
    """For a file in the mooncake format: tokens of a block that one hash names. Qwen's traces have
    16."""
    skip_bad: bool = False
    """For a file: leave out records that cannot be read, and say how many; else it is refused."""
    requests: int = field(default=256, metadata=within(1, 10**6))
    """Most requests of a run: the first ones of a trace with times, else a random choice."""
    turns: int = field(default=1, metadata=within(1, 1000))
    """Most turns of a conversation. A turn follows the answer before, with all text so far."""
    pause_s: float = field(default=0.0, metadata=within(0, 3600))
    """Seconds between an answer and the next turn."""
    arrivals: str = field(default=POISSON, metadata=choices(*ARRIVALS))
    """closed (clients that wait for their answers), poisson, bursty (gamma) or replayed (the
    trace's own times)."""
    rate: float = field(default=4.0, metadata=above(0, 1e6))
    """For poisson and bursty: requests a second in the mean, all turns counted."""
    burstiness: float = field(default=0.25, metadata=above(0, 1000))
    """For bursty: the shape of the gamma distribution. 1 is Poisson, less comes in bursts."""
    concurrency: int = field(default=16, metadata=within(1, 10**6))
    """For closed: clients."""
    speed: float = field(default=1.0, metadata=above(0, 1e6))
    """For replayed: times as fast as the trace."""
    prefix_caching: bool = True
    """Let the engine keep the prompts' prefixes in its cache, as a server does by default."""
    max_input_tokens: int | None = field(default=None, metadata=within(1, TOKENS_MOST))
    """Longer prompts are left out, and counted; null is the model's limit."""
    max_output_tokens: int | None = field(default=None, metadata=within(1, TOKENS_MOST))
    """Longer answers are cut to this; null is no limit."""
    characters_per_token: float = field(default=4.0, metadata=above(0, 1000))
    """Length of a text in tokens where the model has no tokenizer here (weights=random)."""
    seed: int = field(default=0, metadata=within(0, SEED_MOST))
    """Seed of the choice, of the tokens and of synthetic lengths."""
    input: LengthsConfig = field(default_factory=LengthsConfig)
    """For synthetic: tokens that each prompt adds."""
    output: LengthsConfig = field(default_factory=LengthsConfig)
    """For synthetic: tokens of each answer. For a file: of the answers without a length."""
    prefixes: int = field(default=1, metadata=within(1, 10**6))
    """For synthetic: different shared prefixes, as system prompts."""
    prefix_tokens: int = field(default=0, metadata=within(0, TOKENS_MOST))
    """For synthetic: tokens of each shared prefix, before the prompt's own."""

    def __post_init__(self) -> None:
        if self.source == FILE and not self.path:
            raise ValueError("traffic=file needs traffic.path=FILE")
        if self.source != FILE and self.path:
            raise ValueError(f"traffic.path={self.path}: works only with traffic=file")
        if self.source != FILE and self.time_unit != AUTO:
            raise ValueError(f"traffic.time_unit={self.time_unit}: works only with traffic=file")
        if self.block_tokens != BLOCK_TOKENS and not self._may_have_blocks:
            raise ValueError(
                f"traffic.block_tokens={self.block_tokens}: works only with traffic=file and "
                f"traffic.format={MOONCAKE}"
            )
        if self.source == SYNTHETIC and self.arrivals == REPLAYED:
            raise ValueError(
                "traffic.arrivals=replayed: synthetic requests have no times of arrival"
            )

    @property
    def _may_have_blocks(self) -> bool:
        return self.source == FILE and self.format in (AUTO, MOONCAKE)


@dataclass
class CapacityConfig:
    """The search for the highest rate that meets the targets."""

    share: float = field(default=0.99, metadata=within(0.5, 1))
    """Share of requests that must meet targets.ttft_ms and targets.tpot_ms."""
    resolution: float = field(default=0.05, metadata=within(0.005, 1))
    """The search ends when the highest good and the lowest bad rate differ by less than this."""
    first_rate: float | None = field(default=None, metadata=above(0, 1e6))
    """Requests a second of the first trial, which is then doubled; null begins with the rate at
    which the server answers a burst of requests."""
    seconds: float = field(default=30.0, metadata=above(0, 86400))
    """Least seconds in which the requests of a trial arrive."""
    least_requests: int = field(default=200, metadata=within(1, 10**6))
    """Least requests of a trial that decides, however long they take to arrive."""
    curve: int = field(default=0, metadata=within(0, 100))
    """Further trials after the first search of each start, from 1/8 of its rate up to it, for the
    plot of throughput against interactivity. Each takes about as long as a trial of the search, so
    those at lower rates have fewer requests."""

    def recorded(self) -> dict[str, Any]:
        """The options that make it another search, and how times are drawn: rows from before that
        drew them anew for each rate. Trials of the curve may be added to a search."""
        options = {name: value for name, value in asdict(self).items() if name != "curve"}
        return options | {"times": ONE_PATTERN}


# Fields that older rows do not have. They are in a row's settings and key only where they are set.
ADDED_TO_LOAD = ("whole_conversations", "begins_elsewhere", "drawn_answers")
# Fields that are in no key: they count what the hash tells already.
COUNTS_IN_LOAD = ("drawn_answers",)


@dataclass
class TrafficLoad:
    """What an evaluation found in its traffic. Part of a workload's identity."""

    source: str = ""
    sha256: str = ""
    """Of all requests: tokens, lengths, turns."""
    arrivals: str = POISSON
    burstiness: float | None = None
    speed: float | None = None
    pause_s: float | None = None
    prefix_caching: bool = True
    tokens: str = ""
    """Where lengths come from: given, tokenizer or characters."""
    conversations: int = 0
    requests: int = 0
    """All turns of all conversations."""
    left_out: int = 0
    """Conversations that were too long for the model or for the limits."""
    longest_tokens: int = 1
    """The longest context."""
    input_tokens_mean: float = 0.0
    output_tokens_mean: float = 0.0
    reusable_share: float = 0.0
    """Share of the prompts' tokens that an earlier prompt of a run began with."""
    whole_conversations: bool | None = None
    """Set for a closed loop of several turns, where a client plays one conversation at a time.
    Earlier versions sent all first turns before the second ones."""
    begins_elsewhere: bool | None = None
    """Set for a search in which each repeat begins at another conversation. In earlier versions all
    began at the first one."""
    drawn_answers: int | None = None
    """Of all requests, those whose answer has a drawn length, because the file does not give it. A
    trial of a search sends a part of the requests, and its row has the same number."""

    def recorded(self) -> dict[str, Any]:
        """The fields as a row holds them."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None or name not in ADDED_TO_LOAD
        }

    def identity(self) -> dict[str, Any]:
        """What tells this traffic from other traffic."""
        return {k: value for k, value in self.recorded().items() if k not in COUNTS_IN_LOAD}
