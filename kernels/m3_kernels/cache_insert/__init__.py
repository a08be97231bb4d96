"""Write keys, values and index keys of new tokens into the paged cache, together."""

from m3_kernels.cache_insert import reference
from m3_kernels.registry import Op, register

cache_insert = register(Op(name="cache_insert", reference=reference.cache_insert))
