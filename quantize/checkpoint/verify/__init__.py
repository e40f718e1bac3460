"""Verifies a checkpoint: compares what its files contain with what they claim.

Nothing here uses the code that wrote a checkpoint: the files are opened again, and every tensor is
checked against the architecture, the config's format, and the manifest if there is one.
"""

from quantize.checkpoint.verify.proof import Proof
from quantize.checkpoint.verify.prove import verify
from quantize.checkpoint.verify.recipe import RequestedRecipe, requested_recipe

__all__ = ["Proof", "RequestedRecipe", "requested_recipe", "verify"]
