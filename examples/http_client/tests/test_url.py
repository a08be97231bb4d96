import pytest

from http_client import Address, parse_url, resolve
from http_client.url import encode_query


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://example.org", Address("example.org", 80, "/")),
        ("http://example.org:8080/a/b?c=d#e", Address("example.org", 8080, "/a/b?c=d")),
        ("HTTP://example.org/", Address("example.org", 80, "/")),
    ],
)
def test_parts(url, address):
    assert parse_url(url) == address


@pytest.mark.parametrize("url", ["example.org", "ftp://example.org", "http:///path"])
def test_no_address(url):
    with pytest.raises(ValueError, match=r"http|host"):
        parse_url(url)


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/new", "http://a.org:80/new"),
        ("next", "http://a.org:80/docs/next"),
        ("http://b.org/x", "http://b.org/x"),
    ],
)
def test_locations(location, url):
    assert resolve("http://a.org/docs/old", location) == url


def test_query():
    assert encode_query({"q": "a b&c", "page": 2}) == "page=2&q=a%20b%26c"
    assert encode_query({"name": "Zoë"}) == "name=Zo%C3%AB"
