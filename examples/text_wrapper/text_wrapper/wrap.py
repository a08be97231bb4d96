"""Breaking text into lines no wider than a given number of characters."""


def split_paragraphs(text):
    """The paragraphs of a text: blocks of lines with empty lines between them."""
    paragraphs = []
    current = []
    for line in text.splitlines():
        if line.strip():
            current.append(line.strip())
        elif current:
            paragraphs.append(" ".join(current))
            current = []
    if current:
        paragraphs.append(" ".join(current))
    return paragraphs


def split_word(word, width):
    """A word in pieces of at most `width` characters."""
    return [word[start : start + width] for start in range(0, len(word), width)]


def wrap(text, width):
    """The words of one paragraph as lines of at most `width` characters.

    A word that is wider than a line is cut into pieces.
    """
    if width < 1:
        raise ValueError("a line has room for at least one character")
    lines = []
    line = ""
    for word in text.split():
        for piece in split_word(word, width):
            if not line:
                line = piece
            elif len(line) + len(piece) <= width:
                line += " " + piece
            else:
                lines.append(line)
                line = piece
    if line:
        lines.append(line)
    return lines


def shorten(text, width, ending="..."):
    """The text on one line, its end replaced when it does not fit."""
    line = " ".join(text.split())
    if len(line) <= width:
        return line
    return line[: width - len(ending)].rstrip() + ending
