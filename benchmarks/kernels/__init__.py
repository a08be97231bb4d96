"""Kernels against their references, the machine's ceilings and the best of torch, in one process."""
