"""Codebooks and the layers of a model: whether they fit."""

import pytest

from conf.errors import QuantlineError
from quantize.pipeline import quantize
from tests.conftest import quantize_config


def test_a_codebook_of_as_many_entries_as_vectors_is_refused() -> None:
    """The layers k and v of `tiny` have 4,096 vectors of eight weights."""
    books = "recipe.weights.codebooks"
    options = ["model=tiny", "preflight=only", "recipe=vptq_3bit", f"{books}.vector_length=8"]
    reason = r"4,096 vectors, too few .* use at most 2,048 entries"
    with pytest.raises(QuantlineError, match=reason):
        quantize(quantize_config(*options))
    smaller = [f"{books}.entries=2048", f"{books}.residual_entries=2048"]
    assert quantize(quantize_config(*options, *smaller)) is None
