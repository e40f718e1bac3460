"""Runs our Triton kernels in Triton's interpreter, and prints how far each is from float64.

A process of its own: Triton decides when it is imported whether it interprets.
"""

import json
import math
import random
import struct
from collections.abc import Iterable

import torch

from serve.kernels.products.few_tokens import (
    FP8,
    FewTokens,
    FewTokensFp8,
    FewTokensFp8Plain,
    FewTokensInt8,
    FewTokensInt8Plain,
)
from serve.kernels.products.launch import options_of
from serve.kernels.products.one_token import OneTokenFp8, OneTokenInt8
from serve.kernels.products.product import Inputs, Options, Product, Weight
from serve.kernels.products.sparse.few_tokens import SparseFewTokensFp8, SparseFewTokensInt8
from serve.kernels.products.triton_kernels.scale import scaled
from serve.kernels.products.triton_kernels.sparse import EXPANDED_HIGH, EXPANDED_LOW, TURNED
from serve.kernels.products.triton_kernels.unpack import unpacked
from serve.kernels.products.triton_kernels.widen import FOUR_BYTES_TO_FLOATS
from serve.kernels.products.unpack import Unpack, UnpackFp8
from tests.serve.kernels.products import ptx
from tests.serve.kernels.products.made_up import (
    dense_of,
    error_of,
    inputs_of,
    packed_weight,
    weight_of,
)

SPLIT = options_of(BLOCK_N=32, BLOCK_K=128, SPLIT=3, TOKENS=16, PDL=2, num_warps=2, num_stages=3)
# A plan for eight tokens is given eleven: the kernel takes sixteen then.
FEWER = options_of(BLOCK_N=32, BLOCK_K=256, SPLIT=1, TOKENS=8, PDL=0, num_warps=2, num_stages=3)
WIDE = options_of(BLOCK_N=64, BLOCK_K=128, SPLIT=2, TOKENS=64, PDL=0, num_warps=4, num_stages=3)
WHOLE = options_of(BLOCK_N=16, BLOCK_K=256, SPLIT=1, TOKENS=8, PDL=0, num_warps=1, num_stages=3)
ONE = options_of(BLOCK_N=16, BLOCK_K=256, PDL=1, num_warps=2)
SPARSE_SPLIT = options_of(BLOCK_N=32, SPLIT=2, TOKENS=16, PDL=2, num_warps=2, num_stages=3)
SPARSE_WHOLE = options_of(BLOCK_N=16, SPLIT=1, TOKENS=8, PDL=0, num_warps=1, num_stages=3)


def say(name: str, error: float) -> None:
    print(json.dumps({"name": name, "error": error}), flush=True)


def error_twice(product: Product, weight: Weight, tokens: int, options: Options) -> float:
    """The larger error of two products in a row: counters must be zero again after the first."""
    inputs = inputs_of(weight, tokens)
    tensors = product.prepare(weight)
    right = dense_of(weight, inputs, product.reads_rounded)
    return largest(error_of(product.multiply(inputs, tensors, options), right) for _ in range(2))


def largest(errors: Iterable[float]) -> float:
    """Infinite where one is NaN, which max may hide."""
    return max(math.inf if math.isnan(error) else error for error in errors)


def few_tokens() -> None:
    products: list[FewTokens] = [
        FewTokensInt8(), FewTokensFp8(), FewTokensFp8Plain(), FewTokensInt8Plain(),
    ]  # fmt: skip
    for product in products:
        weight = weight_of(product.weight_dtype, 72, 768)  # 72 rows are no whole blocks
        say(f"{product.name} split", error_twice(product, weight, 11, SPLIT))
        say(f"{product.name} whole", error_twice(product, weight, 1, WHOLE))
        say(f"{product.name} fewer", error_twice(product, weight, 11, FEWER))
        if product.reads_rounded:
            say(f"{product.name} wide", error_twice(product, weight, 40, WIDE))
            say(f"{product.name} fewer of wide", error_twice(product, weight, 20, SPLIT))
    for one in (OneTokenFp8(), OneTokenInt8()):
        say(one.name, error_twice(one, weight_of(one.weight_dtype, 72, 768), 1, ONE))


def sparse() -> None:
    for product in (SparseFewTokensInt8(), SparseFewTokensFp8()):
        weight = weight_of(product.weight_dtype, 96, 1024, sparse=True)
        say(f"{product.name} split", error_twice(product, weight, 16, SPARSE_SPLIT))
        weight = weight_of(product.weight_dtype, 32, 768, sparse=True)  # blocks of 256 columns
        say(f"{product.name} whole", error_twice(product, weight, 3, SPARSE_WHOLE))


def unscaled_products() -> None:
    """Without scales of tokens, the caller multiplies by them."""
    weight = weight_of(torch.int8, 32, 512, sparse=True)
    given = inputs_of(weight, 2)
    inputs = Inputs(given.plain.float(), given.rounded)  # sums exceed float16
    assert given.rounded is not None
    right = given.rounded.double() @ (weight.codes.double() * weight.scales.double()).t()
    for product, options in ((FewTokensInt8(), WHOLE), (SparseFewTokensInt8(), SPARSE_WHOLE)):
        out = product.multiply(inputs, product.prepare(weight), options)
        say(f"{product.name} without scales", error_of(out, right))


def scaling() -> None:
    sums, by_token, by_row = torch.randn(4, 40), torch.rand(4, 1), torch.rand(40)
    right = sums[:3].double() * by_token[:3].double() * by_row.double()
    say("scaled", error_of(scaled(sums, by_token, by_row, 3, torch.float32), right))
    say("scaled by rows", error_of(scaled(sums, None, by_row, 4, torch.float32), sums * by_row))


def unpacking() -> None:
    for bits in (4, 8):
        for group in (128, None):
            for has_zeros in (False, True):
                weight, right = packed_weight(40, 512, bits, group, has_zeros)
                x = torch.randn(3, 512).half()
                product = Unpack()
                tensors = product.prepare(weight)
                for rows in (0, 16):
                    out = product.multiply(Inputs(x), tensors, options_of(ROWS=rows))
                    kind = f"{bits} bits, group {group}, zeros {has_zeros}, rows {rows}"
                    say(f"unpack {kind}", error_of(out, x.double() @ right.t()))
                    say_direct(f"unpack {kind}", product, Inputs(x), tensors, options_of(ROWS=rows))
    weight, right = packed_weight(40, 512, 4, 128, has_zeros=False)
    words, relative, by_row = UnpackFp8().prepare(weight)
    values = unpacked(words, relative, None, torch.empty(40, 512, dtype=FP8))
    say("unpack_fp8", error_of(values.double() * by_row.double().t(), right))
    x = torch.randn(3, 512).to(FP8)
    for scales in (None, torch.rand(3, 1)):
        given = Inputs(torch.empty(3, 0, dtype=torch.bfloat16), x, scales)
        name, options = f"unpack_fp8, scales {scales is not None}", options_of(ROWS=16)
        say_direct(name, UnpackFp8(), given, [words, relative, by_row], options)


def say_direct(
    name: str, product: Product, inputs: Inputs, tensors: list[torch.Tensor], options: Options
) -> None:
    """Whether a graph has the numbers of the product."""
    out = product.multiply(inputs, tensors, options)
    say(f"{name}, direct", float(not torch.equal(product.direct(inputs, tensors, options), out)))


def word(values: list[int]) -> int:
    return int.from_bytes(bytes(value & 255 for value in values), "little")


def values_of(register: int) -> list[int]:
    return list(register.to_bytes(4, "little"))


def assembly() -> None:
    """The assembly does what the kernels do in its place when they are interpreted."""
    wrong = 0
    for _ in range(50):
        first, second = ([random.randrange(256) for _ in range(4)] for _ in range(2))
        places = [[sorted(random.sample(range(4), 2)) for _ in range(4)] for _ in range(2)]
        low, high = ([(1 << a) + (1 << b) for a, b in half] for half in places)
        masks = word([here + (there << 4) for here, there in zip(low, high, strict=True)])
        for half, source in enumerate((EXPANDED_LOW, EXPANDED_HIGH)):
            columns = ptx.run(source.value, 4, [word(first), word(second), masks])
            found = list(zip(*map(values_of, columns), strict=True))
            for group, (one, other) in enumerate(places[half]):
                right = [0, 0, 0, 0]
                right[one], right[other] = first[group], second[group]
                wrong += list(found[group]) != right
        rows = [[random.randrange(256) for _ in range(4)] for _ in range(4)]
        columns = ptx.run(TURNED.value, 4, [word(row) for row in rows])
        wrong += [values_of(column) for column in columns] != [
            list(c) for c in zip(*rows, strict=True)
        ]
        numbers = [random.randrange(-128, 128) for _ in range(4)]
        floats = ptx.run(FOUR_BYTES_TO_FLOATS.value, 4, [word(numbers)])
        shifted = [struct.unpack("f", struct.pack("I", bits))[0] for bits in floats]
        wrong += [value - 8388736.0 for value in shifted] != numbers
    say("assembly", math.inf if wrong else 0.0)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    random.seed(0)
    few_tokens()
    sparse()
    unscaled_products()
    scaling()
    unpacking()
    assembly()
