"""Which products a family has, and which copy of the weights they read."""

from conf.schema.kernels import AUTOMATIC, BATCHED, FAMILIES, WEIGHT_ONLY
from serve.kernels.linear.catalog import PACKED, STORED, layout_of, products_of


def test_a_batch_of_tokens_is_run_by_our_kernel() -> None:
    asked = {product.name for product in products_of(PACKED, FAMILIES)}
    assert asked == {"streamed_packed", "unpack", "streamed_batch"}
    assert {product.name for product in products_of(PACKED, AUTOMATIC)} == asked
    (batch,) = products_of(PACKED, (BATCHED,))
    assert batch.name == "streamed_batch"


def test_stored_words_are_read_without_a_copy() -> None:
    (product,) = (one for one in products_of(PACKED, (WEIGHT_ONLY,)) if one.name == "unpack")
    assert layout_of(product) == STORED
