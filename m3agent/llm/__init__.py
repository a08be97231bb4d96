"""Models behind one seam: `protocol.py` says what a model is, the other files are its implementations."""
