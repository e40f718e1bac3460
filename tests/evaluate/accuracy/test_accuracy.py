"""What is left of the original: the arithmetic, its intervals, and damage done on purpose."""

import shutil
from pathlib import Path

import numpy
import pytest
from safetensors.torch import load_file, save_file

from conf.errors import QuantlineError
from evaluate.accuracy.divergence import (
    BROKEN,
    LOSS,
    NO_LOSS,
    SMALL_LOSS,
    agreements,
    divergences,
    interval,
    paired_values,
)
from evaluate.accuracy.judging import engine_findings, judged_values
from evaluate.measure.text_view import TextView
from evaluate.results.results_file import read
from evaluate.results.rows import QuickAccuracyRow, Row
from quantize.checkpoint import manifest
from tests.conftest import Run
from tests.evaluate.made_rows import quick_accuracy_row

POSITIONS, LIKELY, VOCABULARY = 2048, 16, 64


def view(seed: int, noise: float = 0.0, shift: float = 0.0) -> TextView:
    """A made-up model: random logits, and noise or a constant loss on top."""
    chance = numpy.random.default_rng(0)
    logits = chance.normal(0, 2, (POSITIONS, VOCABULARY))
    tokens = logits.argmax(1)
    own = numpy.random.default_rng(seed + 1)
    logits = logits + own.normal(0, noise, logits.shape)
    scores = logits - numpy.log(numpy.exp(logits).sum(1, keepdims=True))
    order = numpy.argsort(-scores, axis=1)[:, :LIKELY]
    rows = numpy.arange(POSITIONS)
    return TextView(
        tokens=tokens,
        chosen=scores[rows, tokens] - shift,
        likely=order,
        scores=numpy.take_along_axis(scores, order, 1),
        continuations=tokens[:64].reshape(4, 16),
    )


def test_a_model_has_lost_nothing_against_itself() -> None:
    values = paired_values(view(0), view(0)).values
    assert values.verdict == NO_LOSS
    assert values.recovery == values.recovery_low == values.recovery_high == 1
    assert values.divergence_mean == pytest.approx(0, abs=1e-9)
    assert values.same_top_share == 1
    assert values.agreed_tokens_mean == 16


@pytest.mark.parametrize("seed", range(20))
def test_an_engines_own_noise_is_no_alarm(seed: int) -> None:
    assert paired_values(view(0), view(seed, noise=0.003), seed).values.verdict == NO_LOSS


@pytest.mark.parametrize(
    ("other", "verdict"),
    [
        (view(1, shift=0.01), SMALL_LOSS),
        (view(1, noise=0.2), SMALL_LOSS),
        (view(1, shift=0.05), LOSS),
        (view(1, noise=0.7), LOSS),
        (view(1, shift=1.0), BROKEN),
        (view(1, shift=float("nan")), BROKEN),
    ],
)
def test_verdicts(other: TextView, verdict: str) -> None:
    assert paired_values(view(0), other).values.verdict == verdict


def test_divergence_of_two_coins() -> None:
    """0.9 and 0.1 against 0.5 and 0.5, the rest of the vocabulary impossible."""
    one, other = (
        TextView(
            tokens=numpy.array([3]),
            chosen=numpy.log([p]),
            likely=numpy.array([[3, 4]]),
            scores=numpy.log([[p, 1 - p]]),
            continuations=numpy.zeros((0, 1)),
        )
        for p in (0.9, 0.5)
    )
    exact = 0.9 * numpy.log(0.9 / 0.5) + 0.1 * numpy.log(0.1 / 0.5)
    assert divergences(one, other)[0] == pytest.approx(exact, rel=1e-6)
    swapped = TextView(
        other.tokens, other.chosen, other.likely[:, ::-1], other.scores, numpy.zeros(0)
    )
    assert divergences(one, swapped)[0] == pytest.approx(exact, rel=1e-6)


def test_tokens_that_only_one_finds_likely_count_as_the_rest() -> None:
    one, other = (
        TextView(
            tokens=numpy.array([0]),
            chosen=numpy.log([0.5]),
            likely=numpy.array([likely]),
            scores=numpy.log([probabilities]),
            continuations=numpy.zeros(0),
        )
        for likely, probabilities in (([0, 1], [0.5, 0.3]), ([0, 2], [0.4, 0.3]))
    )
    exact = 0.5 * numpy.log(0.5 / 0.4) + 0.5 * numpy.log(0.5 / 0.6)
    assert divergences(one, other)[0] == pytest.approx(exact)


def test_an_interval_holds_the_mean_as_often_as_it_says() -> None:
    chance = numpy.random.default_rng(3)
    hits = 0
    for seed in range(100):
        low, high = interval(chance.normal(0.5, 1, 64 * 64), seed)
        hits += low < 0.5 < high
    assert hits >= 95


def test_continuations_agree_until_they_differ() -> None:
    ours = numpy.array([[1, 2, 3, 4], [1, 2, 3, 4], [9, 2, 3, 4]])
    theirs = numpy.array([[1, 2, 9, 4], [1, 2, 3, 4], [1, 2, 3, 4]])
    assert agreements(ours, theirs).tolist() == [2, 4, 0]


def test_a_view_comes_back_from_its_file(tmp_path: Path) -> None:
    view(0).save(tmp_path / "deep" / "view.npz")
    back = TextView.load(tmp_path / "deep" / "view.npz")
    assert paired_values(view(0), back).values.recovery == 1


def test_engines_that_disagree_are_a_finding() -> None:
    def row(engine: str, perplexity: float) -> Row:
        facts = {"engine": engine, "checkpoint_sha256": "x"}
        values = {"perplexity": perplexity}
        return quick_accuracy_row(checkpoint="w8", values=values, environment=facts)

    assert engine_findings([row("vllm", 20.0), row("transformers", 20.1)]) == []
    (finding,) = engine_findings([row("vllm", 20.0), row("transformers", 21.0)])
    assert finding == "w8: vllm and transformers disagree: perplexity 20 and 21 on the same text"


QUICK = [
    "model=tiny",
    "scenario=none",
    "engine=transformers",
    "accuracy=quick",
    "accuracy.tokens=2048",
    "accuracy.window=128",
    "accuracy.continuations=2",
    "accuracy.continued_tokens=16",
]


@pytest.mark.slow
def test_damage_done_on_purpose_is_seen(
    tiny_checkpoint: Path, command_here: Run, tmp_path: Path
) -> None:
    doubled = Path(shutil.copytree(tiny_checkpoint, tmp_path / "doubled"))
    weights = load_file(doubled / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight_scale"] *= 2
    save_file(weights, doubled / "model.safetensors", {"format": "pt"})
    # Its hashes would give the damage away: here the accuracy alone has to see it.
    (doubled / manifest.FILE).unlink()
    checkpoints = f"checkpoints=[{tiny_checkpoint},{doubled}]"
    gate = "accuracy.min_recovery=0.99"
    result = command_here("evaluate", *QUICK, checkpoints, gate)
    assert result.returncode == 4
    assert "doubled: quick: accuracy: " in result.stderr
    assert "w8a8_smooth_gptq: quick" not in result.stderr
    rows, _ = read(tmp_path / "results.jsonl")
    values = {row.checkpoint: row.values for row in rows if isinstance(row, QuickAccuracyRow)}
    assert "verdict" not in values["original"]
    assert values["w8a8_smooth_gptq"].verdict == NO_LOSS
    harmed = values["doubled"]
    assert harmed.verdict in (LOSS, BROKEN)
    left = [harmed.recovery_low, harmed.recovery, harmed.recovery_high]
    assert left == sorted(left)
    assert len(harmed.worst) == 5
    assert harmed.worst[0].before
    again = command_here("evaluate", *QUICK, checkpoints, gate)
    assert again.returncode == 4, "a gate stays shut"
    assert "loading" not in again.stderr


@pytest.mark.slow
def test_too_little_text_is_said(command_here: Run, tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("\n\n".join(f"One short line, number {n}." for n in range(40)))
    text = ["accuracy.text.source=file", f"accuracy.text.path={path}"]
    result = command_here("evaluate", *QUICK, "checkpoints=[]", *text)
    assert result.returncode == 2
    assert "accuracy.tokens=2048: the evaluation part of the text has" in result.stderr


def test_nothing_is_compared_with_an_original_that_was_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "view.npz"
    view(0).save(path)
    with pytest.raises(QuantlineError, match="the original's accuracy was not measured"):
        judged_values(path, Path(), tmp_path, seed=0)
    assert judged_values(path, None, tmp_path, seed=0).values.tokens == POSITIONS
