"""The gated activation of feed-forward parts."""

from m3_kernels.registry import Op, register
from m3_kernels.swiglu import reference

swiglu = register(Op(name="swiglu", reference=reference.swiglu, kernel="m3_kernels.swiglu.kernel:swiglu"))
