"""Opens a saved checkpoint again and compares it with the recipe, the memory and the source."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from conf.errors import (
    BAD_INPUT,
    QuantlineError,
    environment_failure,
    environment_reason,
    gate_failed,
    one_line,
)
from conf.schema.commands import QuantizeConfig
from quantize.calibrate.compress import Outcome
from quantize.calibrate.step_check import targeted_linears
from quantize.checkpoint import save
from quantize.checkpoint.derivation import Derivation, compare_answers, compare_tensors
from quantize.checkpoint.manifest_parts import ProofClaim, RecipeClaim
from quantize.checkpoint.reload import (
    Probe,
    differing_scales,
    mean_divergence,
    probe,
    probe_logits,
)
from quantize.checkpoint.verify import Proof, requested_recipe, verify
from quantize.models.load import answer, empty_model, load
from quantize.models.release import release

# Mean divergence of the next token between the reloaded checkpoint and the model in memory. It is
# 0 in bf16. Rounding to the original's dtype gives about 1e-6 in float32. A wrong tensor gives
# far more.
MOST_RELOAD_DIVERGENCE = 0.02


@dataclass
class Proven:
    """The proof of a checkpoint that may be published."""

    proof: Proof
    derivation: Derivation
    divergence: float
    """Of the next token, from the model in memory."""
    reply: str
    """Its answer to the prompt."""

    def claim(self) -> ProofClaim:
        """The manifest's record of the proof."""
        verified = asdict(self.proof) | {"source": asdict(self.derivation)}
        return ProofClaim(**verified, reload_divergence=self.divergence)


def prove(
    unfinished: Path,
    source: Path,
    config: QuantizeConfig,
    outcome: Outcome,
    in_memory: Probe,
) -> Proven:
    """Raises if the checkpoint has faults, differs from the model in memory, or was not made from
    the source. `in_memory`: the probe of the model in memory."""
    recipe, trust_code = config.recipe, config.model.trust_remote_code
    with gated(recipe.name):
        requested = requested_recipe(RecipeClaim.model_validate(asdict(recipe)))
        proof = verify(unfinished, recipe.is_sparse, source, requested, trust_code)
        _raise_first(recipe.name, proof.faults)
        reloaded, tokenizer = load(unfinished, config.model)
        save.on_device(reloaded)
        from_file = probe(reloaded)
        reply = answer(reloaded, tokenizer, config.prompt)
        release(reloaded)
        divergence = mean_divergence(in_memory.logits, from_file.logits)
        if not divergence < MOST_RELOAD_DIVERGENCE:
            raise gate_failed(
                f"recipe={recipe.name}: not published: the file answers differently from the "
                f"model it was made from (divergence {divergence:.3g}, allowed "
                f"{MOST_RELOAD_DIVERGENCE})"
            )
        _raise_first(
            recipe.name,
            [
                f"{name} of the file differs from the model it was made from"
                for name in differing_scales(in_memory, from_file)
            ],
        )
        derivation = _compare_with_source(unfinished, source, config, outcome, from_file.logits)
        _raise_first(recipe.name, derivation.faults)
    return Proven(proof, derivation, divergence, reply)


def _compare_with_source(
    unfinished: Path,
    source: Path,
    config: QuantizeConfig,
    outcome: Outcome,
    reloaded_logits: torch.Tensor,
) -> Derivation:
    """Compares the checkpoint with the source's files; the source model is loaded again."""
    recipe = config.recipe
    empty = empty_model(source, config.model.trust_remote_code)
    pruned = targeted_linears(empty, recipe) if recipe.is_sparse else set()
    derivation = compare_tensors(source, unfinished, empty, outcome.rescaled, pruned)
    if recipe.is_sparse and derivation.pruned < (1 if recipe.file else max(1, len(pruned))):
        derivation.faults.append(
            f"{derivation.pruned} of {len(pruned)} weight matrices were pruned"
        )
    original, _ = load(source, config.model)
    save.on_device(original)
    original_logits = probe_logits(original)
    release(original)
    compare_answers(derivation, original_logits, reloaded_logits, recipe.is_sparse)
    return derivation


def _raise_first(recipe: str, faults: list[str]) -> None:
    if faults:
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise gate_failed(f"recipe={recipe}: not published: {faults[0]}{more}")


@contextmanager
def gated(recipe: str) -> Iterator[None]:
    """Turns bad input into a failed gate: a checkpoint that we wrote is no input of the user."""
    try:
        yield
    except QuantlineError as error:
        if error.exit_code != BAD_INPUT:
            raise
        raise gate_failed(f"recipe={recipe}: not published: {error}") from error
    except Exception as error:
        reason = environment_reason(error)
        if reason:
            raise environment_failure(f"recipe={recipe}: not published: {reason}") from error
        raise gate_failed(
            f"recipe={recipe}: not published: the checkpoint cannot be used: {one_line(error)}"
        ) from error
