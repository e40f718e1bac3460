"""Opens a saved checkpoint again and holds it against the recipe, the memory and the source."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.utils import match_named_modules

from conf.errors import (
    BAD_INPUT,
    QuantlineError,
    environment_reason,
    gate_failed,
    one_line,
    world_fault,
)
from conf.schema.commands import QuantizeConfig
from conf.schema.recipe import RecipeConfig
from quantize.calibrate.compress import Outcome
from quantize.checkpoint import save
from quantize.checkpoint.derivation import Derivation, compare_answers, compare_tensors
from quantize.checkpoint.reload import mean_divergence, probe_logits
from quantize.checkpoint.verify import Proof, requested_recipe, verify
from quantize.models.load import answer, empty_model, load

# The reloaded checkpoint against the model in memory, mean divergence of the next token: rounding
# to the original's number type on the way to disk gives about 1e-6 in float32 and up to 0.02 on a
# GPU in bf16, where one bit flips the rounding of an activation; a wrong tensor gives far more.
CLOSE_ENOUGH = 0.1


@dataclass
class Proven:
    """What was found in a checkpoint that may be published."""

    proof: Proof
    derivation: Derivation
    divergence: float
    """From the model in memory, of the next token."""
    reply: str
    """Its answer to the prompt."""

    def record(self) -> dict[str, Any]:
        """What the manifest keeps of it."""
        found = asdict(self.proof) | {"reload_divergence": self.divergence}
        return found | {"source": asdict(self.derivation)}


def prove(
    unfinished: Path,
    source: Path,
    config: QuantizeConfig,
    outcome: Outcome,
    before: torch.Tensor,
) -> Proven:
    """Raises where the checkpoint is not what it says, not what was in memory, or not made from
    the source. `before`: the logits of the model in memory."""
    recipe, trusted = config.recipe, config.model.trust_remote_code
    with gated(recipe.name):
        requested = requested_recipe(asdict(recipe))
        proof = verify(unfinished, recipe.is_sparse, source, requested, trusted)
        _raise_first(recipe.name, proof.faults)
        reloaded, tokenizer = load(unfinished, config.model)
        save.on_device(reloaded)
        after = probe_logits(reloaded)
        reply = answer(reloaded, tokenizer, config.prompt)
        del reloaded
        divergence = mean_divergence(before, after)
        if not divergence < CLOSE_ENOUGH:
            raise gate_failed(
                f"recipe={recipe.name}: not published: the file answers differently from the "
                f"model it was made from (divergence {divergence:.3g}, allowed {CLOSE_ENOUGH})"
            )
        derivation = _derivation(unfinished, source, config, outcome, after)
        _raise_first(recipe.name, derivation.faults)
    return Proven(proof, derivation, divergence, reply)


def _derivation(
    unfinished: Path, source: Path, config: QuantizeConfig, outcome: Outcome, after: torch.Tensor
) -> Derivation:
    """The checkpoint against the source's files; the source model is loaded from them again."""
    recipe = config.recipe
    empty = empty_model(source, config.model.trust_remote_code)
    pruned = to_prune(empty, recipe) if recipe.is_sparse else set()
    found = compare_tensors(source, unfinished, empty, outcome.rescaled, pruned)
    if recipe.is_sparse and found.pruned < (1 if recipe.file else max(1, len(pruned))):
        found.faults.append(f"{found.pruned} of {len(pruned)} weight matrices were pruned")
    original, _ = load(source, config.model)
    save.on_device(original)
    compare_answers(found, probe_logits(original), after, recipe.is_sparse)
    return found


def to_prune(model: Any, recipe: RecipeConfig) -> set[str]:
    """Linear layers that the recipe's patterns name."""
    found = match_named_modules(model, recipe.targets, recipe.ignore)
    return {name for name, module in found if isinstance(module, torch.nn.Linear)}


def _raise_first(recipe: str, faults: list[str]) -> None:
    if faults:
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise gate_failed(f"recipe={recipe}: not published: {faults[0]}{more}")


@contextmanager
def gated(recipe: str) -> Iterator[None]:
    """What is wrong with a checkpoint that we wrote is no fault of the input."""
    try:
        yield
    except QuantlineError as error:
        if error.exit_code != BAD_INPUT:
            raise
        raise gate_failed(f"recipe={recipe}: not published: {error}") from error
    except Exception as error:
        reason = environment_reason(error)
        if reason:
            raise world_fault(f"recipe={recipe}: not published: {reason}") from error
        raise gate_failed(
            f"recipe={recipe}: not published: the checkpoint cannot be used: {one_line(error)}"
        ) from error
