"""`python -m m3agent`: the command line, safe to start inside any repository.

The interpreter puts the working directory first on the path. The agent starts in other people's repositories, whose
`dataclasses.py` or `tools/` must not be imported in place of ours, so that entry moves to the end before anything else.
"""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:
        sys.path.append(sys.path.pop(0))

    from m3agent.cli import main

    main()
