"""Asking a server: one request a connection, redirects followed, busy servers asked again."""

import http.client
import time

from http_client.url import encode_query, parse_url, resolve

REDIRECTS = (301, 302, 303, 307, 308)
BUSY = (429, 502, 503, 504)


class HTTPError(Exception):
    """The server answered, but not with success."""

    def __init__(self, status, url):
        super().__init__(f"{status} for {url}")
        self.status = status
        self.url = url


class Response:
    """A complete answer of a server."""

    def __init__(self, status, headers, body):
        self.status = status
        self.headers = {name.lower(): value for name, value in headers}
        self.body = body

    @property
    def text(self):
        return self.body.decode("utf-8")

    @property
    def is_redirect(self):
        return self.status in REDIRECTS and "location" in self.headers


def may_retry(status, attempt, retries):
    """Whether to ask again after this status; attempts count from 0."""
    return attempt < retries and status not in BUSY


class Client:
    """Asks for pages.

    `retries` is how often a busy server is asked again, `wait` the seconds before the first of these.
    """

    def __init__(self, retries=2, wait=0.5, timeout=10, max_redirects=5):
        self.retries = retries
        self.wait = wait
        self.timeout = timeout
        self.max_redirects = max_redirects

    def get(self, url, parameters=None):
        """The answer to a GET, after redirects. Raises HTTPError for a status of 400 and above."""
        if parameters:
            url = f"{url}?{encode_query(parameters)}"
        for _ in range(self.max_redirects + 1):
            response = self.ask(url)
            if not response.is_redirect:
                return response
            url = resolve(url, response.headers["location"])
        raise HTTPError(response.status, url)

    def ask(self, url):
        """One answer without following it, with as many attempts as allowed."""
        attempt = 0
        while True:
            response = self.send(url)
            if response.status < 400:
                return response
            if not may_retry(response.status, attempt, self.retries):
                raise HTTPError(response.status, url)
            time.sleep(self.wait * 2**attempt)
            attempt += 1

    def send(self, url):
        """One request over a connection of its own."""
        address = parse_url(url)
        connection = http.client.HTTPConnection(address.host, address.port, timeout=self.timeout)
        try:
            connection.request("GET", address.path, headers={"Accept": "*/*"})
            answer = connection.getresponse()
            return Response(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()
