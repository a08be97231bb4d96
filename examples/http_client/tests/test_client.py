import pytest

from http_client import Client, HTTPError


@pytest.fixture
def client():
    return Client(retries=3, wait=0.001, timeout=2)


def test_a_page(server, client):
    server.answers["/"] = [(200, {}, "grüß dich".encode())]
    assert client.get(server.url).text == "grüß dich"


def test_parameters(server, client):
    server.answers["/find?q=tea"] = [(200, {}, b"ok")]
    assert client.get(server.url + "/find", {"q": "tea"}).text == "ok"


def test_redirects_are_followed(server, client):
    server.answers["/old"] = [(301, {"Location": "/new"}, b"")]
    server.answers["/new"] = [(200, {}, b"here")]
    assert client.get(server.url + "/old").text == "here"


def test_a_circle_of_redirects_ends(server, client):
    server.answers["/a"] = [(302, {"Location": "/a"}, b"")]
    with pytest.raises(HTTPError, match="302"):
        client.get(server.url + "/a")
    assert len(server.seen) == 6


def test_a_busy_server_is_asked_again(server, client):
    server.answers["/"] = [(503, {}, b""), (503, {}, b""), (200, {}, b"awake")]
    assert client.get(server.url).text == "awake"
    assert len(server.seen) == 3


def test_a_server_that_stays_busy(server, client):
    server.answers["/"] = [(503, {}, b"")]
    with pytest.raises(HTTPError, match="503"):
        client.get(server.url)
    assert len(server.seen) == 4


def test_a_missing_page_is_asked_for_once(server, client):
    with pytest.raises(HTTPError, match="404"):
        client.get(server.url + "/none")
    assert len(server.seen) == 1
