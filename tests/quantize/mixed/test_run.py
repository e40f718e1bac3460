"""The text of the trials."""

import torch

from quantize.calibrate.batches import batches
from quantize.mixed.run import trial_text
from tests.conftest import quantize_config

RECIPE = quantize_config("recipe=auto", "recipe.auto.samples=2", "recipe.auto.length=8").recipe


def test_layers_are_judged_on_other_text_than_they_are_rounded_for() -> None:
    rows = [[number] * 16 for number in range(6)]
    text = trial_text(RECIPE, batches(rows, 4))
    assert text.judged == [[0] * 8, [1] * 8]
    assert torch.cat(text.calibrated).tolist() == rows[2:]


def test_few_sequences_serve_for_both() -> None:
    rows = [[number] * 16 for number in range(3)]
    text = trial_text(RECIPE, batches(rows, 4))
    assert len(text.judged) == 2
    assert torch.cat(text.calibrated).tolist() == rows


def test_trials_read_a_part_of_a_long_text() -> None:
    rows = [[0] * 16, [1] * 16, *([number] * 32768 for number in range(2, 6))]
    text = trial_text(RECIPE, batches(rows, 4))
    assert torch.cat(text.calibrated)[:, 0].tolist() == [2, 3]
