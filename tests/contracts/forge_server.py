"""A forge on a real socket that speaks the REST shapes of GitHub, GitLab or Gitea, as their references give them."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

Kind = Literal["github", "gitlab", "gitea"]
ROOTS: dict[Kind, str] = {"github": "/api/v3", "gitlab": "/api/v4", "gitea": "/api/v1"}
TOKEN = "t0ken-of-the-forge"
PROJECT = "ann/tool"


class ForgeServer:
    """One forge with the project `ann/tool`. What a test changes are the public fields."""

    def __init__(self, kind: Kind):
        self.kind = kind
        self.issues: dict[int, dict[str, Any]] = {}
        self.comments: dict[int, list[str]] = {}
        self.linked: dict[int, list[tuple[int, str]]] = {}
        """Pull requests that speak of an issue: number and title."""
        self.private = False
        self.failure: tuple[int, dict[str, str], object] | None = None
        """Status, headers and body of every answer, instead of the right one."""
        self.moved: dict[str, str] = {}
        """Paths that answer 301, and where to."""
        self.seen: list[tuple[str, str, str | None]] = []
        """Method, address and Authorization of every request."""
        self.opened: list[dict[str, Any]] = []
        """Bodies of the pull requests that were opened."""
        forge = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: Any) -> None: ...

            def do_GET(self) -> None:
                self._answer("GET", None)

            def do_POST(self) -> None:
                self._answer("POST", json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def _answer(self, method: str, body: Any) -> None:
                token = self.headers.get("Authorization")
                forge.seen.append((method, self.path, token))
                status, headers, value = forge.answer(method, self.path, token, body)
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                for name, text in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self._server.server_port}"
        self.api_url = f"{self.origin}{ROOTS[kind]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which the forge's own programs find it."""
        match self.kind:
            case "github":
                return {"GITHUB_API_URL": self.api_url, "GH_TOKEN": TOKEN}
            case "gitlab":
                return {"GITLAB_HOST": self.origin, "GITLAB_TOKEN": TOKEN}
            case "gitea":
                return {"GITEA_SERVER_URL": self.origin, "GITEA_TOKEN": TOKEN}

    def web(self, number: int) -> str:
        dash = "/-" if self.kind == "gitlab" else ""
        return f"{self.origin}/{PROJECT}{dash}/issues/{number}"

    def add(self, number: int, title: str, body: str, comments: list[str] | None = None, labels: Any = ()) -> None:
        """An issue in the shape of this forge."""
        self.comments[number] = list(comments or ())
        count = len(self.comments[number])
        if self.kind == "gitlab":
            self.issues[number] = {
                "id": 1000 + number, "iid": number, "project_id": 1, "title": title, "description": body,
                "state": "opened", "labels": list(labels), "author": {"id": 1, "username": "ann", "name": "Ann"},
                "user_notes_count": count, "web_url": self.web(number), "confidential": False,
            }  # fmt: skip
            return
        self.issues[number] = {
            "id": 1000 + number, "number": number, "title": title, "body": body, "state": "open",
            "user": {"id": 1, "login": "ann"}, "labels": [{"id": 1, "name": name} for name in labels],
            "comments": count, "html_url": self.web(number), "url": f"{self.api_url}/repos/{PROJECT}/issues/{number}",
        }  # fmt: skip

    def answer(self, method: str, address: str, token: str | None, body: Any) -> tuple[int, dict[str, str], object]:
        parts = urlsplit(address)
        path = parts.path
        if self.failure:
            return self.failure
        if path in self.moved:
            return 301, {"Location": self.moved[path]}, {"message": "Moved Permanently"}
        right = {f"Bearer {TOKEN}", f"token {TOKEN}" if self.kind == "gitea" else ""}
        if token is not None and token not in right:
            return 401, {}, {"message": "401 Unauthorized" if self.kind == "gitlab" else "Bad credentials"}
        if token is None and (self.private or method == "POST"):
            return 404, {}, {"message": "404 Project Not Found" if self.kind == "gitlab" else "Not Found"}
        root = f"{ROOTS[self.kind]}/{'projects' if self.kind == 'gitlab' else 'repos'}/"
        wanted = path.removeprefix(root)
        project = "ann%2Ftool" if self.kind == "gitlab" else PROJECT
        if not path.startswith(root) or not (wanted == project or wanted.startswith(f"{project}/")):
            return 404, {}, {"message": f"Not Found: {unquote(path)}"}
        rest = wanted.removeprefix(project).strip("/").split("/")
        if method == "POST":
            return self._open(rest, body)
        if rest == [""]:
            return 200, {}, {"id": 1, "default_branch": "main", "full_name": PROJECT}
        if rest[0] != "issues" or len(rest) not in (2, 3) or int(rest[1]) not in self.issues:
            return 404, {}, {"message": "Not Found"}
        number = int(rest[1])
        if len(rest) == 2:
            return 200, {}, self.issues[number]
        values = self._list(number, rest[2])
        return (404, {}, {"message": "Not Found"}) if values is None else self._page(values, parts.path, parts.query)

    def _list(self, number: int, name: str) -> list[dict[str, Any]] | None:
        comments, linked = self.comments[number], self.linked.get(number, [])
        match (self.kind, name):
            case ("gitlab", "notes"):
                told = [
                    {"id": i, "body": t, "system": False, "author": {"username": "bo"}} for i, t in enumerate(comments)
                ]
                return [*told, {"id": 99, "body": "assigned to @ann", "system": True, "author": {"username": "ann"}}]
            case ("gitlab", "related_merge_requests"):
                return [{"id": n, "iid": n, "title": t, "state": "opened"} for n, t in linked]
            case ("github" | "gitea", "comments"):
                return [{"id": i, "body": text, "user": {"login": "bo"}} for i, text in enumerate(comments)]
            case ("github", "timeline"):
                other = [{"event": "labeled", "label": {"name": "bug"}}, {"event": "cross-referenced", "source": {
                    "type": "issue", "issue": {"number": 77, "title": "only an issue", "state": "open"}}}]  # fmt: skip
                requests = [{"number": n, "title": t, "state": "open", "pull_request": {"url": "…"}} for n, t in linked]
                return [*other, *({"event": "cross-referenced", "source": {"issue": r}} for r in requests)]
            case ("gitea", "timeline"):
                requests = [
                    {"number": n, "title": t, "state": "open", "pull_request": {"merged": False}} for n, t in linked
                ]
                return [{"type": "label", "body": "1"}, *({"type": "pull_ref", "ref_issue": r} for r in requests)]
        return None

    def _page(self, values: list[Any], path: str, query: str) -> tuple[int, dict[str, str], object]:
        asked = {name: value[0] for name, value in parse_qs(query).items()}
        size, page = min(100, int(asked.get("per_page", "30"))), int(asked.get("page", "1"))
        links = []
        if page * size < len(values):
            links.append(f'<{self.origin}{path}?per_page={size}&page={page + 1}>; rel="next"')
            links.append(f'<{self.origin}{path}?per_page={size}&page={-(-len(values) // size)}>; rel="last"')
        return 200, {"Link": ", ".join(links)} if links else {}, values[(page - 1) * size : page * size]

    def _open(self, rest: list[str], body: Any) -> tuple[int, dict[str, str], object]:
        if rest != ["merge_requests" if self.kind == "gitlab" else "pulls"]:
            return 404, {}, {"message": "Not Found"}
        head = body.get("source_branch" if self.kind == "gitlab" else "head")
        if any(head == other.get("source_branch", other.get("head")) for other in self.opened):
            said = f"A pull request already exists for {head}."
            return (409, {}, {"message": [said]}) if self.kind == "gitlab" else (422, {}, {"message": said})
        self.opened.append(body)
        number = 100 + len(self.opened)
        address = f"{self.origin}/{PROJECT}/{'-/merge_requests' if self.kind == 'gitlab' else 'pull'}/{number}"
        return 201, {}, {"number": number, "iid": number, "html_url": address, "web_url": address, "draft": True}

    def limit(self, seconds: int = 600) -> None:
        """From now on every request is over the rate limit, in this forge's way."""
        reset = str(int(time.time()) + seconds)
        if self.kind == "github":
            headers = {"X-RateLimit-Limit": "60", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": reset}
            self.failure = (403, headers, {"message": "API rate limit exceeded for 127.0.0.1."})
            return
        self.failure = (429, {"Retry-After": str(seconds), "RateLimit-Remaining": "0"}, b"Retry later\n")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
