"""A conversation with a person.

`session` opens and ends it, `talk` turns what is said into runs of the loop, `inbox` holds what waits for its turn,
`commands` are the lines with a slash, and `meter` counts what it costs. What it looks like lies in `m3agent.ui`.
"""
