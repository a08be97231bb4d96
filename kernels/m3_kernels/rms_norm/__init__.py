"""Gemma's RMSNorm, with the residual addition that precedes it."""

from m3_kernels.registry import Op, register
from m3_kernels.rms_norm import reference

rms_norm = register(Op(name="rms_norm", reference=reference.rms_norm, kernel="m3_kernels.rms_norm.kernel:rms_norm"))
