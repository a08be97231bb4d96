"""Tools of a coding agent that work without any model: read, search, edit, run, test."""
