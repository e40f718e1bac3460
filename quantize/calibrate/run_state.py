"""The state of a run: what all its steps and layers share."""

from collections import defaultdict
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.progress import Progress

from quantize.calibrate.expert_tokens import ExpertTokens
from quantize.calibrate.memory.writer import LayerWriter
from quantize.calibrate.resume import LayerNotes, Modules, WorkFolder
from quantize.steps.base.changes import Errors
from quantize.steps.base.step import Scaled, Step


@dataclass
class Run:
    """The state of a run: its progress bars, saved layers and records."""

    steps: list[Step[Any]]
    bars: Progress
    stored_as: torch.dtype
    work: WorkFolder | None = None
    joined: dict[str, str] = field(default_factory=dict)
    """Steps whose work is done in the passes of a later step, with that step's name."""
    writer: LayerWriter = field(default_factory=LayerWriter)
    layer_seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    resumed_layers: int = 0
    errors: Errors = field(default_factory=lambda: defaultdict(dict))
    fallbacks: list[str] = field(default_factory=list)
    expert_tokens: ExpertTokens = field(default_factory=dict)
    """Of mixtures of experts."""
    scaled: dict[str, list[str]] = field(default_factory=dict)
    """Modules whose output a step scales, by step."""
    rescaled: set[str] = field(default_factory=set)
    """These modules, and those that take up the inverse scales."""

    def notes_of(self, modules: Modules) -> LayerNotes:
        """The notes of a layer, saved beside its weights."""
        errors = {name: self.errors[name] for name in modules if name in self.errors}
        fallbacks = [name for name in self.fallbacks if name in modules]
        tokens = {name: self.expert_tokens[name] for name in modules if name in self.expert_tokens}
        return LayerNotes(errors=errors, fallbacks=fallbacks, expert_tokens=tokens)

    def restore_notes(self, notes: LayerNotes) -> None:
        """Adds the notes of a layer that an earlier run finished."""
        for name, errors in notes.errors.items():
            self.errors[name].update(errors)
        self.record_fallbacks(notes.fallbacks)
        self.expert_tokens |= notes.expert_tokens

    def record_fallbacks(self, names: list[str]) -> None:
        self.fallbacks += [name for name in names if name not in self.fallbacks]

    def record_scaled(
        self, step: str, scaled: list[Scaled], names: dict[torch.nn.Module, str]
    ) -> None:
        self.scaled[step] = [entry.name for entry in scaled]
        self.rescaled |= {names[module] for entry in scaled for module in entry.modules}

    def error_text(self, modules: Modules, error_name: str) -> str:
        """The mean relative output error of a layer's modules, for the progress bar; empty if
        the step measures none."""
        errors = [self.errors.get(name, {}) for name in modules]
        relative_errors = [error[error_name] for error in errors if error_name in error]
        if not relative_errors:
            return ""
        return f", output error {sum(relative_errors) / len(relative_errors):.2%}"


RUN: ContextVar[Run] = ContextVar("run")
