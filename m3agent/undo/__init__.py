"""Take back what the agent did to a person's files, the side effects of commands included.

A bare git repository in the state folder, with an index of its own, keeps a snapshot of the work tree before and after
every step. The person's index, refs, stash and ignored files are never touched.

Not covered: ignored files, nested repositories and submodules, files above 64 MiB, empty folders, owners and times,
and what git itself did (a commit stays).
"""
