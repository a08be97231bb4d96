"""A server made with the official SDK, over stdio or, with a port as argument, over HTTP. Run as a program."""

import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("sdk")


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Fail."""
    raise ValueError("it went wrong")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
