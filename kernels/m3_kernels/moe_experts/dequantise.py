"""Tiles of stored weights as the numbers they stand for: plain ones, MXFP8 and MXFP4. Legend: N rows, C columns."""

import triton
import triton.language as tl

E4M3_TIMES_BF16 = tl.constexpr("""{
    .reg .b32 low, high, bits, two_120;
    mov.b32 two_120, 0x7B807B80;
    prmt.b32 low, $2, 0, 0x1404;
    prmt.b32 high, $2, 0, 0x3424;
    and.b32 bits, low, 0x7F007F00;
    shr.b32 bits, bits, 4;
    lop3.b32 low, low, 0x80008000, bits, 0xEA;
    and.b32 bits, high, 0x7F007F00;
    shr.b32 bits, bits, 4;
    lop3.b32 high, high, 0x80008000, bits, 0xEA;
    mul.bf16x2 low, low, two_120;
    mul.bf16x2 high, high, two_120;
    mul.bf16x2 $0, low, $3;
    mul.bf16x2 $1, high, $4;
}""")
"""Four e4m3 numbers times four bfloat16 numbers. Exponent and mantissa in bfloat16's places give 2 ** -120 times the
value, subnormal numbers too; both products are exact. NaN, which no finite checkpoint has, becomes 480."""


@triton.jit
def weights_of(
    w, scale, row, inside, at, dtype: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, BITS: tl.constexpr,
    SCALES: tl.constexpr, PTX: tl.constexpr,
):  # fmt: skip
    """Columns at..at+STEP of some rows of a matrix of WIDTH columns, in `dtype`; MX formats multiply out exactly.

    BITS says how the matrix is stored: 16 for a plain one of any dtype, 8 for MXFP8, 4 for MXFP4. An element of `scale`
    holds SCALES scales: one byte can not be loaded ahead of its use, four can.
    """
    PER_ELEMENT: tl.constexpr = 2 if BITS == 4 else 1
    column = at // PER_ELEMENT + tl.arange(0, STEP // PER_ELEMENT)
    mask = inside[:, None] & (column < WIDTH // PER_ELEMENT)[None, :]
    nothing = 0 if BITS == 4 else 0.0
    w_NC = tl.load(w + row[:, None] * (WIDTH // PER_ELEMENT) + column[None, :], mask=mask, other=nothing)
    if BITS == 16:
        return w_NC
    # Which power of two holds for a column is known to the compiler, so the selections cost nothing.
    c = tl.arange(0, STEP)
    first = at // 32
    power_NC = tl.zeros([1, STEP], tl.int32)
    for group in tl.static_range(0, STEP // 32):
        if group % SCALES == 0:
            n = first + group + tl.zeros_like(row)
            there = inside & (n < WIDTH // 32)
            scales = tl.load(scale + row * (WIDTH // 32 // SCALES) + n // SCALES, mask=there, other=0).to(tl.int32)
        power = (scales >> ((first + group) % SCALES * 8)) & 255
        power_NC = tl.where((c < 32 * group)[None, :], power_NC, power[:, None])
    if BITS == 8 and PTX:
        factor_NC = tl.where(power_NC == 0, 1 << 6, power_NC << 7).to(tl.int16).to(tl.bfloat16, bitcast=True)
        factor_NC = tl.broadcast_to(factor_NC, [row.shape[0], STEP])
        return tl.inline_asm_elementwise(
            E4M3_TIMES_BF16, "=r,=r,r,r,r", [w_NC, factor_NC], dtype=tl.bfloat16, is_pure=True, pack=4
        )
    if BITS == 4:
        both = w_NC.to(tl.int32)
        values_NC = tl.join(_e2m1(both & 15), _e2m1(both >> 4)).reshape(row.shape[0], STEP)
    else:
        values_NC = w_NC.to(tl.float32)
    # 2 ** (power - 127) by its bits; the power 0 is a subnormal number.
    factor_NC = tl.where(power_NC == 0, 1 << 22, power_NC << 23).to(tl.float32, bitcast=True)
    return (values_NC * factor_NC).to(dtype)


@triton.jit
def _e2m1(bits):
    """The float32 number of four bits: sign, two bits of exponent with bias 1, one of mantissa."""
    magnitude = bits & 7
    # Exponent and mantissa in their float32 places, the bias raised from 1 to 127; zero and a half have no exponent.
    normal = ((magnitude << 22) + (126 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 2, magnitude.to(tl.float32) * 0.5, normal)
    return tl.where(bits > 7, -value, value)
