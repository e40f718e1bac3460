"""Rows as evaluations write them: recorded on an H200, or made by the code that writes them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy

from evaluate.accuracy import answers
from evaluate.accuracy import divergence as accuracy
from evaluate.accuracy.sensitivity import summary
from evaluate.measure.text_view import TextView
from evaluate.results.json_lines import lines
from evaluate.results.row_types import Environment, Part
from evaluate.results.row_values import Block, LostQuestion, Position, QuickAccuracy, TaskAccuracy
from evaluate.results.rows import (
    FailedRow,
    QuickAccuracyRow,
    Row,
    SensitivityRow,
    TaskAccuracyRow,
    line_content,
)
from tests.conftest import ROOT

H200 = ROOT / "results" / "h200-qwen3-8b"
MEASURES = ("interactive", "high_concurrency", "long_context")
CHECKPOINTS = ("original", "w8a8_smooth_gptq", "fp8_dynamic")
FACTS = Environment(
    device="NVIDIA H200",
    engine="vllm",
    versions={"vllm": "0.25.1"},
    checkpoint_sha256="0123456789abcdef",
)


def recorded(path: Path = H200 / "results.jsonl.gz") -> list[dict[str, Any]]:
    return [json.loads(line) for _, line in lines(path)]


@cache
def all_kinds() -> list[dict[str, Any]]:
    """Some loads of some checkpoints, and one row of every other kind."""
    found = recorded()
    speed = [
        row
        for row in found
        if row["kind"] == "speed"
        and row["measure"] in MEASURES
        and row["checkpoint"] in CHECKPOINTS
        and row["repeat"] < 3
    ]
    others = [next(r for r in found if r["kind"] == kind) for kind in ("profile", "skipped")]
    serving = recorded(H200 / "serving.jsonl")[:1]
    made = [quick_row(), task_row(), sensitivity_row(), failed_row()]
    return [*speed, *others, *serving, *map(line_content, made)]


def quick_row() -> Row:
    return _row(QuickAccuracyRow, "quick", values=_quick_values())


def task_row() -> Row:
    return _row(TaskAccuracyRow, "lm_eval:arc_easy", values=_task_values())


def sensitivity_row() -> Row:
    blocks = [
        Block(block=f"model.layers.{n}", divergence=0.1**n, bytes=2**20, modules=["q_proj"])
        for n in range(4)
    ]
    return _row(SensitivityRow, "sensitivity", values=summary(blocks))


def failed_row() -> Row:
    return _row(FailedRow, "base", reason="the engine stopped with 1: ValueError: no kernel")


def _row(row_type: type[Row], measure: str, **fields: Any) -> Row:
    content = {
        "model": "qwen3-8b",
        "checkpoint": "w8a8_smooth_gptq",
        "measure": measure,
        "repeat": 0,
        "key": f"{row_type.__name__} {measure}",
        "settings": Part.model_validate({"tokens": 1024, "seed": 0, "min_recovery": None}),
        "environment": FACTS,
        "time": "2026-01-01T00:00:00+00:00",
    }
    return row_type.model_validate(content | fields)


def _quick_values() -> QuickAccuracy:
    chance = numpy.random.default_rng(0)
    tokens = chance.integers(0, 100, 512)
    likely = numpy.tile(numpy.arange(8), (512, 1))
    scores = numpy.sort(chance.normal(-3, 1, (512, 8)))[:, ::-1]
    continued = chance.integers(0, 100, (4, 16))
    original, other = (
        TextView(tokens, scores[:, 0] - noise, likely, scores - noise, continued)
        for noise in (0.0, 0.001)
    )
    worst = Position(
        divergence=0.1,
        before="two\nlines",
        stands_there="a",
        original_expects="b",
        it_expects="c",
    )
    return accuracy.paired_values(original, other).values.with_fields(worst=[worst])


def _task_values() -> TaskAccuracy:
    chance = numpy.random.default_rng(0)
    names = [str(number) for number in range(200)]
    right = chance.random(200) < 0.7
    original, other = (
        answers.Answers(
            "acc,none", (right & (chance.random(200) < kept)).astype(float), names, 0, 0.25
        )
        for kept in (1.0, 0.97)
    )
    lost = LostQuestion(question="what?", original_says="this", it_says="that")
    return answers.paired_values(original, other).with_fields(lost_questions=[lost])
