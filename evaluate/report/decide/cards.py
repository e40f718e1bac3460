"""What each candidate brings for each GPU that it takes, and what its tokens cost.

Two GPUs are usually faster than one, and rarely twice as fast. Two engines on one GPU each may then
serve more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from conf.schema.load import GpuConfig, gpus_of
from evaluate.report.decide.comparison import Entry, Workload
from evaluate.report.decide.recommend import Choice
from evaluate.report.decide.rules.prices import MILLION, SECONDS_PER_HOUR

THROUGHPUTS = ("output_tokens_per_s", "overall_tokens_per_s")
LEAST_GAIN = 1.05  # over the choice, for each GPU, before it is worth a sentence


@dataclass(frozen=True)
class PerCard:
    """The throughput of a candidate for each of its GPUs."""

    candidate: str
    gpus: int
    tokens_per_s: float
    """Of all its GPUs together."""
    per_million: float | None
    """Price of a million output tokens; None without a price."""
    currency: str

    @property
    def per_gpu(self) -> float:
        return self.tokens_per_s / self.gpus

    def text(self) -> str:
        cards = "1 GPU" if self.gpus == 1 else f"{self.gpus} GPUs"
        price = (
            ""
            if self.per_million is None
            else f", {self.per_million:.3g} {self.currency} per million tokens"
        )
        return f"{self.per_gpu:,.0f} tokens/s for each GPU on {cards}{price}"


def per_card(workload: Workload, gpu: GpuConfig) -> list[PerCard]:
    """The ranked candidates of a workload, the most tokens for each GPU first."""
    found = [_of(entry, gpu) for entry in workload.entries if entry.rank is not None]
    return sorted((each for each in found if each is not None), key=lambda each: -each.per_gpu)


def with_cards(choice: Choice, workload: Workload, gpu: GpuConfig) -> Choice:
    """The choice, with a sentence where candidates take different numbers of GPUs and another one
    that meets the targets brings more for each GPU."""
    cards = per_card(workload, gpu)
    chosen = next((each for each in cards if each.candidate == choice.candidate), None)
    if chosen is None or len({each.gpus for each in cards}) == 1:
        return choice
    refused = {refusal.candidate for refusal in choice.refused}
    better = _better(chosen, [each for each in cards if each.candidate not in refused])
    if better is None:
        sentence = f"no other one brings more for each GPU: it has {chosen.text()}"
        return replace(choice, why=f"{choice.why}; {sentence}")
    gain = better.per_gpu / chosen.per_gpu
    sentence = (
        f"{better.candidate} brings {gain:.2f} times as much for each GPU: {better.text()}, "
        f"against {chosen.text()}"
    )
    return replace(choice, changes=[*choice.changes, sentence])


def _better(chosen: PerCard, cards: Sequence[PerCard]) -> PerCard | None:
    best = cards[0] if cards else chosen
    return best if best.per_gpu > LEAST_GAIN * chosen.per_gpu else None


def _of(entry: Entry, gpu: GpuConfig) -> PerCard | None:
    medians = (entry.median(name) for name in THROUGHPUTS)
    tokens = next((median for median in medians if median), None)
    if tokens is None:
        return None
    gpus = gpus_of(entry.row.environment.engine_options)
    price = gpu.price_per_hour
    per_million = price * gpus / SECONDS_PER_HOUR / tokens * MILLION if price else None
    return PerCard(entry.candidate, gpus, tokens, per_million, gpu.currency)
