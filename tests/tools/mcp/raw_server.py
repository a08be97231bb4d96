"""A server without the SDK, which behaves as its argument says. Run as a program."""

import json
import os
import subprocess
import sys
import time

HOW = sys.argv[1] if len(sys.argv) > 1 else ""
TOOLS = [
    {"name": "echo", "description": "Say it again.",
     "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}}},
    {"name": "look", "description": "What it sees.", "inputSchema": {"type": "object"}},
    {"name": "e c:h/o", "inputSchema": {"type": "object"}},
    {"name": "e_c_h_o", "inputSchema": {"type": "object"}},
    {"name": "huge", "description": "x" * 5000, "inputSchema": {"type": "object", "description": "x" * 30_000}},
]  # fmt: skip


def send(**message):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def see(path):
    try:
        return open(path).read()
    except OSError as error:
        return error.strerror


def look():
    made = []
    for place in ("written", "/tmp/written", os.path.expanduser("~/written")):
        try:
            open(place, "w").close()
            made.append(place)
        except OSError:
            pass
    return {
        "env": see(".env"),
        "made": made,
        "given": os.environ.get("GIVEN_TOKEN"),
        "net": see("/proc/net/dev").count(":"),
    }


def call(ident, name, arguments):
    if HOW == "hang":
        time.sleep(600)
    if HOW == "die":
        print("it is all too much", file=sys.stderr)
        os._exit(3)
    if HOW == "die-once" and not os.path.exists(os.environ["MARK"]):
        open(os.environ["MARK"], "w").close()
        os._exit(3)
    if HOW == "flood":
        while True:
            send(method="notifications/message", params={"level": "info", "data": "x" * 1000})
    if HOW == "endless-line":
        while True:
            sys.stdout.write("x" * 65536)
    if HOW == "daemon":
        subprocess.Popen(["sleep", os.environ["SECONDS_APART"]], start_new_session=True)
    if HOW == "junk":
        sys.stdout.write('hello\n{"a": 1}\n[]\n\n{"jsonrpc": "2.0", "id": 99, "result": {}}\n' + "\0\xff\n")
    if HOW == "refuse":
        return send(id=ident, error={"code": -32602, "message": "no such\nthing"})
    if HOW == "ask-back":
        send(id="s1", method="sampling/createMessage", params={"messages": [], "maxTokens": 1})
        send(id="s2", method="roots/list")
    if HOW == "image":
        content = [{"type": "text", "text": "see"}, *json.loads(see(os.environ["BLOCKS"])),
                   {"type": "resource_link", "uri": "file:///a", "name": "a"},
                   {"type": "audio", "data": "aGVs", "mimeType": "audio/wav"}]  # fmt: skip
        return send(id=ident, result={"content": content})
    if HOW == "long":
        return send(id=ident, result={"content": [{"type": "text", "text": "begin " + "x" * 2_000_000 + " end"}]})
    text = json.dumps(look()) if name == "look" else f"{name} {arguments.get('text')}"
    send(id=ident, result={"content": [{"type": "text", "text": text}], "isError": HOW == "error"})


def main():
    if HOW == "no-start":
        print("cannot find my database", file=sys.stderr)
        sys.exit(1)
    if HOW == "silent":
        time.sleep(600)
    for line in sys.stdin:
        message = json.loads(line)
        method, ident = message.get("method"), message.get("id")
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            send(
                id=ident,
                result={
                    "protocolVersion": version,
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "raw", "version": "1"},
                },
            )
        elif method == "tools/list":
            send(id=ident, result={"tools": TOOLS})
        elif method == "tools/call":
            call(ident, message["params"]["name"], message["params"].get("arguments", {}))
        elif ident is not None and method:
            send(id=ident, error={"code": -32601, "message": "unknown"})


main()
