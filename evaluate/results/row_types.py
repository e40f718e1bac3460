"""The parts of a row in results.jsonl: the meaning, type and range of each field.

Rows are read into these types and written from them. Code that reads a row relies on these
declarations. An undeclared field may hold any JSON value (only a number, where the part says so).
It is written back as it was read, so that newer files can be read.
"""

import math
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    StringConstraints,
    WrapValidator,
)

from conf.escaping import CONTROL
from conf.files.json_files import JsonObject
from conf.schema.traffic import COUNTS_IN_LOAD

if TYPE_CHECKING:
    from typing import Optional as Maybe
else:

    class Maybe:
        """A field that may be missing from a line, but is never null there. Type checkers see
        `T | None`; pydantic sees T alone, which refuses null."""

        def __class_getitem__(cls, kind: Any) -> Any:
            return kind


LONGEST_NAME = 10_000  # characters
LONGEST_S = 1e7  # four months
FASTEST = 1e12  # upper bound of any rate per second


def _printable(text: str) -> str:
    """Refuses control characters: names appear in tables, charts and terminals."""
    if CONTROL.search(text):
        raise ValueError("should have no control characters")
    return text


def _moment(text: str) -> str:
    if text:
        try:
            datetime.fromisoformat(text)
        except ValueError:
            raise ValueError("should be a time as 2026-01-31T12:00:00+00:00") from None
    return text


def _whole(number: float) -> float:
    if number != math.floor(number):
        raise ValueError("should be a whole number")
    return number


def _as_written(value: Any, check: Callable[[Any], float]) -> float:
    """Keeps an int as an int, so that a line is written back with the digits that it had."""
    checked = check(value)
    return value if isinstance(value, int) else checked


Name = Annotated[str, StringConstraints(max_length=LONGEST_NAME), AfterValidator(_printable)]
FullName = Annotated[Name, StringConstraints(min_length=1)]
Moment = Annotated[Name, AfterValidator(_moment)]
Digits = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,12}$")]

Seconds = Annotated[float, Field(ge=1e-6, le=LONGEST_S)]
"""A time measured around an engine call: at least a microsecond."""
TokenSeconds = Annotated[float, Field(ge=1e-9, le=LONGEST_S)]
"""Mean seconds per token of an answer."""
Wait = Annotated[float, Field(ge=0, le=LONGEST_S)]
"""May be 0: tokens can arrive together, and a startup phase can be shorter than the clock shows."""
SelfTime = Annotated[float, Field(ge=-1, le=LONGEST_S)]
"""Self time of an operator; the profiler's rounding can make it negative."""
Rate = Annotated[float, Field(gt=0, le=FASTEST)]
RateOrNone = Annotated[float, Field(ge=0, le=FASTEST)]
Amount = Annotated[float, Field(ge=0, le=1e15)]
RoundedDivergence = Annotated[float, Field(ge=-1e-3, le=1e15)]
"""Rounding can make it negative for two identical models."""
Share = Annotated[float, Field(ge=0, le=1)]
LimitShare = Annotated[float, Field(ge=0, le=1000)]
"""Above 1 if the limit was measured in RAM and the weights fit into the CPU's cache."""
Recovery = Annotated[float, Field(ge=0, le=1e6)]
"""Can exceed 1 by chance, and by far if the original's score is close to 0."""
Count = Annotated[int, Field(ge=0, le=10**15)]
Size = Annotated[int, Field(ge=1, le=10**12)]
Gpus = Annotated[int, Field(ge=1, le=10**5)]
Repeat = Annotated[int, Field(ge=0, le=10**6)]
WholeNumber = Annotated[float, Field(ge=0, le=1e15), AfterValidator(_whole)]
AsWritten = WrapValidator(_as_written)
Number = Annotated[float, Field(ge=-1e300, le=1e300), AsWritten]

RequestTimes = Annotated[
    tuple[Wait, Wait, Wait, Annotated[Wait, AsWritten]],
    Strict(False),  # JSON has lists only
]
"""When a request was sent, its first and last token arrived, and how many requests share that."""

SlowRequest = Annotated[tuple[Wait, Wait], Strict(False)]
"""TTFT and TPOT."""


class Part(BaseModel):
    """A JSON object in a row. Strict: a string is never read as a number, nor 1.5 as an int."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    @property
    def names(self) -> set[str]:
        """The fields that are set, including undeclared ones."""
        return self.model_fields_set

    def content(self) -> JsonObject:
        """The JSON object as it is written to a line."""
        return self.model_dump(exclude_unset=True)

    def with_fields(self, **fields: Any) -> Self:
        """A copy with some fields changed or added."""
        return self.model_copy(update=fields)


class NumberPart(Part):
    """A part that holds numbers only."""

    __pydantic_extra__: dict[Name, Number] = Field(init=False)

    def numbers(self) -> dict[str, float]:
        """The numbers that are set, by name."""
        return self.model_dump(exclude_unset=True)


class Requests(Part):
    """Number of requests by token count, and when requests were sent and answered."""

    input_tokens: dict[Digits, Size] = Field(default_factory=dict)
    output_tokens: dict[Digits, Size] = Field(default_factory=dict)
    times_s: list[RequestTimes] = Field(default_factory=list)
    slowest_s: Maybe[list[SlowRequest]] = None
    """Of a trial, the requests that decide any targets (evaluate/results/late_requests.py)."""


class TrafficSettings(Part):
    """The traffic of a workload: what the evaluation read, and how requests arrive."""

    source: Maybe[Name] = None
    sha256: Maybe[Name] = None
    arrivals: Maybe[Name] = None
    burstiness: Annotated[Rate, AsWritten] | None = None
    speed: Annotated[Rate, AsWritten] | None = None
    pause_s: Annotated[Wait, AsWritten] | None = None
    prefix_caching: Maybe[bool] = None
    tokens: Maybe[Name] = None
    conversations: Maybe[Size] = None
    requests: Maybe[Size] = None
    left_out: Maybe[Count] = None
    longest_tokens: Maybe[Size] = None
    input_tokens_mean: Maybe[Amount] = None
    output_tokens_mean: Maybe[Amount] = None
    reusable_share: Maybe[Share] = None
    whole_conversations: Maybe[bool] = None
    """Set where each client of a closed loop plays one conversation at a time."""
    begins_elsewhere: Maybe[bool] = None
    """Set where each repeat of a search begins at another conversation."""
    drawn_answers: Maybe[Size] = None
    """Of all requests of the traffic, those whose answer has a drawn length."""


class SearchSettings(Part):
    """The options of a capacity search."""

    share: Share
    resolution: Annotated[float, Field(gt=0, le=1)]
    first_rate: Annotated[Rate, AsWritten] | None = None
    seconds: Annotated[Rate, AsWritten]
    least_requests: Size
    times: Maybe[Name] = None
    """How times of arrival are drawn. Missing in older rows, which drew them for each rate."""


class WorkloadSettings(Part):
    """The scenario of a speed row: a batch, or a stream of requests."""

    input_tokens: Maybe[Size] = None
    output_tokens: Maybe[Size] = None
    batch: Maybe[Size] = None
    concurrency: Maybe[Size] = None
    rate: Maybe[Annotated[Rate, AsWritten]] = None
    requests: Maybe[Size] = None
    ttft_ms: Maybe[Annotated[Rate, AsWritten]] = None
    tpot_ms: Maybe[Annotated[Rate, AsWritten]] = None
    traffic: Maybe[TrafficSettings] = None
    """Set where requests have lengths of their own; then there are no input_tokens here."""
    capacity: Maybe[SearchSettings] = None
    """Set for a trial of a capacity search."""

    def identity(self) -> JsonObject:
        """The settings that tell workloads apart. Rows of earlier versions lack some counts."""
        content = self.content()
        traffic = content.get("traffic")
        if isinstance(traffic, dict):
            known = {name: value for name, value in traffic.items() if name not in COUNTS_IN_LOAD}
            content["traffic"] = known
        return content

    @property
    def has_own_arrivals(self) -> bool:
        """Whether the arrivals, not the engine, set the duration of a run."""
        replayed = self.traffic is not None and self.traffic.arrivals == "replayed"
        return self.rate is not None or replayed

    @property
    def request_count(self) -> int | None:
        """Requests in one run."""
        return self.requests if self.batch is None else self.batch


class TrialSettings(WorkloadSettings):
    """The workload of a trial."""

    rate: Annotated[Rate, AsWritten]
    traffic: TrafficSettings
    capacity: SearchSettings
    curve: Maybe[bool] = None
    """True for a trial that follows the search, for the curve."""


class Startup(NumberPart):
    """Seconds until the engine was ready, by phase."""

    __pydantic_extra__: dict[Name, Wait] = Field(init=False)

    load_s: Maybe[Wait] = None
    weights_s: Maybe[Wait] = None
    compile_s: Maybe[Wait] = None
    capture_s: Maybe[Wait] = None
    prepare_s: Maybe[Wait] = None
    import_s: Maybe[Wait] = None
    start_s: Maybe[Wait] = None


class Memory(NumberPart):
    """Sizes in GiB, and what the KV cache holds."""

    weights_gib: Maybe[Amount] = None
    kv_cache_tokens: Maybe[Amount] = None
    graphs_gib: Maybe[Amount] = None
    peak_gib: Maybe[Amount] = None
    weights_read_gib: Maybe[Amount] = None
    """Weights that a decode step reads."""
    kv_token_bytes: Maybe[Amount] = None
    kv_cache_requests: Maybe[Amount] = None
    """Requests of the workload's length that the KV cache holds."""


ALL = "all"
"""Stands for every product of ours among those that were refused, as in serve.kernels.record."""


class TokenRange(Part):
    """The product for a range of tokens, from the end of the range before."""

    up_to: Size | None = None
    """The most tokens; null for any number."""
    product: FullName


class LayerKernels(Part):
    """What layers of one kind and shape ran, where our kernels were offered."""

    kind: FullName
    rows: Count
    """0, as its columns, where a layer was refused before its shape was read."""
    columns: Count
    ranges: list[TokenRange] = Field(default_factory=list)
    """Empty where the engine's own kernel ran for all numbers of tokens, and its name is not
    known."""
    refused: dict[Name, str] = Field(default_factory=dict)
    """Products of ours that were not used, and why; ALL where it was left to the engine."""
    extra_bytes: Count = 0
    """Memory of further layouts of the weights, for each of these layers."""
    layer: Name = ""
    """The layer's name, where it differs from the others of its kind; else empty: all of them."""

    @property
    def is_left(self) -> bool:
        """Whether it was left to the engine's own kernel."""
        return ALL in self.refused


class Limit(Part):
    """The shortest times that the hardware allows, and the share of that limit reached."""

    prefill_s: Maybe[Wait] = None
    prefill_bound: Maybe[Name] = None
    decode_s: Maybe[Wait] = None
    decode_bound: Maybe[Name] = None
    bandwidth_gb_s: Maybe[Rate] = None
    product: Maybe[Name] = None
    product_tops: Maybe[RateOrNone] = None
    rates: Maybe[Name] = None
    body_gb: Maybe[Amount] = None
    head_gb: Maybe[Amount] = None
    prefill_share: Maybe[LimitShare] = None
    decode_share: Maybe[LimitShare] = None


class ParallelSizes(Part):
    """The engine options that multiply the number of GPUs."""

    tensor_parallel_size: Maybe[Gpus] = None
    pipeline_parallel_size: Maybe[Gpus] = None
    data_parallel_size: Maybe[Gpus] = None


def _with_parallel_sizes(options: Any) -> Any:
    if isinstance(options, dict):
        ParallelSizes.model_validate(options)
    return options


RecordedOptions = Annotated[JsonObject, BeforeValidator(_with_parallel_sizes)]
"""Engine options with the engine's own names, in the given order."""


class Environment(Part):
    """The machine, software and weights of a run."""

    device: Maybe[Name] = None
    client: Maybe[Name] = None
    """The CPU that sent the requests, where the server runs elsewhere."""
    card: Maybe[Name] = None
    """The individual GPU; two cards of the same name differ in speed."""
    driver: Maybe[Name] = None
    power_limit_w: Annotated[Rate, AsWritten] | None = None
    max_sm_clock_mhz: Annotated[Rate, AsWritten] | None = None
    gpu_memory_gib: Annotated[Amount, AsWritten] | None = None
    cpu: Maybe[Name] = None
    cores: Size | None = None
    python: Maybe[Name] = None
    versions: dict[Name, Name] = Field(default_factory=dict)
    engine: Maybe[Name] = None
    engine_options: RecordedOptions = Field(default_factory=dict)
    variables: dict[Name, str] = Field(default_factory=dict)
    commit: Maybe[Name] = None
    command: Maybe[str] = None
    checkpoint_sha256: Maybe[Name] = None
    quantization_sha256: Maybe[Name] = None
    weights: Maybe[Literal["random", "trained"]] = None
    pruned: bool | None = None
    made_up: Maybe[Repeat] = None
    """Version of the random weights, raised whenever the way of making them changes."""
    kernels_version: Maybe[Repeat] = None
    """Version of our kernels, where `engine_options` has `kernels`: those that the engine might
    use. Without it, the engine ran on its own."""
    search: Maybe[Name] = None
    """Equal for the runs of one command of `evaluate.tune`, which compares starts of one command
    only."""

    @property
    def has_random_weights(self) -> bool:
        return self.weights == "random"

    def facts(self, *names: str) -> dict[str, str]:
        """The named fields that are set, as text. A field that is a dict adds each of its
        entries."""
        content = self.content()
        facts: dict[str, str] = {}
        for name in names:
            value = content.get(name)
            entries = value if isinstance(value, dict) else {name: value}
            facts |= {
                entry: str(entry_value) for entry, entry_value in entries.items() if name in content
            }
        return facts
