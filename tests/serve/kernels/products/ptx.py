"""Runs the PTX instructions of our kernels' assembly: Triton's interpreter cannot."""

import operator
import re
import struct
from collections.abc import Callable

MASK = 0xFFFFFFFF


def run(source: str, outputs: int, inputs: list[int]) -> list[int]:
    """The output registers `$0` and so on; inputs are the registers after them."""
    registers = {f"${outputs + place}": value for place, value in enumerate(inputs)}

    def value(operand: str) -> int:
        return registers[operand] if operand in registers else int(operand, 0)

    for line in source.strip().strip("{}").split(";"):
        statement = line.strip()
        if not statement or statement.startswith(".reg"):
            continue
        name, _, rest = statement.partition(" ")
        target, *operands = re.split(r",\s*", rest)
        registers[target] = OPERATIONS[name](*map(value, operands)) & MASK
    return [registers[f"${place}"] for place in range(outputs)]


def permuted(low: int, high: int, selector: int) -> int:
    """prmt: each nibble of the selector names a byte; its top bit repeats that byte's sign."""
    source = (low | high << 32).to_bytes(8, "little")
    result = bytearray()
    for place in range(4):
        nibble = selector >> (4 * place) & 15
        byte = source[nibble & 7]
        result.append((0xFF if byte & 0x80 else 0) if nibble & 8 else byte)
    return int.from_bytes(result, "little")


def looked_up(first: int, second: int, third: int, table: int) -> int:
    """lop3: bit by bit, the three operands are an index into the table."""
    result = 0
    for place in range(32):
        index = (first >> place & 1) << 2 | (second >> place & 1) << 1 | third >> place & 1
        result |= (table >> index & 1) << place
    return result


def halves(
    compute: Callable[[float, float], float],
    decode: Callable[[int], float],
    encode: Callable[[float], int],
) -> Callable[[int, int], int]:
    """An instruction on two 16-bit numbers in a register."""

    def both(first: int, second: int) -> int:
        low, high = (
            encode(compute(decode(first >> place & 0xFFFF), decode(second >> place & 0xFFFF)))
            for place in (0, 16)
        )
        return low | high << 16

    return both


def from_bfloat16(bits: int) -> float:
    return float(struct.unpack("f", struct.pack("I", bits << 16))[0])


def to_bfloat16(value: float) -> int:
    """The number must be one of bfloat16: there is nothing to round."""
    bits: int = struct.unpack("I", struct.pack("f", value))[0]
    assert bits & 0xFFFF == 0
    return bits >> 16


def from_float16(bits: int) -> float:
    return float(struct.unpack("e", struct.pack("H", bits))[0])


def to_float16(value: float) -> int:
    bits: int = struct.unpack("H", struct.pack("e", value))[0]
    assert from_float16(bits) == value
    return bits


OPERATIONS = {
    "and.b32": lambda first, second: first & second,
    "or.b32": lambda first, second: first | second,
    "shr.b32": lambda first, bits: first >> bits,
    "mov.b32": lambda first: first,
    "add.rn.bf16x2": halves(operator.add, from_bfloat16, to_bfloat16),
    "sub.rn.bf16x2": halves(operator.sub, from_bfloat16, to_bfloat16),
    "sub.rn.f16x2": halves(operator.sub, from_float16, to_float16),
    "xor.b32": lambda first, second: first ^ second,
    "shl.b32": lambda first, bits: first << bits,
    "prmt.b32": permuted,
    "lop3.b32": looked_up,
}
