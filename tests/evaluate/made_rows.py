"""Single rows for tests: what a test does not name is made up."""

from typing import Any, TypeVar

from evaluate.results.row_types import Part
from evaluate.results.rows import FailedRow, QuickAccuracyRow, Row, SkippedRow, SpeedRow

RowType = TypeVar("RowType", bound=Row)
PartType = TypeVar("PartType", bound=Part)


def row_with(row_type: type[RowType], **fields: Any) -> RowType:
    made_up = {"model": "qwen3-8b", "checkpoint": "original", "measure": "base", "repeat": 0}
    return row_type.model_validate(made_up | {"key": ""} | fields)


def speed_row(**fields: Any) -> SpeedRow:
    return row_with(SpeedRow, **{"key": "k", "invalid": []} | fields)


def quick_accuracy_row(**fields: Any) -> QuickAccuracyRow:
    return row_with(QuickAccuracyRow, measure="quick", **fields)


def failed_row(checkpoint: str, measure: str, reason: str, **fields: Any) -> FailedRow:
    return row_with(FailedRow, checkpoint=checkpoint, measure=measure, reason=reason, **fields)


def skipped_row(checkpoint: str, measure: str, reason: str) -> SkippedRow:
    return row_with(SkippedRow, checkpoint=checkpoint, measure=measure, reason=reason)


def without(part: PartType, *names: str) -> PartType:
    """The same without some of its fields."""
    kept = {name: value for name, value in part.content().items() if name not in names}
    return type(part).model_validate(kept)
