"""Score, choose and attend for one or a few new tokens a sequence, in one launch."""

from m3_kernels.msa_decode import reference
from m3_kernels.registry import Op, register

msa_decode = register(
    Op(name="msa_decode", reference=reference.msa_decode, kernel="m3_kernels.msa_decode.kernel:msa_decode")
)
