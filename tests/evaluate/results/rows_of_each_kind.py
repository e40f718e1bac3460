"""Rows as evaluations write them: recorded on an H200, or made by the code that writes them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy

from evaluate.accuracy import divergence as accuracy
from evaluate.accuracy.sensitivity import summary
from evaluate.accuracy.tasks import questions
from evaluate.measure.text_view import TextView
from evaluate.results.rows import Row, kept
from tests.conftest import ROOT

H200 = ROOT / "results" / "h200-qwen3-8b"
MEASURES = ("interactive", "high_concurrency", "long_context")
CHECKPOINTS = ("original", "w8a8_smooth_gptq", "fp8_dynamic")
FACTS = {"device": "NVIDIA H200", "engine": "vllm", "versions": {"vllm": "0.25.1"}}


def recorded(path: Path = H200 / "results.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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
    return [*speed, *others, *serving, *map(kept, made)]


def quick_row() -> Row:
    return _row("accuracy", "quick", _quick_values())


def task_row() -> Row:
    return _row("accuracy", "lm_eval:arc_easy", _task_values())


def sensitivity_row() -> Row:
    blocks = [
        {"block": f"model.layers.{n}", "divergence": 0.1**n, "bytes": 2**20, "modules": ["q_proj"]}
        for n in range(4)
    ]
    return _row("sensitivity", "sensitivity", summary(blocks))


def failed_row() -> Row:
    found = _row("failed", "base", {})
    found.reason = "the engine stopped with 1: ValueError: no kernel"
    return found


def _row(kind: str, measure: str, values: dict[str, Any]) -> Row:
    return Row(
        kind=kind,
        model="qwen3-8b",
        checkpoint="w8a8_smooth_gptq",
        measure=measure,
        repeat=0,
        key=f"{kind} {measure}",
        values=values,
        settings={"tokens": 1024, "seed": 0, "min_recovery": None},
        environment=FACTS | {"checkpoint_sha256": "0123456789abcdef"},
        time="2026-01-01T00:00:00+00:00",
    )


def _quick_values() -> dict[str, Any]:
    chance = numpy.random.default_rng(0)
    tokens = chance.integers(0, 100, 512)
    likely = numpy.tile(numpy.arange(8), (512, 1))
    scores = numpy.sort(chance.normal(-3, 1, (512, 8)))[:, ::-1]
    continued = chance.integers(0, 100, (4, 16))
    original, other = (
        TextView(tokens, scores[:, 0] - noise, likely, scores - noise, continued)
        for noise in (0.0, 0.001)
    )
    worst = {
        "divergence": 0.1,
        "before": "two\nlines",
        "stands_there": "a",
        "original_expects": "b",
        "it_expects": "c",
    }
    return accuracy.paired_values(original, other) | {"worst": [worst]}


def _task_values() -> dict[str, Any]:
    chance = numpy.random.default_rng(0)
    names = [str(number) for number in range(200)]
    right = chance.random(200) < 0.7
    original, other = (
        questions.Answers(
            "acc,none", (right & (chance.random(200) < kept)).astype(float), names, 0, 0.25
        )
        for kept in (1.0, 0.97)
    )
    lost = {"question": "what?", "original_says": "this", "it_says": "that"}
    values = questions.paired_values(original, other)
    return values | {"cut_questions": 0, "lost_questions": [lost]}
