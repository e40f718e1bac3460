"""The type and range of every known field of a row in results.jsonl, checked when a line is read.

Code that reads rows may rely on what is declared here. A field that is not declared may hold any
JSON value (in a speed row's values: any number), so that newer files can be read.
"""

import math
import re
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from evaluate.accuracy.verdicts import VERDICTS

LONGEST_NAME = 10_000  # characters
# Also those that end a line or turn the direction of writing.
CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028-\\u202e\\u2066-\\u2069]")
LONGEST_S = 1e7  # four months
FASTEST = 1e12  # of anything in a second


def _printable(words: str) -> str:
    """A name ends up in tables, charts and terminals."""
    if CONTROL.search(words):
        raise ValueError("should have no control characters")
    return words


def _moment(words: str) -> str:
    if words:
        try:
            datetime.fromisoformat(words)
        except ValueError:
            raise ValueError("should be a time as 2026-01-31T12:00:00+00:00") from None
    return words


def _whole(number: float) -> float:
    if number != math.floor(number):
        raise ValueError("should be a whole number")
    return number


Name = Annotated[str, StringConstraints(max_length=LONGEST_NAME), AfterValidator(_printable)]
FullName = Annotated[Name, StringConstraints(min_length=1)]
Moment = Annotated[Name, AfterValidator(_moment)]
Digits = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,12}$")]
Verdict = Literal[VERDICTS]  # type: ignore[valid-type]

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
Number = Annotated[float, Field(ge=-1e300, le=1e300)]

ABSENT: Any = Field(default=None)
"""A field that may be missing, but is never null."""


class Part(BaseModel):
    """A JSON object in a row. Strict: no number is read from a string, no whole one from 1.5."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class SpeedValues(Part):
    """Of one timed run, as evaluate.measure.metrics reckons them."""

    __pydantic_extra__: dict[Name, Number]

    latency_s: Seconds = ABSENT
    request_latency_median_s: Seconds = ABSENT
    request_latency_p99_s: Seconds = ABSENT
    ttft_first_s: Seconds = ABSENT
    ttft_last_s: Seconds = ABSENT
    ttft_median_s: Seconds = ABSENT
    ttft_p99_s: Seconds = ABSENT
    tpot_median_s: TokenSeconds = ABSENT
    tpot_p99_s: TokenSeconds = ABSENT
    gap_median_s: Wait = ABSENT
    gap_p99_s: Wait = ABSENT
    input_tokens: WholeNumber = ABSENT
    output_tokens: WholeNumber = ABSENT
    failed_requests: WholeNumber = ABSENT
    prefix_hits: WholeNumber = ABSENT
    input_tokens_per_s: Rate = ABSENT
    output_tokens_per_s: RateOrNone = ABSENT
    decode_tokens_per_s: RateOrNone = ABSENT
    generated_tokens_per_s: Rate = ABSENT
    overall_tokens_per_s: Rate = ABSENT
    requests_per_s: Rate = ABSENT
    goodput_requests_per_s: RateOrNone = ABSENT
    good_share: Share = ABSENT
    overlap_share: Share = ABSENT
    power_capped_share: Share = ABSENT
    energy_j: Amount = ABSENT
    joules_per_output_token: Amount = ABSENT
    sm_clock_mhz: Annotated[float, Field(gt=0, le=1e5)] = ABSENT


class Requests(Part):
    """How many had how many tokens, and their times: start, first token, last token, how many."""

    input_tokens: dict[Digits, Size] = ABSENT
    output_tokens: dict[Digits, Size] = ABSENT
    times_s: list[Annotated[list[Wait], Field(min_length=4, max_length=4)]] = ABSENT


class SpeedSettings(Part):
    """The scenario."""

    input_tokens: Size = ABSENT
    output_tokens: Size = ABSENT
    batch: Size = ABSENT
    concurrency: Size = ABSENT
    rate: Rate = ABSENT
    requests: Size = ABSENT
    ttft_ms: Rate = ABSENT
    tpot_ms: Rate = ABSENT


class Memory(Part):
    """Sizes in GiB, and what the KV cache holds."""

    __pydantic_extra__: dict[Name, Number]

    weights_gib: Amount = ABSENT
    weights_read_gib: Amount = ABSENT
    graphs_gib: Amount = ABSENT
    peak_gib: Amount = ABSENT
    kv_cache_tokens: Amount = ABSENT
    kv_cache_requests: Amount = ABSENT
    kv_token_bytes: Amount = ABSENT


class Limit(Part):
    """The least seconds that the hardware allows, and the share of that which was reached."""

    prefill_s: Wait = ABSENT
    decode_s: Wait = ABSENT
    prefill_share: LimitShare = ABSENT
    decode_share: LimitShare = ABSENT
    prefill_bound: Name = ABSENT
    decode_bound: Name = ABSENT
    bandwidth_gb_s: Rate = ABSENT
    product: Name = ABSENT
    product_tops: RateOrNone = ABSENT
    rates: Name = ABSENT
    body_gb: Amount = ABSENT
    head_gb: Amount = ABSENT


class EngineOptions(Part):
    """Options of an engine; those that multiply the GPUs it takes are numbers."""

    tensor_parallel_size: Gpus = ABSENT
    pipeline_parallel_size: Gpus = ABSENT
    data_parallel_size: Gpus = ABSENT


class Environment(Part):
    """Where a run took place, and on which weights."""

    device: Name = ABSENT
    card: Name = ABSENT
    client: Name = ABSENT
    driver: Name = ABSENT
    power_limit_w: Rate | None = None
    max_sm_clock_mhz: Rate | None = None
    gpu_memory_gib: Amount | None = None
    cpu: Name = ABSENT
    cores: Size | None = None
    python: Name = ABSENT
    engine: Name = ABSENT
    versions: dict[Name, Name] = ABSENT
    engine_options: EngineOptions = ABSENT
    variables: dict[Name, str] = ABSENT
    commit: Name = ABSENT
    command: str = ABSENT
    checkpoint_sha256: Name = ABSENT
    quantization_sha256: Name = ABSENT
    weights: Literal["random", "trained"] = ABSENT
    pruned: bool | None = None
    made_up: Repeat = ABSENT


class Position(Part):
    """Where a checkpoint is far from the original."""

    divergence: Amount
    before: str
    stands_there: str
    original_expects: str
    it_expects: str


class LostQuestion(Part):
    """A question that the original answers and the checkpoint does not."""

    question: str
    original_says: str
    it_says: str


class AccuracyValues(Part):
    """Of one judgement, on a text or on the questions of a task."""

    perplexity: Annotated[float, Field(ge=0.999, le=1e300)] = ABSENT
    original_perplexity: Annotated[float, Field(ge=0.999, le=1e300)] = ABSENT
    tokens: WholeNumber = ABSENT
    recovery: Recovery | None = None
    recovery_low: Recovery | None = None
    recovery_high: Recovery | None = None
    divergence_mean: Amount = ABSENT
    divergence_low: Amount = ABSENT
    divergence_high: Amount = ABSENT
    divergence_p99: Amount = ABSENT
    same_top_share: Share = ABSENT
    agreed_tokens_mean: Amount = ABSENT
    continued_tokens: WholeNumber = ABSENT
    interval: Annotated[float, Field(gt=0, lt=1)] = ABSENT
    verdict: Verdict = ABSENT
    worst: list[Position] = ABSENT
    metric: Name = ABSENT
    questions: Size = ABSENT
    score: Number = ABSENT
    score_low: Number = ABSENT
    score_high: Number = ABSENT
    original_score: Number = ABSENT
    chance_score: Number = ABSENT
    empty_share: Share = ABSENT
    original_empty_share: Share = ABSENT
    difference: Number = ABSENT
    difference_low: Number = ABSENT
    difference_high: Number = ABSENT
    lost: Count = ABSENT
    gained: Count = ABSENT
    p_value: Share = ABSENT
    cut_questions: Count = ABSENT
    lost_questions: list[LostQuestion] = ABSENT


class Block(Part):
    """What rounding one block of a model alone does."""

    block: FullName
    divergence: RoundedDivergence
    bytes: Amount
    modules: list[Name] = ABSENT


class SensitivityValues(Part):
    """Every block, and those that are worth leaving alone."""

    blocks: list[Block]
    worth_ignoring: list[Name]
    ignore: list[Name] = ABSENT
    median_divergence: RoundedDivergence = ABSENT
    ignored_bytes: Amount = ABSENT
    ignored_divergence: RoundedDivergence = ABSENT
    total_divergence: RoundedDivergence = ABSENT


class Operator(Part):
    """One line of a profile."""

    name: str
    self_cpu_s: SelfTime
    self_cuda_s: SelfTime
    calls: Count


class Phase(Part):
    """The prefill or the decode steps of a profile."""

    steps: Size
    window_s: TokenSeconds
    kinds_s: dict[Name, SelfTime]


class ProfileValues(Part):
    """Where the time goes."""

    window_s: TokenSeconds
    kinds_s: dict[Name, SelfTime]
    steps: Size = ABSENT
    device: Name = ABSENT
    trace: Name = ABSENT
    phases: dict[Name, Phase] = ABSENT
    operators: list[Operator] = ABSENT


class AnyRow(Part):
    """What every row has; the names of its fields are those of evaluate.results.rows.Row."""

    model: FullName
    checkpoint: FullName
    measure: Name
    repeat: Repeat
    key: Name
    values: Part = ABSENT
    requests: Requests = ABSENT
    settings: Part = ABSENT
    startup: dict[Name, Wait] = ABSENT
    memory: Memory = ABSENT
    kernels: dict[Name, Name] = ABSENT
    limit: Limit = ABSENT
    invalid: list[str] = ABSENT
    reason: str = ABSENT
    environment: Environment = ABSENT
    start: Repeat = ABSENT
    generation: Repeat = ABSENT
    time: Moment = ABSENT


class SpeedRow(AnyRow):
    measure: FullName
    values: SpeedValues = ABSENT
    settings: SpeedSettings = ABSENT


class AccuracyRow(AnyRow):
    measure: FullName
    values: AccuracyValues = ABSENT


class SensitivityRow(AnyRow):
    values: SensitivityValues


class ProfileRow(AnyRow):
    values: ProfileValues


TYPES: dict[str, type[AnyRow]] = {
    "speed": SpeedRow,
    "accuracy": AccuracyRow,
    "sensitivity": SensitivityRow,
    "profile": ProfileRow,
    "skipped": AnyRow,
    "failed": AnyRow,
}
