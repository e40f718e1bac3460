"""The products of each family, by name: imported only when a layer of theirs is loaded."""

import importlib
import logging
from dataclasses import dataclass

from conf.schema.kernels import BATCHED, CUBLAS, ONE_TOKEN, SPARSE, W4AFP8, WEIGHT_ONLY
from serve.kernels.products.product import Product

logger = logging.getLogger("vllm.quantline")
PRODUCTS = "serve.kernels.products"
STORED = "stored"
"""The layout of the checkpoint: products that read it need no memory of their own."""


@dataclass(frozen=True)
class Place:
    """Where a product is, and which copy of the weights it reads."""

    module: str
    """A module of serve.kernels.products."""
    name: str
    layout: str = STORED


Catalog = dict[str, list[Place]]
"""Products by family."""

VLLM = [
    Place("from_vllm.scaled", "CutlassInt8"),
    Place("from_vllm.scaled", "CutlassFp8"),
    Place("from_vllm.packed", "Marlin", "marlin"),
    Place("from_vllm.packed", "Machete", "machete"),
    Place("from_vllm.packed", "CutlassW4A8", "w4a8"),
    Place("from_vllm.marlin_fp8", "MarlinFp8", "marlin_fp8"),
]
INT8: Catalog = {
    ONE_TOKEN: [
        Place("streamed.dense", "StreamedInt8"),
        Place("few_tokens", "FewTokensInt8"),
        Place("few_tokens", "FewTokensInt8Plain"),
        Place("one_token", "OneTokenInt8"),
    ],
    SPARSE: [
        Place("streamed.sparse", "StreamedSparseInt8", "streamed_sparse"),
        Place("sparse.few_tokens", "SparseFewTokensInt8", "sparse_few_tokens"),
        Place("sparse.lt", "SparseLtInt8", "sparse_lt"),
    ],
}
STREAMED_FP8 = Place("streamed.dense", "StreamedFp8")
FEW_TOKENS_FP8_PLAIN = Place("few_tokens", "FewTokensFp8Plain")
ONE_TOKEN_FP8 = Place("one_token", "OneTokenFp8")
FP8: Catalog = {
    ONE_TOKEN: [
        STREAMED_FP8,
        Place("few_tokens", "FewTokensFp8"),
        FEW_TOKENS_FP8_PLAIN,
        ONE_TOKEN_FP8,
    ],
    SPARSE: [
        Place("streamed.sparse", "StreamedSparseFp8", "streamed_sparse"),
        Place("sparse.few_tokens", "SparseFewTokensFp8", "sparse_few_tokens"),
        Place("sparse.lt", "SparseLtFp8", "sparse_lt"),
    ],
    CUBLAS: [Place("cublas", "CublasFp8")],
}
FP8_PLAIN: Catalog = {WEIGHT_ONLY: [STREAMED_FP8, FEW_TOKENS_FP8_PLAIN, ONE_TOKEN_FP8]}
"""FP8 weights whose activations are never rounded."""
STREAMED_PACKED = Place("streamed.packed", "StreamedPacked", "streamed_packed")
PACKED: Catalog = {
    WEIGHT_ONLY: [STREAMED_PACKED, Place("unpack", "Unpack")],
    BATCHED: [Place("streamed.batch", "StreamedBatch", STREAMED_PACKED.layout)],
}
PACKED_FP8: Catalog = {
    W4AFP8: [
        STREAMED_PACKED,
        Place("streamed.w4a8", "StreamedW4A8", STREAMED_PACKED.layout),
        Place("unpack", "UnpackFp8"),
    ]
}
ALL = [
    *VLLM,
    *(
        place
        for catalog in (INT8, FP8, FP8_PLAIN, PACKED, PACKED_FP8)
        for of in catalog.values()
        for place in of
    ),
]
LAYOUTS = {place.name: place.layout for place in ALL}


def products_of(catalog: Catalog, families: tuple[str, ...]) -> list[Product]:
    """The products of these families. One that cannot be imported, such as a Triton kernel without
    Triton, is left out."""
    products = []
    for family in catalog:
        for place in catalog[family] if family in families else []:
            try:
                products.append(_product(place))
            except Exception as error:  # whatever an import may raise: the engine must start
                logger.info("quantline: %s is not used: %s", place.name, error)
    return products


def layout_of(product: Product) -> str:
    """The copy of the weights that a product reads."""
    return LAYOUTS.get(type(product).__name__, product.name)


def missing_products() -> list[str]:
    """Classes that are named here and cannot be imported."""
    missing = []
    for place in ALL:
        try:
            _product(place)
        except (ImportError, AttributeError) as error:
            missing.append(f"{PRODUCTS}.{place.module}.{place.name}: {error}")
    return missing


def _product(place: Place) -> Product:
    product: Product = getattr(importlib.import_module(f"{PRODUCTS}.{place.module}"), place.name)()
    return product
