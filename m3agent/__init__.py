"""m3: a coding agent for the terminal that runs on the user's own machine."""

__version__ = "0.1.0"
