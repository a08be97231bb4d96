"""Paragraphs to lines."""

from text_wrapper.layout import align, indent_block, layout
from text_wrapper.wrap import split_paragraphs, wrap

__all__ = ["align", "indent_block", "layout", "split_paragraphs", "wrap"]
