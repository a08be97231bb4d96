"""Tiles of stored weights as the numbers they stand for: MXFP8 and MXFP4. Legend: N rows, W words of 16 bits, G groups.

A word holds two neighbouring inputs in MXFP8 and four in MXFP4, which is also how a product takes its left operand out
of registers: two 16-bit numbers each. So the first inputs of all words make one tile, the second inputs the next one,
and no number ever changes its thread or its place. Tokens must come in the same order: `by_piece`.
"""

import triton
import triton.language as tl
from torch import Tensor

LARGEST_POWER = 128
"""Scales stand for 2 ** -127 to 2 ** 1, by which weights may reach 896. Larger ones would need a second product."""


def by_piece(x_TC: Tensor, pieces: int) -> Tensor:
    """The channels that go with the first inputs of all words, then those of the second ones, and so on."""
    T, C = x_TC.shape
    return x_TC.view(T, C // pieces, pieces).transpose(1, 2).reshape(T, C)


def _bfloat16(magnitude: int, left: int, sign_left: int) -> tl.constexpr:
    """Instructions: one number out of each of two words, times a bfloat16 number.

    Exponent and mantissa in bfloat16's places are a small power of two times the value, subnormal numbers too; the
    factor makes up for it, so there is one product and it is exact. Args: which bits of a word are the magnitude, and
    by how much it and the sign go to the left.
    """
    shift = f"shl.b32 bits, bits, {left}" if left > 0 else f"shr.b32 bits, bits, {-left}"
    return tl.constexpr(f"""{{
        .reg .b32 bits, sign;
        and.b32 bits, $1, {magnitude * 0x10001:#x};
        {shift};
        shl.b32 sign, $1, {sign_left};
        lop3.b32 bits, sign, 0x80008000, bits, 0xEA;
        mul.bf16x2 $0, bits, $2;
    }}""")


E4M3_POWER, E2M1_POWER = tl.constexpr(120), tl.constexpr(126)
"""How far the exponents of e4m3 and e2m1 are from those of bfloat16 and float32."""
E4M3_0, E4M3_1 = _bfloat16(0x7F, 4, 8), _bfloat16(0x7F00, -4, 0)
E2M1_0, E2M1_1 = _bfloat16(0x7, 6, 12), _bfloat16(0x70, 2, 8)
E2M1_2, E2M1_3 = _bfloat16(0x700, -2, 4), _bfloat16(0x7000, -6, 0)


@triton.jit
def stored_tile(
    w, scale, row, inside, at, dtype: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, BITS: tl.constexpr
):  # fmt: skip
    """Inputs at..at+STEP of some rows of a matrix of WIDTH inputs: the words and a factor for each of them.

    Only conversions, repetitions and reshapes stand between a load and the product, so the compiler loads each of them
    as the product wants it.
    """
    INPUTS: tl.constexpr = 16 // BITS
    POWER: tl.constexpr = E4M3_POWER if BITS == 8 else E2M1_POWER
    N: tl.constexpr = row.shape[0]
    word = at // INPUTS + tl.arange(0, STEP // INPUTS)
    mask = inside[:, None] & (word < WIDTH // INPUTS)[None, :]
    w_NW = tl.load(w + row[:, None] * (WIDTH // INPUTS) + word[None, :], mask=mask, other=0)
    group = at // 32 + tl.arange(0, STEP // 32)
    mask = inside[:, None] & (group < WIDTH // 32)[None, :]
    power_NG = tl.load(scale + row[:, None] * (WIDTH // 32) + group[None, :], mask=mask, other=0)
    if dtype == tl.bfloat16:
        factor_NG = ((power_NG.to(tl.int16) + POWER) << 7).to(tl.bfloat16, bitcast=True)
    else:
        factor_NG = ((power_NG.to(tl.int32) + POWER) << 23).to(tl.float32, bitcast=True)
    factor_NGW = tl.broadcast_to(factor_NG[:, :, None], [N, STEP // 32, 32 // INPUTS])
    return w_NW, factor_NGW.reshape(N, STEP // INPUTS)


@triton.jit
def piece(w_NW, factor_NW, dtype: tl.constexpr, BITS: tl.constexpr, J: tl.constexpr, PACKED: tl.constexpr):
    """The J-th inputs of all words, in `dtype`. PACKED: by instructions for two bfloat16 numbers.

    Exact, but NaN, which no finite checkpoint has, becomes 480.
    """
    if PACKED:
        e4m3: tl.constexpr = E4M3_0 if J == 0 else E4M3_1
        e2m1: tl.constexpr = E2M1_0 if J == 0 else E2M1_1 if J == 1 else E2M1_2 if J == 2 else E2M1_3
        text: tl.constexpr = e4m3 if BITS == 8 else e2m1
        return tl.inline_asm_elementwise(text, "=r,r,r", [w_NW, factor_NW], dtype=tl.bfloat16, is_pure=True, pack=2)
    bits = (w_NW.to(tl.int32) >> (J * BITS)) & ((1 << BITS) - 1)
    SIGN: tl.constexpr = 1 << (BITS - 1)
    magnitude = (bits & (SIGN - 1)) << (20 if BITS == 8 else 22)
    value_NW = (magnitude | ((bits & SIGN) << (32 - BITS))).to(tl.float32, bitcast=True)
    return (value_NW * factor_NW).to(dtype)
