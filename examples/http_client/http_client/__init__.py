"""A tiny HTTP client."""

from http_client.client import Client, HTTPError
from http_client.url import Address, parse_url, resolve

__all__ = ["Address", "Client", "HTTPError", "parse_url", "resolve"]
