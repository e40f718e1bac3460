"""The parts of a row in results.jsonl: what each field holds, its type and its range.

Rows are read into these types, and written from them. Code that reads a row relies on what is
declared here. A field that is not declared may hold any JSON value (a number, where the part says
so) and is written again as it was read, so that newer files can be read.
"""

import math
import re
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

if TYPE_CHECKING:
    from typing import Optional as Maybe
else:

    class Maybe:
        """A field that may be missing from a line, but is never null there. Type checkers see
        `T | None`; pydantic sees T alone, which refuses null."""

        def __class_getitem__(cls, kind: Any) -> Any:
            return kind


LONGEST_NAME = 10_000  # characters
# Also those that end a line or turn the direction of writing.
CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069]")
LONGEST_S = 1e7  # four months
FASTEST = 1e12  # of anything in a second


def _printable(text: str) -> str:
    """A name ends up in tables, charts and terminals."""
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
    """A whole number stays one: lines are written, and shown, with the digits that they had."""
    checked = check(value)
    return value if isinstance(value, int) else checked


Name = Annotated[str, StringConstraints(max_length=LONGEST_NAME), AfterValidator(_printable)]
FullName = Annotated[Name, StringConstraints(min_length=1)]
Moment = Annotated[Name, AfterValidator(_moment)]
Digits = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,12}$")]

Seconds = Annotated[float, Field(ge=1e-6, le=LONGEST_S)]
"""What an engine needs for anything is at least a microsecond."""
TokenSeconds = Annotated[float, Field(ge=1e-9, le=LONGEST_S)]
"""A mean over the tokens of an answer."""
Wait = Annotated[float, Field(ge=0, le=LONGEST_S)]
"""Tokens may arrive together; a phase of a start may take no time that is seen."""
SelfTime = Annotated[float, Field(ge=-1, le=LONGEST_S)]
"""Profilers round: what is left of an operator without those inside it may fall below 0."""
Rate = Annotated[float, Field(gt=0, le=FASTEST)]
RateOrNone = Annotated[float, Field(ge=0, le=FASTEST)]
Amount = Annotated[float, Field(ge=0, le=1e15)]
RoundedDivergence = Annotated[float, Field(ge=-1e-3, le=1e15)]
"""Of two models that are the same it may fall below 0 by rounding."""
Share = Annotated[float, Field(ge=0, le=1)]
LimitShare = Annotated[float, Field(ge=0, le=1000)]
"""Above 1 where the limit was measured in memory and the weights fit into the CPU's cache."""
Recovery = Annotated[float, Field(ge=0, le=1e6)]
"""Above 1 by chance, and far above where the original answers next to nothing."""
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
"""When requests were sent, had their first and their last token, and how many had these times."""


class Part(BaseModel):
    """A JSON object in a row. Strict: no number is read from a string, no whole one from 1.5."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)

    @property
    def names(self) -> set[str]:
        """The fields that it holds, those that are not declared among them."""
        return self.model_fields_set

    def content(self) -> dict[str, Any]:
        """As it stands in a line."""
        return self.model_dump(exclude_unset=True)

    def with_fields(self, **fields: Any) -> Self:
        """The same, with some fields changed or added."""
        return self.model_copy(update=fields)


class Requests(Part):
    """How many requests had how many tokens, and when they were sent and answered."""

    input_tokens: dict[Digits, Size] = Field(default_factory=dict)
    output_tokens: dict[Digits, Size] = Field(default_factory=dict)
    times_s: list[RequestTimes] = Field(default_factory=list)


class WorkloadSettings(Part):
    """The scenario of a speed row: a batch, or requests that keep coming."""

    input_tokens: Maybe[Size] = None
    output_tokens: Maybe[Size] = None
    batch: Maybe[Size] = None
    concurrency: Maybe[Size] = None
    rate: Maybe[Annotated[Rate, AsWritten]] = None
    requests: Maybe[Size] = None
    ttft_ms: Maybe[Annotated[Rate, AsWritten]] = None
    tpot_ms: Maybe[Annotated[Rate, AsWritten]] = None

    @property
    def request_count(self) -> int | None:
        """Requests in one run."""
        return self.requests if self.batch is None else self.batch


class Startup(Part):
    """Seconds until the engine was ready, by phase."""

    __pydantic_extra__: dict[Name, Wait] = Field(init=False)

    load_s: Maybe[Wait] = None
    weights_s: Maybe[Wait] = None
    compile_s: Maybe[Wait] = None
    capture_s: Maybe[Wait] = None
    prepare_s: Maybe[Wait] = None
    import_s: Maybe[Wait] = None
    start_s: Maybe[Wait] = None


class Memory(Part):
    """Sizes in GiB, and what the KV cache holds."""

    __pydantic_extra__: dict[Name, Number] = Field(init=False)

    weights_gib: Maybe[Amount] = None
    kv_cache_tokens: Maybe[Amount] = None
    graphs_gib: Maybe[Amount] = None
    peak_gib: Maybe[Amount] = None
    weights_read_gib: Maybe[Amount] = None
    """What a decode step reads of the weights."""
    kv_token_bytes: Maybe[Amount] = None
    kv_cache_requests: Maybe[Amount] = None
    """Requests of the workload's length that the KV cache holds."""


class Limit(Part):
    """The least seconds that the hardware allows, and the share of that which was reached."""

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
    """The engine options that multiply the GPUs it takes."""

    tensor_parallel_size: Maybe[Gpus] = None
    pipeline_parallel_size: Maybe[Gpus] = None
    data_parallel_size: Maybe[Gpus] = None


def _with_parallel_sizes(options: Any) -> Any:
    if isinstance(options, dict):
        ParallelSizes.model_validate(options)
    return options


EngineOptions = Annotated[dict[str, Any], BeforeValidator(_with_parallel_sizes)]
"""As the engine takes them, in the order in which they were given."""


class Environment(Part):
    """Where a run took place, and on which weights."""

    device: Maybe[Name] = None
    client: Maybe[Name] = None
    """The CPU that sent the requests, where the server runs elsewhere."""
    card: Maybe[Name] = None
    """The GPU itself: two of the same name differ."""
    driver: Maybe[Name] = None
    power_limit_w: Annotated[Rate, AsWritten] | None = None
    max_sm_clock_mhz: Annotated[Rate, AsWritten] | None = None
    gpu_memory_gib: Annotated[Amount, AsWritten] | None = None
    cpu: Maybe[Name] = None
    cores: Size | None = None
    python: Maybe[Name] = None
    versions: dict[Name, Name] = Field(default_factory=dict)
    engine: Maybe[Name] = None
    engine_options: EngineOptions = Field(default_factory=dict)
    variables: dict[Name, str] = Field(default_factory=dict)
    commit: Maybe[Name] = None
    command: Maybe[str] = None
    checkpoint_sha256: Maybe[Name] = None
    quantization_sha256: Maybe[Name] = None
    weights: Maybe[Literal["random", "trained"]] = None
    pruned: bool | None = None
    made_up: Maybe[Repeat] = None
    """The format of made-up weights, raised whenever the way of making them changes."""

    @property
    def has_random_weights(self) -> bool:
        return self.weights == "random"

    def facts(self, *names: str) -> dict[str, str]:
        """The named fields that are known, in words; of options, versions and variables, each."""
        known = self.content()
        found: dict[str, str] = {}
        for name in names:
            value = known.get(name)
            entries = value if isinstance(value, dict) else {name: value}
            found |= {entry: str(part) for entry, part in entries.items() if name in known}
        return found
