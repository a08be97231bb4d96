"""Which calls a person's rules allow, ask for or deny, and which commands are always asked for.

`command_line` reads a line of bash into the commands that it runs, `wrappers` sees through what runs other commands,
`dangerous` knows what destroys work, and `rules` holds the person's rules. `m3agent.approval` decides with them.

Not covered: what a program that is allowed does itself. The sandbox is the boundary; rules save questions.
"""
