"""The values of a row, by kind of measurement. The order of fields is that of written lines."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from evaluate.accuracy.verdicts import VERDICTS
from evaluate.results.row_types import (
    Amount,
    AsWritten,
    Count,
    FullName,
    Name,
    Number,
    NumberPart,
    Part,
    Rate,
    RateOrNone,
    Recovery,
    RoundedDivergence,
    Seconds,
    SelfTime,
    Share,
    Size,
    TokenSeconds,
    Wait,
    WholeNumber,
)

if TYPE_CHECKING:
    from typing import Optional as Maybe

    Verdict = str
else:
    from evaluate.results.row_types import Maybe

    Verdict = Literal[VERDICTS]

Perplexity = Annotated[float, Field(ge=0.999, le=1e300)]
Level = Annotated[float, Field(gt=0, lt=1)]
OfBlock = Annotated[float, Field(ge=-1e6, le=1e6), AsWritten]
"""Nats a token. Values are bounded so that arithmetic on thousands of them cannot overflow."""
OfQuestion = Annotated[float, Field(ge=-1e9, le=1e9), AsWritten]


class SpeedValues(NumberPart):
    """The values of one timed run: of a batch, or of a stream of requests. Names end in units."""

    latency_s: Maybe[Seconds] = None
    request_latency_median_s: Maybe[Seconds] = None
    request_latency_p99_s: Maybe[Seconds] = None
    ttft_first_s: Maybe[Seconds] = None
    ttft_last_s: Maybe[Seconds] = None
    ttft_median_s: Maybe[Seconds] = None
    ttft_p99_s: Maybe[Seconds] = None
    tpot_median_s: Maybe[TokenSeconds] = None
    tpot_p99_s: Maybe[TokenSeconds] = None
    gap_median_s: Maybe[Wait] = None
    gap_p99_s: Maybe[Wait] = None
    input_tokens: Maybe[WholeNumber] = None
    output_tokens: Maybe[WholeNumber] = None
    input_tokens_per_s: Maybe[Rate] = None
    output_tokens_per_s: Maybe[RateOrNone] = None
    decode_tokens_per_s: Maybe[RateOrNone] = None
    generated_tokens_per_s: Maybe[Rate] = None
    overlap_share: Maybe[Share] = None
    overall_tokens_per_s: Maybe[Rate] = None
    requests_per_s: Maybe[Rate] = None
    goodput_requests_per_s: Maybe[RateOrNone] = None
    good_share: Maybe[Share] = None
    failed_requests: Maybe[WholeNumber] = None
    energy_j: Maybe[Amount] = None
    joules_per_output_token: Maybe[Amount] = None
    sm_clock_mhz: Maybe[Annotated[float, Field(gt=0, le=1e5)]] = None
    power_capped_share: Maybe[Share] = None
    cpu_stolen_share: Maybe[Share] = None
    """Of the CPU time that processes asked for, what the hypervisor gave to other machines."""
    cpu_waiting_share: Maybe[Share] = None
    """The share of the time in which at least one process was ready and had no core."""
    cpu_others_share: Maybe[Share] = None
    """Of the time of the cores that the evaluation may use, what other processes took."""
    server_cpu_share: Maybe[Share] = None
    """Of one core, what the API server's thread took that reads requests and writes tokens. Near 1,
    it limits the rate, and not the GPU."""
    client_cpu_share: Maybe[Share] = None
    """The same of the thread that sends requests to a server."""
    prefix_hits: Maybe[WholeNumber] = None
    send_delay_p99_s: Maybe[Wait] = None
    """How late requests were sent: the generator's own delay, which is part of every TTFT."""
    request_latency_mean_s: Maybe[Seconds] = None
    steady_tokens_per_s: Maybe[RateOrNone] = None
    """Output tokens a second while requests arrive, without the beginning and the end of a run."""
    cut_off_requests: Maybe[WholeNumber] = None
    """Requests of a trial that were not sent or not finished, because it was decided."""
    late_first_tokens: Maybe[WholeNumber] = None
    """Requests of a trial that missed the TTFT target, and did not fail."""
    late_further_tokens: Maybe[WholeNumber] = None
    """Requests of a trial that missed the TPOT target, and not the TTFT target."""
    failed_share: Maybe[Share] = None
    """Of a trial's requests that were not cut off, the share that failed."""

    def figure(self, name: str) -> float | None:
        """The value of that name, declared or not; None if it was not measured."""
        value = self.__dict__.get(name)
        return value if value is not None else (self.model_extra or {}).get(name)


class FailureValues(Part):
    """What is known of a failure beside its reason."""

    exit_code: Maybe[Annotated[int, Field(ge=1, le=255)]] = None
    """The exit code of a command that ends with it; rows from before it have none."""


class Position(Part):
    """A token position where the checkpoint's predictions differ from the original's."""

    divergence: Amount
    before: str
    stands_there: str
    original_expects: str
    it_expects: str


class QuickAccuracy(Part):
    """Perplexity of one checkpoint on a text, and its divergence from the original if there is
    one."""

    perplexity: Maybe[Perplexity] = None
    tokens: Maybe[WholeNumber] = None
    original_perplexity: Maybe[Perplexity] = None
    recovery: Recovery | None = None
    recovery_low: Recovery | None = None
    recovery_high: Recovery | None = None
    divergence_mean: Maybe[Amount] = None
    divergence_low: Maybe[Amount] = None
    divergence_high: Maybe[Amount] = None
    divergence_p99: Maybe[Amount] = None
    same_top_share: Maybe[Share] = None
    agreed_tokens_mean: Maybe[Amount] = None
    continued_tokens: Maybe[WholeNumber] = None
    interval: Maybe[Level] = None
    verdict: Maybe[Verdict] = None
    text_sha256: Maybe[Name] = None
    """Of the tokens that were judged."""
    block_losses: list[OfBlock] = Field(default_factory=list)
    """What each block of neighbouring tokens lost, in nats a token. Two checkpoints are compared by
    them, block by block."""
    block_divergences: list[OfBlock] = Field(default_factory=list)
    worst: list[Position] = Field(default_factory=list)
    score: Maybe[Number] = None
    """Only in rows that other tools wrote."""


class LostQuestion(Part):
    """A question that the original answers and the checkpoint does not."""

    question: str
    right: Maybe[str] = None
    original_says: str
    it_says: str


class TaskAccuracy(Part):
    """Score of one checkpoint on a task, and its difference from the original if there is one."""

    metric: Name
    questions: Size
    score: Number
    score_low: Number
    score_high: Maybe[Number] = None
    empty_share: Maybe[Share] = None
    interval: Level
    chance_score: Maybe[Number] = None
    original_score: Maybe[Number] = None
    difference: Maybe[Number] = None
    difference_low: Maybe[Number] = None
    difference_high: Maybe[Number] = None
    lost: Maybe[Count] = None
    gained: Maybe[Count] = None
    p_value: Maybe[Share] = None
    original_empty_share: Maybe[Share] = None
    recovery: Recovery | None = None
    recovery_low: Recovery | None = None
    recovery_high: Recovery | None = None
    verdict: Maybe[Verdict] = None
    lost_questions: list[LostQuestion] = Field(default_factory=list)
    cut_questions: Count
    """Questions that were longer than the context."""
    questions_sha256: Maybe[Name] = None
    """Of the questions that were asked, in their order."""
    scores: list[OfQuestion] = Field(default_factory=list)
    """Of each question. Two checkpoints are compared by them, question by question."""


class Block(Part):
    """The divergence that quantizing this block alone causes."""

    block: FullName
    divergence: RoundedDivergence
    bytes: Annotated[Amount, AsWritten]
    modules: list[Name] = Field(default_factory=list)


class SensitivityValues(Part):
    """The divergence of every block, and the blocks worth ignoring in a recipe."""

    blocks: list[Block]
    median_divergence: Maybe[RoundedDivergence] = None
    worth_ignoring: list[Name]
    ignore: list[Name] = Field(default_factory=list)
    ignored_bytes: Maybe[Annotated[Amount, AsWritten]] = None
    ignored_divergence: Maybe[Annotated[RoundedDivergence, AsWritten]] = None
    total_divergence: Maybe[RoundedDivergence] = None


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
    """Time by operator and by kind of operator."""

    device: Maybe[Name] = None
    operators: list[Operator] = Field(default_factory=list)
    kinds_s: dict[Name, SelfTime]
    window_s: TokenSeconds
    phases: dict[Name, Phase] = Field(default_factory=dict)
    trace: Maybe[Name] = None
    steps: Maybe[Size] = None
