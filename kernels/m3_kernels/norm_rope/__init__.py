"""Norm every head and rotate its first dimensions by position."""

from m3_kernels.norm_rope import reference
from m3_kernels.registry import Op, register

norm_rope = register(Op(name="norm_rope", reference=reference.norm_rope))
