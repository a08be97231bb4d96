"""Lines into place: alignment, indentation, whole texts."""

from text_wrapper.wrap import split_paragraphs, wrap

ALIGNMENTS = ("left", "right", "center")


def align(line, width, alignment):
    """One line padded for its place in a column; never with trailing spaces."""
    if alignment not in ALIGNMENTS:
        raise ValueError(f"alignment is one of {', '.join(ALIGNMENTS)}")
    gap = max(width - len(line), 0)
    if alignment == "right":
        return " " * width + line
    if alignment == "center":
        return " " * (gap // 2) + line
    return line


def indent_block(lines, first, rest):
    """The lines with `first` spaces before the first of them and `rest` before the others."""
    indented = []
    for number, line in enumerate(lines):
        margin = first if number == 0 else rest
        indented.append(" " * margin + line)
    return indented


def bullet_list(items, width, bullet="- "):
    """Each item wrapped beside its bullet."""
    lines = []
    for item in items:
        wrapped = wrap(item, width - len(bullet))
        hanging = indent_block(wrapped, 0, len(bullet))
        lines.append(bullet + hanging[0])
        lines.extend(hanging[1:])
    return lines


def layout(text, width, alignment="left"):
    """A whole text: its paragraphs wrapped and aligned, an empty line between two of them."""
    blocks = []
    for paragraph in split_paragraphs(text):
        lines = [align(line, width, alignment) for line in wrap(paragraph, width)]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)
