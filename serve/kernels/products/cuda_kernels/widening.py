"""Statements in CUDA C++ that widen four 8-bit codes in a word to 16-bit floats, exactly.

Bytes 0 and 2 become `even`, bytes 1 and 3 become `odd`. By the type of the result. `masked(value,
mask, bits)` is `(value & mask) | bits`, and `fma2` multiplies and adds two 16-bit floats.
"""

INTEGERS = {
    # 128 + (low seven bits) - (128, or 256 where the sign bit is set).
    "bf16": """
    const u32 next = word >> 8, low = 0x007f007fu, sign = 0x00800080u, one = 0x3f803f80u;
    even = fma2(masked(word, low, 0x43004300u), one, masked(word, sign, 0xc300c300u));
    odd = fma2(masked(next, low, 0x43004300u), one, masked(next, sign, 0xc300c300u));
""",
    # 1024 + (value + 128) - 1152; the sign bit is flipped first, which adds 128.
    "f16": """
    const u32 flipped = word ^ 0x80808080u, byte = 0x00ff00ffu, one = 0x3c003c00u;
    even = fma2(masked(flipped, byte, 0x64006400u), one, 0xe480e480u);
    odd = fma2(masked(flipped >> 8, byte, 0x64006400u), one, 0xe480e480u);
""",
}
FLOATS = {
    # Exponent and fraction at their places; times two to the difference of the exponents' biases.
    "bf16": """
    const u32 size = 0x07f007f0u, sign = 0x80008000u, power = 0x7b807b80u;
    even = fma2(masked(word << 4, size, (word << 8) & sign), power, sign);
    odd = fma2(masked(word >> 4, size, word & sign), power, sign);
""",
    "f16": """
    const u32 size = 0x3f803f80u, sign = 0x80008000u, power = 0x5c005c00u;
    even = fma2(masked(word << 7, size, (word << 8) & sign), power, sign);
    odd = fma2(masked(word >> 1, size, word & sign), power, sign);
""",
}
