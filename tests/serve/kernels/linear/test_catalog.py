"""Which products a family has, and which copy of the weights they read."""

import pytest

from conf.schema.kernels import AUTOMATIC, BATCHED, FAMILIES, WEIGHT_ONLY
from serve.kernels.linear.catalog import PACKED, STORED, layout_of, products_of


def test_a_batch_of_tokens_is_run_by_our_kernel_where_that_is_asked_for() -> None:
    asked = {product.name for product in products_of(PACKED, FAMILIES)}
    assert asked == {"streamed_packed", "unpack", "batched"}
    assert {product.name for product in products_of(PACKED, AUTOMATIC)} == asked - {"batched"}


@pytest.mark.parametrize(("family", "name"), [(BATCHED, "batched"), (WEIGHT_ONLY, "unpack")])
def test_stored_words_are_read_without_a_copy(family: str, name: str) -> None:
    (product,) = (one for one in products_of(PACKED, (family,)) if one.name == name)
    assert layout_of(product) == STORED
