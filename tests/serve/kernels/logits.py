"""Log-probabilities of a checkpoint in vLLM, on chosen kernels, and how far two of them differ."""

import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from pydantic import TypeAdapter

from conf.schema.model import ModelConfig
from quantize.models.load import load
from serve.engine.launch import environment
from serve.kernels.record import LayerKernels, read_log
from tests.serve.kernels.scores import ROOT, Place, Scores


@dataclass(frozen=True)
class Served:
    scores: Scores
    layers: list[LayerKernels]
    """What layers run, where our kernels were asked for."""


@dataclass(frozen=True)
class Tolerance:
    """The most by which log-probabilities may differ, in nats."""

    prompts: float
    """On average over the tokens of prompts. Nearly all of them are in steps of more than 64
    tokens, for which both engines round activations alike."""
    answers: float
    """On average over the tokens of answers, for which ours may leave activations in 16 bit."""
    largest: float
    """Of any one token."""


# At least twice what differs without any fault. Between kernels on an H200, means are 0.002
# (W4A16), 0.006 (W8A8) and 0.016 (FP8) with `tiny`, and the largest is 0.17. What follows was
# simulated in plain PyTorch: means of 0.025 with CUTLASS W4A8's scales in FP8. The v, o, gate, up
# or down of one layer scaled by 1.5 gives 0.14 to 0.22. Keys and queries are normalized: their
# scale is not seen.
TINY = Tolerance(0.05, 0.05, 0.5)
# With Qwen2.5-Coder 0.5B, 0.03 between 16 and 32 bits, and 0.10 (INT8), 0.11 (FP8), 0.12 (W4AFP8)
# and 0.31 (2:4) where activations are rounded after them: a number that is rounded to its other
# neighbour moves all that follow. 0.12 (INT8) where one engine alone rounds them, 0.16 (W4AFP8)
# with CUTLASS's scales. Likely tokens differ by two thirds of that. Only a kernel that is wrong for
# many of the 24 layers is beyond these.
W4A16 = Tolerance(0.06, 0.06, 1.0)
W8A8 = FP8 = Tolerance(0.25, 0.2, 5.0)
W4AFP8 = Tolerance(0.35, 0.25, 5.0)
SPARSE_W8A8 = Tolerance(0.65, 0.4, 6.0)


@dataclass(frozen=True)
class Differences:
    """Of log-probabilities, in nats, as absolute values."""

    prompts: list[float]
    answers: list[float]

    def faults(self, tolerance: Tolerance) -> list[str]:
        """What is beyond a tolerance. A NaN is beyond any."""
        measures = [
            ("the mean of prompts", fmean(self.prompts), tolerance.prompts),
            ("the mean of answers", fmean(self.answers), tolerance.answers),
            ("the largest", max(self.prompts + self.answers, key=_nan_last), tolerance.largest),
        ]
        return [
            f"{measure} is {value:.3g}, and {most:g} are tolerated"
            for measure, value, most in measures
            if not value <= most
        ]


def served(folder: Path, kernels: str, out: Path) -> Served:
    """Loads a checkpoint in a process of its own; `kernels` is auto, vllm, or some families with
    commas."""
    module = "tests.serve.kernels.served_logits"
    command = [sys.executable, "-m", module, str(folder), kernels, str(out)]
    # A forked engine fails where anything has asked for a GPU before.
    variables = environment() | {"VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn"}
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=variables
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    scores = TypeAdapter(Scores).validate_python(json.loads(out.read_text()))
    return Served(scores, read_log(result.stdout + result.stderr))


def faults_in_torch(folder: Path, config: ModelConfig, scores: Scores) -> list[str]:
    """What plain PyTorch computes for the prompts of an engine, by the tolerance of `tiny`."""
    model, _ = load(folder, config)
    plain = []
    for prompt in scores.prompts:
        with torch.no_grad():
            likely = model(torch.tensor([prompt])).logits[0, :-1].log_softmax(-1)
        plain.append(likely.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0].tolist())
    values = differences_of(scores.scores, plain)
    return Differences(values, values).faults(TINY)


def differences(ours: Scores, theirs: Scores) -> Differences:
    """Token by token. Greedy answers part where two tokens are nearly as likely, and are compared
    up to there: both tokens of that place count, and what follows is another text."""
    assert ours.prompts == theirs.prompts
    return Differences(
        differences_of(ours.scores, theirs.scores),
        [
            difference
            for own, other in zip(ours.answers, theirs.answers, strict=True)
            for difference in _answer_differences(own, other)
        ],
    )


def differences_of(ours: list[list[float]], theirs: list[list[float]]) -> list[float]:
    return [
        abs(own - other)
        for owns, others in zip(ours, theirs, strict=True)
        for own, other in zip(owns, others, strict=True)
    ]


def _answer_differences(ours: list[Place], theirs: list[Place]) -> list[float]:
    found = []
    for own, other in zip(ours, theirs, strict=True):
        for token in {own.token, other.token}:
            both = own.likely.get(token), other.likely.get(token)
            found.append(math.inf if None in both else abs(own.likely[token] - other.likely[token]))
        if own.token != other.token:
            break
    return found


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value
