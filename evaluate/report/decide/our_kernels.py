"""Compares our kernels with vLLM's own, and says which product ran for which number of tokens."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from conf.schema.kernels import KERNELS_OPTION
from conf.schema.load import SIDE_BY_SIDE
from conf.terminal import listed
from evaluate.report.decide.comparison import ComparisonGroup, Entry, Workload
from evaluate.report.decide.kernels import OURS
from evaluate.results.restart_noise import Noise, cell_ratio, noise_of, ran_on_two_machines
from evaluate.results.row_types import LayerKernels
from evaluate.results.significance import Ratio

TTFT, TPOT = "ttft_last_s", "tpot_median_s"
NOT_COMPARED = (*OURS, *SIDE_BY_SIDE)
"""Options in which the two sides may differ: what chooses our kernels, and the size of the KV
cache, which follows from the memory that is left."""


@dataclass(frozen=True)
class KernelGain:
    """A checkpoint under one workload: on our kernels, compared with vLLM's own."""

    ours: Entry
    vllms: Entry
    speedup: Ratio
    """By the time that ranks the workload."""
    ttft: Ratio | None
    tpot: Ratio | None

    @property
    def is_significant(self) -> bool:
        ranked = self.ours.rank is not None and self.vllms.rank is not None
        return ranked and self.speedup.differs


@dataclass(frozen=True)
class LayerChoice:
    """What the layers of one kind and shape ran, for one candidate."""

    candidate: str
    kernels: LayerKernels


def kernel_gains(group: ComparisonGroup) -> list[KernelGain]:
    """All pairs on one machine. Their intervals hold together within a workload, as all intervals
    do; but there are fewer pairs than between all candidates, so these are narrower."""
    pairs = [pair for pair in _pairs(group) if not ran_on_two_machines(pair[0].cell, pair[1].cell)]
    count = Counter(ours.workload.name for ours, _ in pairs)
    noises = {value: replace(_noise(group, value), pairs=count) for value in ("", TTFT, TPOT)}
    gains = []
    for ours, vllms in pairs:
        ratios = {
            value: cell_ratio(ours.cell, vllms.cell, noise, ours.workload.name, value)
            for value, noise in noises.items()
        }
        if (speedup := ratios[""]) is not None:
            gains.append(KernelGain(ours, vllms, speedup, ratios[TTFT], ratios[TPOT]))
    return gains


def on_two_machines(group: ComparisonGroup) -> list[str]:
    """Candidates that ran both ways, but on two machines in all or some workloads."""
    apart = [
        ours.candidate
        for ours, vllms in _pairs(group)
        if ran_on_two_machines(ours.cell, vllms.cell)
    ]
    return list(dict.fromkeys(apart))


def runs_ours(entry: Entry) -> bool:
    """Whether our kernels were offered."""
    return KERNELS_OPTION in entry.options


def _noise(group: ComparisonGroup, value: str) -> Noise:
    if not value:
        return group.noise
    cells = {w.name: [entry.cell for entry in w.entries] for w in group.workloads}
    return noise_of([cells], value)


def _pairs(group: ComparisonGroup) -> Iterator[tuple[Entry, Entry]]:
    """Each entry on our kernels that has a layer of theirs, with the same on vLLM's own."""
    order = {candidate: place for place, candidate in enumerate(group.candidates)}
    for workload in group.workloads:
        for ours in sorted(workload.entries, key=lambda entry: order[entry.candidate]):
            if any(not kernels.is_left for kernels in ours.row.layer_kernels) and runs_ours(ours):
                vllms = _vllms(ours, workload)
                if vllms is not None:
                    yield ours, vllms


def _vllms(ours: Entry, workload: Workload) -> Entry | None:
    """The same checkpoint and options on vLLM's own kernels; on the same machine, if possible."""
    same = [
        entry
        for entry in workload.entries
        if not runs_ours(entry) and _setup(entry) == _setup(ours) and entry.cell.valid
    ]
    return min(same, key=lambda entry: ran_on_two_machines(ours.cell, entry.cell), default=None)


def _setup(entry: Entry) -> tuple[object, ...]:
    options = {name: v for name, v in entry.options.items() if name not in NOT_COMPARED}
    environment = entry.row.environment
    weights = (environment.checkpoint_sha256, environment.quantization_sha256)
    return entry.checkpoint, *weights, sorted(options.items())


def gain_findings(group: ComparisonGroup) -> list[str]:
    """Sentences on significant losses and gains of our kernels: losses first."""
    by_way: dict[bool, dict[str, list[KernelGain]]] = {False: {}, True: {}}
    for gain in kernel_gains(group):
        if gain.is_significant:
            candidates = by_way[gain.speedup.ratio > 1]
            candidates.setdefault(gain.ours.candidate, []).append(gain)
    return [
        _sentence(candidate, gains, "faster" if is_faster else "slower")
        for is_faster, candidates in by_way.items()
        for candidate, gains in candidates.items()
    ]


def _sentence(candidate: str, gains: list[KernelGain], way: str) -> str:
    """With the largest differences first."""
    far_first = sorted(gains, key=lambda gain: -abs(gain.speedup.ratio - 1))
    figures = [
        f"{gain.speedup.ratio:.2f} times as fast in {gain.ours.workload.name} "
        f"({gain.speedup.low:.2f} to {gain.speedup.high:.2f})"
        for gain in far_first
    ]
    return f"{candidate} runs {way} on our kernels than on vLLM's own: {listed(figures)}"


def layer_choices(group: ComparisonGroup) -> list[LayerChoice]:
    """What the layers of each candidate ran, where our kernels were offered; each once."""
    found: dict[str, dict[str, LayerKernels]] = defaultdict(dict)
    for workload in group.workloads:
        for entry in workload.entries:
            for row in entry.cell.valid:
                for kernels in row.layer_kernels:
                    found[entry.candidate].setdefault(str(kernels.content()), kernels)
    return [
        LayerChoice(candidate, kernels)
        for candidate in group.candidates
        for kernels in found.get(candidate, {}).values()
    ]
