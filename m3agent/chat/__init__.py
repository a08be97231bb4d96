"""A conversation with a person.

`session` opens and ends it, `talk` turns what is said into runs of the loop, `inbox` holds what waits for its turn,
`commands` are the lines with a slash, `meter` counts what it costs and `status` tells it in a line. What it looks like
lies in `m3agent.ui`.
"""
