"""Recipes with weights in codebooks: what they may ask for."""

import pytest

from conf.compose import compose
from conf.errors import QuantlineError
from quantize.command import COMMAND

BOOKS = "recipe.weights.codebooks"


def test_the_bits_follow_from_the_codebooks() -> None:
    recipe = compose(COMMAND, ["recipe=vptq_3bit", f"{BOOKS}.vector_length=8"]).recipe
    assert recipe.weights.stored.codebooks.bits == 1.5
    assert recipe.weights.stored.bits == 2
    for name, bits in (("vptq_2bit", 2), ("vptq_3bit", 3)):
        assert compose(COMMAND, [f"recipe={name}"]).recipe.weights.stored.codebooks.bits == bits


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["recipe=vptq_3bit", f"{BOOKS}.entries=1000"], "power of two of entries"),
        (["recipe=vptq_3bit", "recipe.steps=[gptq]"], "gptq works with int or float weights"),
        (["recipe=w4a16_gptq", "recipe.steps=[vptq]"], "vptq works with vector weights"),
        # Their passes would be shared with a step that does not follow what they change.
        (["recipe=vptq_3bit", "recipe.steps=[smoothquant,vptq]"], "smoothquant works with int or"),
        (["recipe=vptq_3bit", "recipe.steps=[awq,vptq]"], "awq works with int or float"),
        (["recipe=vptq_3bit", "recipe.steps=[sparsegpt,vptq]"], "sparsegpt works with int or"),
        (["recipe=vptq_3bit", "recipe.weights.codebooks=null"], "type vector needs codebooks"),
        (["recipe=vptq_3bit", "recipe.weights.strategy=channel"], "use strategy: tensor"),
        (["recipe=vptq_3bit", "recipe.lm_head=int8"], "has no other format"),
        (["recipe=vptq_3bit", f"{BOOKS}.vector_length=1"], "vector_length"),
    ],
)
def test_what_does_not_fit_is_refused(options: list[str], reason: str) -> None:
    with pytest.raises(QuantlineError, match=reason):
        compose(COMMAND, options)
