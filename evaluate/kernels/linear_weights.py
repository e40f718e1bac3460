"""Made-up weights of the formats that vLLM's kernels and ours take, and their products."""

import torch

from conf.schema.kernels import ONE_TOKEN, SPARSE, WEIGHT_ONLY
from evaluate.kernels.cases import KernelCase
from serve.kernels.linear.catalog import FP8, INT8, PACKED, Catalog, Place, products_of
from serve.kernels.products.product import Product, Weight

VLLM = "vllm"
GROUP_SIZE = 128
NUMBERS_OF_WORD = 8
"""4-bit numbers in a word of 32 bits."""
OF_VLLM: dict[str, list[Place]] = {
    "int8": [Place("from_vllm.scaled", "CutlassInt8")],
    "fp8": [Place("from_vllm.scaled", "CutlassFp8")],
    "int4": [Place("from_vllm.packed", "Marlin"), Place("from_vllm.packed", "Machete")],
}
OURS: dict[str, tuple[Catalog, str]] = {
    "int8": (INT8, ONE_TOKEN),
    "fp8": (FP8, ONE_TOKEN),
    "int4": (PACKED, WEIGHT_ONLY),
    "sparse_int8": (INT8, SPARSE),
    "sparse_fp8": (FP8, SPARSE),
}


def linear_products(kind: str) -> list[Product]:
    """vLLM's, then ours. vLLM has no product of 2:4 weights, so its dense one stands beside ours.
    One that cannot be imported is left out."""
    catalog, family = OURS[kind]
    theirs: Catalog = {VLLM: OF_VLLM[kind.removeprefix("sparse_")]}
    return products_of(theirs, (VLLM,)) + products_of(catalog, (family,))


def linear_weight(case: KernelCase, device: torch.device) -> Weight:
    """Random codes that use the whole range, a scale for each row or group."""
    random = torch.Generator(device).manual_seed(case.in_features + case.out_features)
    rows, columns = case.out_features, case.in_features
    if case.format == "int4":
        shape = (rows, columns // NUMBERS_OF_WORD)
        words = torch.randint(
            -(1 << 31), 1 << 31, shape, generator=random, device=device, dtype=torch.int64
        )
        scales = torch.rand((rows, columns // GROUP_SIZE), generator=random, device=device)
        spread = (scales * 0.01 + 0.001).to(torch.bfloat16)
        return Weight(words.to(torch.int32), spread, 4, columns, group_size=GROUP_SIZE)
    normal = torch.randn((rows, columns), generator=random, device=device)
    sparse = case.format.startswith("sparse")
    if sparse:
        order = torch.rand((rows, columns // 4, 4), generator=random, device=device).argsort(-1)
        normal *= (order < 2).reshape(rows, columns)
    eight_bit = (normal * 32).round().clamp(-127, 127).to(torch.int8)
    codes = eight_bit if case.format.endswith("int8") else (normal * 32).to(torch.float8_e4m3fn)
    scales = torch.rand((rows, 1), generator=random, device=device) * 0.01 + 0.001
    return Weight(codes, scales, 8, columns, sparse=sparse)
