"""Addresses of the web in their parts."""

from typing import NamedTuple


class Address(NamedTuple):
    """Where to connect, and what to ask for there."""

    host: str
    port: int
    path: str


def parse_url(url):
    """The address of an http URL; the path always begins with a slash."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.lower() != "http":
        raise ValueError(f"not an http address: {url}")
    rest, _, _fragment = rest.partition("#")
    place, slash, path = rest.partition("/")
    host, colon, port = place.partition(":")
    if not host:
        raise ValueError(f"no host in {url}")
    return Address(host, int(port) if colon else 80, slash + path or "/")


def resolve(base, location):
    """The URL that a Location header means, seen from the URL that was asked."""
    if "://" in location:
        return location
    address = parse_url(base)
    if location.startswith("/"):
        path = location
    else:
        folder, _, _name = address.path.rpartition("/")
        path = f"{folder}/{location}"
    return f"http://{address.host}:{address.port}{path}"


def encode_query(parameters):
    """Names and values as the part of a URL after the question mark, in the order of the names."""
    pairs = []
    for name, value in sorted(parameters.items()):
        pairs.append(f"{quote(name)}={quote(str(value))}")
    return "&".join(pairs)


def quote(text):
    """Text with everything but letters, digits and `-._~` written as %XX."""
    quoted = []
    for byte in text.encode("utf-8"):
        char = chr(byte)
        plain = byte < 128 and (char.isalnum() or char in "-._~")
        quoted.append(char if plain else f"%{byte:02X}")
    return "".join(quoted)
