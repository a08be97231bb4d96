"""The local engine: paged cache, scheduling, sampling and search over token ids; `chat` turns messages into them."""
