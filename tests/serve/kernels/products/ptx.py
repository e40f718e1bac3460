"""Runs the PTX instructions of our kernels' assembly: Triton's interpreter cannot."""

import re

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


OPERATIONS = {
    "and.b32": lambda first, second: first & second,
    "or.b32": lambda first, second: first | second,
    "xor.b32": lambda first, second: first ^ second,
    "shl.b32": lambda first, bits: first << bits,
    "prmt.b32": permuted,
    "lop3.b32": looked_up,
}
