"""Which experts a token goes through, and with which weights."""

from m3_kernels.choose_experts import reference
from m3_kernels.registry import Op, register

choose_experts = register(
    Op(
        name="choose_experts",
        reference=reference.choose_experts,
        kernel="m3_kernels.choose_experts.kernel:choose_experts",
    )
)
