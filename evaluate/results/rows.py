"""The rows of results.jsonl, one class for each kind."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, Field, PrivateAttr

from conf.files.json_files import JsonObject
from evaluate.results.capacity_search import Trial
from evaluate.results.kernel_values import KernelSettings, KernelValues
from evaluate.results.row_types import (
    Environment,
    FullName,
    LayerKernels,
    Limit,
    Memory,
    Moment,
    Name,
    Part,
    Repeat,
    Requests,
    Startup,
    TrialSettings,
    WorkloadSettings,
)
from evaluate.results.row_values import (
    FailureValues,
    ProfileValues,
    QuickAccuracy,
    SensitivityValues,
    SpeedValues,
    TaskAccuracy,
)

SCHEMA = 2
TASK_PREFIXES = ("lm_eval:", "questions:")
"""Prefixes of a task row's measure, by the kind of accuracy; the task's name follows."""
DIGITS = 7
SHARE_ROUNDING = 1e-6  # rows keep seven digits


class Row(Part):
    """One timed run, accuracy result or profile, or the reason why there is none."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    kind: str
    model: FullName
    """Name of the original."""
    checkpoint: FullName
    """`original`, or the checkpoint's recipe or folder name."""
    measure: Name
    """The scenario's name, or the kind of accuracy."""
    repeat: Repeat
    """The number of the run within its start, from 0."""
    key: Name
    """Equal for runs that may be combined: same checkpoint, workload, engine, device, versions."""
    values: Part = Field(default_factory=Part)
    requests: Requests = Field(default_factory=Requests)
    settings: Part = Field(default_factory=Part)
    """The scenario, or the accuracy options."""
    startup: Startup = Field(default_factory=Startup)
    memory: Memory = Field(default_factory=Memory)
    kernels: dict[Name, Name] = Field(default_factory=dict)
    """The kernel that the engine chose for each scheme."""
    layer_kernels: list[LayerKernels] = Field(default_factory=list)
    """What each kind of layer ran, where our kernels were offered; else empty, and not written."""
    limit: Limit = Field(default_factory=Limit)
    invalid: list[str] = Field(default_factory=list)
    """Why the run must not be ranked; empty for a valid run."""
    reason: str = ""
    """Why it was skipped or failed."""
    environment: Environment = Field(default_factory=Environment)
    start: Repeat = 0
    """The number of the engine start, from 0, where each setup was started several times."""
    generation: Repeat = 0
    """Raised by force=true; only the highest of a key counts."""
    time: Moment = ""
    """When it was written, in UTC."""
    schema_version: int = Field(default=SCHEMA, alias="schema")

    _session: int = PrivateAttr(default=1)

    @property
    def session(self) -> int:
        """The number of the evaluation that measured this key, from 1; set by merging files."""
        return self._session

    @session.setter
    def session(self, number: int) -> None:
        self._session = number


RowType = TypeVar("RowType", bound=Row)


class SpeedRow(Row):
    """A timed run."""

    kind: Literal["speed"] = "speed"
    measure: FullName
    values: SpeedValues = Field(default_factory=SpeedValues)
    settings: WorkloadSettings = Field(default_factory=WorkloadSettings)


class TrialRow(Row):
    """One rate that a capacity search tried. All trials of a search have the same key."""

    kind: Literal["trial"] = "trial"
    measure: FullName
    values: SpeedValues = Field(default_factory=SpeedValues)
    settings: TrialSettings

    @property
    def trial(self) -> Trial:
        share, settings = self.values.good_share or 0.0, self.settings
        meets = share >= settings.capacity.share - SHARE_ROUNDING
        return Trial(settings.rate, meets, of_curve=settings.curve or False)


class AccuracyRow(Row):
    """The accuracy of one checkpoint."""

    kind: Literal["accuracy"] = "accuracy"
    measure: FullName
    values: QuickAccuracy | TaskAccuracy


class QuickAccuracyRow(AccuracyRow):
    values: QuickAccuracy = Field(default_factory=QuickAccuracy)


class TaskAccuracyRow(AccuracyRow):
    values: TaskAccuracy

    @property
    def task(self) -> str:
        return self.measure.partition(":")[2]


class SensitivityRow(Row):
    kind: Literal["sensitivity"] = "sensitivity"
    values: SensitivityValues


class ProfileRow(Row):
    kind: Literal["profile"] = "profile"
    values: ProfileValues


class KernelRow(Row):
    """One kernel, timed alone. Its checkpoint is the product's name."""

    kind: Literal["kernel"] = "kernel"
    values: KernelValues = Field(default_factory=KernelValues)
    settings: KernelSettings


class SkippedRow(Row):
    kind: Literal["skipped"] = "skipped"


class FailedRow(Row):
    kind: Literal["failed"] = "failed"
    values: FailureValues = Field(default_factory=FailureValues)


KINDS: dict[str, type[Row]] = {
    "speed": SpeedRow,
    "trial": TrialRow,
    "accuracy": AccuracyRow,
    "sensitivity": SensitivityRow,
    "profile": ProfileRow,
    "kernel": KernelRow,
    "skipped": SkippedRow,
    "failed": FailedRow,
}
FIELDS = {field.alias or name: name for name, field in Row.model_fields.items()}
"""Attribute names by the names used in a line."""
ONLY_WHERE_SET = ("layer_kernels",)
"""Lists of parts that a line has only where they are not empty, as lines from before them."""
NEEDED = frozenset(name for name, field in Row.model_fields.items() if field.is_required())


def line_content(row: Row) -> JsonObject:
    """The JSON object of a row: all fields of the row, and the set fields of each part."""
    content = {}
    for alias, name in FIELDS.items():
        value = getattr(row, name)
        if name in ONLY_WHERE_SET:
            if not value:
                continue
            value = [part.content() for part in value]
        content[alias] = rounded(value.content() if isinstance(value, Part) else value)
    return content


def rounded(value: Any) -> Any:
    """The value as it is stored: floats with fewer digits, strings without lone surrogates. Names
    that are not UTF-8 leave those in Python strings, and they cannot be read back."""
    if isinstance(value, dict):
        return {rounded(name): rounded(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    if isinstance(value, str) and not value.isascii():
        return value.encode(errors="replace").decode()
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def current(rows: list[Row]) -> list[Row]:
    """The rows of the last generation of each key, or of each name if there is no key."""

    def place(row: Row) -> tuple[str, ...]:
        return (row.key,) if row.key else (row.model, row.checkpoint, row.measure)

    last: dict[tuple[str, ...], int] = defaultdict(int)
    for row in rows:
        last[place(row)] = max(last[place(row)], row.generation)
    return [row for row in rows if row.generation == last[place(row)]]


def of_card(rows: Iterable[RowType], card: str | None) -> list[RowType]:
    """The rows of this GPU. A machine without one has no card, and is part of the rows' key."""
    return [row for row in rows if row.environment.card == card]
