"""Which licences a package may have so that its source trains m3-nano: an allow-list read from the package's metadata.

The order of trust: the `License-Expression` field, then the licence classifiers (all of them must be allowed), then a
short `License` field that is a known name, or whose first line is one. Anything else is unclear, and unclear is out.
"""

from __future__ import annotations

import re
from email.message import Message

ALLOWED = frozenset(
    {"MIT", "MIT-0", "MIT-CMU", "HPND", "BSD", "BSD-2-Clause", "BSD-3-Clause", "0BSD", "Apache-2.0", "PSF-2.0"}
    | {"Python-2.0", "ISC", "Zlib", "Unlicense", "CC0-1.0", "BSL-1.0"}
)
"""SPDX identifiers; `BSD` stands for a BSD licence whose clause count the metadata does not give."""

_CLASSIFIERS = {
    "MIT License": "MIT",
    "MIT No Attribution License (MIT-0)": "MIT-0",
    "BSD License": "BSD",
    "Apache Software License": "Apache-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "ISC License (ISCL)": "ISC",
    "zlib/libpng License": "Zlib",
    "The Unlicense (Unlicense)": "Unlicense",
    "Historical Permission Notice and Disclaimer (HPND)": "HPND",
    "CC0 1.0 Universal (CC0 1.0) Public Domain Dedication": "CC0-1.0",
}

_NAMES = (
    (r"(the )?mit( licen[sc]e)?", "MIT"),
    (r"(new |modified |simplified |revised )?bsd([ -]licen[sc]e)?|bsd[ -]like", "BSD"),
    (r"(the )?bsd[ -]?3([ -]clause)?( licen[sc]e)?|3-clause bsd( licen[sc]e)?", "BSD-3-Clause"),
    (r"bsd[ -]?2([ -]clause)?( licen[sc]e)?|2-clause bsd( licen[sc]e)?", "BSD-2-Clause"),
    (r"apache([ -]software)?([ -]licen[sc]e)?,?([ -]?(v|version )?2(\.0)?)?( licen[sc]e)?", "Apache-2.0"),
    (r"psf(-2\.0)?|python software foundation licen[sc]e|psfl", "PSF-2.0"),
    (r"isc([ -]licen[sc]e)?( \(iscl\))?", "ISC"),
    (r"zlib", "Zlib"),
    (r"0bsd", "0BSD"),
    (r"(the )?unlicense", "Unlicense"),
)

_REFUSED = re.compile(
    r"GPL|MPL|EPL|CDDL|CeCILL|EUPL|Mozilla|copyleft|proprietary|commercial|NVIDIA|non-?free", re.IGNORECASE
)


def allowed_licence(metadata: Message) -> str | None:
    """The licence of a package as one expression when it is allowed, else None.

    `metadata` is a METADATA or PKG-INFO file as `importlib.metadata` or `email` parses it.
    """
    if expression := _field(metadata, "License-Expression"):
        return expression if _expression_allowed(expression) else None
    classifiers = [
        str(c).split(" :: ")[-1] for c in metadata.get_all("Classifier") or [] if str(c).startswith("License ::")
    ]
    names = [c for c in classifiers if c not in ("OSI Approved", "DFSG approved")]
    if names:
        found = [_CLASSIFIERS.get(name) for name in names]
        known = [name for name in found if name is not None]
        return " OR ".join(dict.fromkeys(known)) if len(known) == len(found) else None
    return _known_name(_field(metadata, "License"))


def _field(metadata: Message, name: str) -> str:
    value = metadata.get(name)
    return "" if value is None or str(value).strip() in ("", "UNKNOWN") else str(value).strip()


def _expression_allowed(expression: str) -> bool:
    """An SPDX expression is allowed when every conjunct has an allowed alternative (parentheses are treated flatly)."""
    expression = expression.replace("Apache-2.0 WITH LLVM-exception", "Apache-2.0")
    if re.search(r"\bWITH\b", expression, re.IGNORECASE):
        return False
    flat = re.sub(r"[()]", " ", expression)
    if "(" in expression and re.search(r"\bOR\b", flat, re.IGNORECASE) and re.search(r"\bAND\b", flat, re.IGNORECASE):
        return all(part in ALLOWED for part in re.split(r"\s+(?:OR|AND)\s+", flat.strip(), flags=re.IGNORECASE))
    conjuncts = re.split(r"\s+AND\s+", flat.strip(), flags=re.IGNORECASE)
    return all(any(p.strip() in ALLOWED for p in re.split(r"\s+OR\s+", c, flags=re.IGNORECASE)) for c in conjuncts)


def _known_name(text: str) -> str | None:
    if not text or (len(text) < 400 and _REFUSED.search(text)):
        return None
    if text in ALLOWED:
        return text
    if len(text) < 100 and re.search(r"\s(AND|OR)\s", text):
        return text if _expression_allowed(text) else None
    first_line = text.splitlines()[0].strip().strip(".").lower()
    for pattern, name in _NAMES:
        if re.fullmatch(pattern, first_line):
            return name
    return None
