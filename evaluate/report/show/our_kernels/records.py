"""The records of the section: gains, layers, and the bands of the hand-over map."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from evaluate.report.decide.comparison import ComparisonGroup
from evaluate.report.decide.our_kernels import LayerChoice, kernel_gains, layer_choices
from evaluate.report.show.records import FlatRecord, GroupRecord, Speedup
from evaluate.results.cells import kernel_names
from evaluate.results.row_types import LayerKernels

VLLMS_OWN = "vLLM's own"
FEWEST_DRAWN = 8192  # tokens; the map ends here, or at four times the last hand-over
BEYOND_LAST = 4


@dataclass(kw_only=True)
class GainRecord(GroupRecord):
    """A candidate on our kernels under one workload, compared with vLLM's own."""

    scenario: str
    candidate: str
    speedup: Speedup
    """Over vLLM's own kernels."""
    ttft: Speedup
    tpot: Speedup
    more_gib: float | None
    """Weights in memory, more than with vLLM's own."""
    kernel: str
    vllms: str

    def content(self) -> FlatRecord:
        return super().content() | {
            **self.speedup.content(),
            "ttft": self.ttft.ratio,
            "tpot": self.tpot.ratio,
        }


def gain_records(group: ComparisonGroup) -> list[GainRecord]:
    return [
        GainRecord(
            group=group.title,
            scenario=gain.ours.workload.name,
            candidate=gain.ours.candidate,
            speedup=Speedup.of(gain.speedup),
            ttft=Speedup.of(gain.ttft),
            tpot=Speedup.of(gain.tpot),
            more_gib=_difference(
                gain.ours.row.memory.weights_gib, gain.vllms.row.memory.weights_gib
            ),
            kernel=kernel_names(gain.ours.row),
            vllms=kernel_names(gain.vllms.row),
        )
        for gain in kernel_gains(group)
    ]


def _difference(ours: float | None, vllms: float | None) -> float | None:
    return None if ours is None or vllms is None else ours - vllms


@dataclass(kw_only=True)
class LayerRecord(GroupRecord):
    """What the layers of one kind and shape ran, for one candidate."""

    candidate: str
    layers: str
    products: str
    extra_mib: float
    """For each of these layers."""
    refused: str


def layer_records(group: ComparisonGroup) -> list[LayerRecord]:
    return [
        LayerRecord(
            group=group.title,
            candidate=choice.candidate,
            layers=layers,
            products=products_text(choice.kernels),
            extra_mib=choice.kernels.extra_bytes / 2**20,
            refused=_refused_text(choice.kernels),
        )
        for choice, layers in _named(layer_choices(group))
    ]


def _named(choices: list[LayerChoice]) -> Iterator[tuple[LayerChoice, str]]:
    """Each choice with the name of its layers. Another plan for the same layers, as of a second
    start, has a number."""
    numbers: dict[tuple[str, str], int] = defaultdict(int)
    for choice in choices:
        kernels = choice.kernels
        shape = f" {kernels.rows}x{kernels.columns}" if kernels.rows else ""
        name = kernels.kind + shape + (f", {kernels.layer}" if kernels.layer else "")
        numbers[choice.candidate, name] += 1
        number = numbers[choice.candidate, name]
        yield choice, name if number == 1 else f"{name} #{number}"


def products_text(kernels: LayerKernels) -> str:
    """Such as: marlin to 16, machete to 4,096, unpack beyond."""
    if not kernels.ranges:
        return VLLMS_OWN
    if len(kernels.ranges) == 1:
        return kernels.ranges[0].product
    return ", ".join(
        f"{part.product} beyond" if part.up_to is None else f"{part.product} to {part.up_to:,}"
        for part in kernels.ranges
    )


def _refused_text(kernels: LayerKernels) -> str:
    """The refused products by reason."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for product, reason in kernels.refused.items():
        by_reason[" ".join(reason.split())].append(product)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())


@dataclass(kw_only=True)
class BandRecord(GroupRecord):
    """One product of some layers over its range of tokens, as the map draws it. Before the first
    band of a candidate, one without layers holds the place of its name."""

    candidate: str
    layers: str
    row: str
    """Both names, on two lines: no name has a line break."""
    product: str
    short: str
    """The product without the format of its layers, which is part of their name."""
    first: int
    end: int
    """The first number of tokens that it does not run; for the last product, the map's end."""
    tokens: str


def band_records(group: ComparisonGroup) -> list[BandRecord]:
    choices = layer_choices(group)
    last = max(
        (part.up_to for choice in choices for part in choice.kernels.ranges if part.up_to),
        default=1,
    )
    most = max(FEWEST_DRAWN, 2 ** (last * BEYOND_LAST - 1).bit_length())
    records: dict[str, list[BandRecord]] = {}
    for choice, layers in _named(choices):
        drawn = records.setdefault(choice.candidate, [_heading(group, choice.candidate)])
        drawn += [
            BandRecord(
                group=group.title,
                candidate=choice.candidate,
                layers=layers,
                row=f"{choice.candidate}\n{layers}",
                product=band.product,
                short=_short(band.product, choice.kernels.kind),
                first=band.first,
                end=most if band.last is None else band.last + 1,
                tokens=band.text,
            )
            for band in _bands(choice.kernels)
        ]
    return [record for drawn in records.values() for record in drawn]


def widest_products(bands: Sequence[BandRecord]) -> list[str]:
    """The short names of all products; first those that take the most room on the map."""
    widths: dict[str, float] = defaultdict(float)
    for band in bands:
        if band.layers:
            widths[band.short] += math.log(band.end / band.first)
    return sorted(widths, key=lambda product: -widths[product])


def _heading(group: ComparisonGroup, candidate: str) -> BandRecord:
    return BandRecord(
        group=group.title,
        candidate=candidate,
        layers="",
        row=f"{candidate}\n",
        product="",
        short="",
        first=1,
        end=1,
        tokens="",
    )


@dataclass(frozen=True)
class _Band:
    product: str
    first: int
    last: int | None

    @property
    def text(self) -> str:
        if self.last is None:
            return f"{self.first:,} and more"
        return f"{self.first:,}" + (f" to {self.last:,}" if self.last > self.first else "")


def _bands(kernels: LayerKernels) -> Iterator[_Band]:
    if not kernels.ranges:
        yield _Band(VLLMS_OWN, 1, None)
    first = 1
    for part in kernels.ranges:
        yield _Band(part.product, first, part.up_to)
        first = (part.up_to or 0) + 1


def _short(product: str, kind: str) -> str:
    stored_format = kind.split()[0] if kind.split() else kind
    return product.replace(f"_{stored_format}", "")
