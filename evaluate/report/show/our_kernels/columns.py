"""The section's tables, and the sentences above them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evaluate.report.show.our_kernels.records import GainRecord, LayerRecord
from evaluate.report.show.record_sets import RecordSets
from evaluate.report.show.records import Record
from evaluate.report.show.tables import CHECKPOINT, NONE, SCENARIO, Column, speedup

LEAST_MIB = 0.05  # less is no layout, but counters beside one

OVER_VLLMS_OWN = (
    "Our kernels compared with vLLM's own: the same checkpoint, options and machine. Each interval "
    "holds together with the others of its scenario in this table. There are fewer of them than "
    "between all candidates, so they are narrower."
)
NO_VLLMS_OWN = (
    "No checkpoint was measured on vLLM's own kernels on the same machine. Measure it with "
    "engine.kernels=vllm into the same results to see what ours gain."
)
BY_TOKENS = (
    "What layers of each kind and shape ran, by the number of tokens in a step. The products were "
    "chosen by measurements on this GPU (python -m serve.kernels shows them)."
)
GAIN: tuple[Column[GainRecord], ...] = (
    SCENARIO,
    CHECKPOINT,
    Column(
        "times as fast",
        "speedup",
        lambda r: speedup(r.speedup),
        "speed-up over vLLM's own kernels, 95 % interval; = : no significant difference",
        is_phrase=True,
    ),
    Column(
        "TTFT, times as fast",
        "ttft",
        lambda r: speedup(r.ttft),
        "the same, of the time to the last request's first token",
        is_phrase=True,
    ),
    Column(
        "TPOT, times as fast",
        "tpot",
        lambda r: speedup(r.tpot),
        "the same, of the time for each token after the first",
        is_phrase=True,
    ),
    Column(
        "more memory (GiB)",
        "more_gib",
        lambda r: NONE if r.more_gib is None else f"{r.more_gib:+.2f}",
        "weights in memory, more than with vLLM's own kernels",
    ),
    Column("kernel", "kernel", lambda r: r.kernel or NONE, is_text=True),
    Column("vLLM's own", "vllms", lambda r: r.vllms or NONE, is_text=True),
)
LAYER: tuple[Column[LayerRecord], ...] = (
    CHECKPOINT,
    Column(
        "layers",
        "layers",
        lambda r: r.layers,
        "stored format, rows (outputs) x columns (inputs) on one GPU",
        is_text=True,
    ),
    Column(
        "product by the number of tokens",
        "products",
        lambda r: r.products,
        "tokens of one step: those of the prompts and one for each request that decodes",
        is_text=True,
    ),
    Column(
        "more memory (MiB)",
        "extra_mib",
        lambda r: f"{r.extra_mib:.1f}" if r.extra_mib >= LEAST_MIB else NONE,
        "of further layouts of the weights, for each of these layers",
    ),
    Column("not used, and why", "refused", lambda r: r.refused or NONE, is_text=True),
)


@dataclass(frozen=True)
class KernelTable:
    """A table of the page."""

    name: str
    title: str
    note: str
    columns: tuple[Column[Any], ...]
    records: Sequence[Record]


def kernel_tables(sets: RecordSets) -> list[KernelTable]:
    by_tokens = BY_TOKENS if sets.gains else f"{BY_TOKENS} {NO_VLLMS_OWN}"
    return [
        KernelTable("gains", "Our kernels against vLLM's own", OVER_VLLMS_OWN, GAIN, sets.gains),
        KernelTable("layers", "Our kernels, layer by layer", by_tokens, LAYER, sets.layers),
    ]
