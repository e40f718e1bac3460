"""Runs llm-compressor on a loaded model, with its progress on one bar for each step."""

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from compressed_tensors.utils import patch_attr
from llmcompressor import oneshot
from llmcompressor.pipelines.sequential import pipeline as sequential_pipeline
from loguru import logger
from rich.console import Console
from rich.progress import Progress, TaskID
from torch.utils.data import DataLoader

from conf.schema import RecipeConfig
from conf.terminal import progress
from quantize.recipe import modifiers

Batches = list[dict[str, torch.Tensor]]
CALIBRATING = "Calibrating"


class LayerProgress:
    """Stands in for llm-compressor's tqdm, which counts batches; a person counts layers.

    It passes through the layers once for each step, and through each layer twice: to look, and to
    hand on what the quantized layer makes of its input.
    """

    def __init__(self, bars: Progress, steps: list[str]) -> None:
        self.bars = bars
        self.steps = iter(steps)
        self.task: TaskID | None = None

    def __call__(self, batches: Iterable[Any], total: int, desc: str) -> Iterator[Any]:
        layer, layers, phase = self._where(desc)
        if layer == 1 and phase == CALIBRATING:
            self.task = self.bars.add_task(next(self.steps), total=layers)
        assert self.task is not None
        before = layer - 1 if phase == CALIBRATING else layer - 0.5
        for number, batch in enumerate(batches, start=1):
            yield batch
            self.bars.update(self.task, completed=before + 0.5 * number / total)

    @staticmethod
    def _where(description: str) -> tuple[int, int, str]:
        found = re.fullmatch(r"\((\d+)/(\d+)\): (\w+)", description)
        assert found, f"llm-compressor describes its passes differently now: {description}"
        return int(found[1]), int(found[2]), found[3]


def compress(
    model: Any, tokenizer: Any, recipe: RecipeConfig, batches: Batches, console: Console
) -> None:
    """Applies the recipe's steps to the model, in place."""
    logger.remove()
    logger.add(sys.stderr, level="DEBUG")
    bars = progress(console)
    with bars, patch_attr(sequential_pipeline, "tqdm", LayerProgress(bars, list(recipe.steps))):
        oneshot(
            model=model,
            tokenizer=tokenizer,
            recipe=modifiers(recipe),
            dataset=DataLoader(batches, batch_size=None) if batches else None,
        )
