"""Sessions: every run is an append-only file of its events, written as they happen."""
