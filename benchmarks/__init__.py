"""Measurements that can be repeated: held-out bugs, each with its own repository, and what `m3 fix` does with them."""
