"""What a model is asked about a screenshot, in the very words with which nano was trained."""

READ = "Read the text in this picture, line by line."
"""The answer: the rows of the picture from top to bottom, a line each, without indentation."""
ERROR = "Which error does this picture show, and where?"
"""The answer: the line of the error; then, on a line of its own, file:line, or the line number alone."""
LABEL = "What is the label of the marked widget in this picture?"
"""The answer: the label alone."""
