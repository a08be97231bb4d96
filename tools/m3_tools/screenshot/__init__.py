"""Pictures for a model that sees: from a file, the clipboard, or a page in a browser; and two of them compared.

`decode` makes a `Picture` of whatever bytes came, in a process of its own; everything else here works on those.
"""
