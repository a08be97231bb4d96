"""Forges: where issues live and pull requests go. It knows no repository's code and no model."""
