"""A Hugging Face Hub on the loopback interface: the few requests that huggingface_hub makes for a snapshot and a commit.

Repositories are folders below a root. ``gated`` names answer 403 to everything, ``read_only`` ones to writes.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """A running server: ``url``, its ``root``, and every ``METHOD path`` that was asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.gated: set[str] = set()
        self.read_only: set[str] = set()
        self.requests: list[str] = []
        self.url = ""

    def files(self, repo: str) -> list[Path] | None:
        folder = self.root / repo
        return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else None


@contextlib.contextmanager
def serve_hub(root: Path) -> Iterator[Hub]:
    hub = Hub(root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._read("GET")

    def do_HEAD(self) -> None:
        self._read("HEAD")

    def _read(self, method: str) -> None:
        path = self._note(method)
        parts = path.strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            self._repository("/".join(parts[2:4]), parts[4:])
        elif "resolve" in parts:
            at = parts.index("resolve")
            self._file("/".join(parts[:at]), parts[at + 1], "/".join(parts[at + 2 :]))
        else:
            self._fail(404, "EntryNotFound")

    def _repository(self, repo: str, rest: list[str]) -> None:
        files = self.hub.files(repo)
        if repo in self.hub.gated:
            self._fail(403, "GatedRepo")
        elif files is None:
            self._fail(404, "RepoNotFound")
        elif len(rest) > 1 and rest[1] not in ("main", COMMIT):
            self._fail(404, "RevisionNotFound")
        else:
            names = [path.relative_to(self.hub.root / repo).as_posix() for path in files]
            if rest and rest[0] == "tree":
                tree = [
                    {"type": "file", "path": name, "size": path.stat().st_size, "oid": COMMIT}
                    for name, path in zip(names, files, strict=True)
                ]
                self._json(tree)
            else:
                self._json({"id": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in names]})

    def _file(self, repo: str, revision: str, name: str) -> None:
        path = self.hub.root / repo / name
        if repo in self.hub.gated:
            self._fail(403, "GatedRepo")
        elif self.hub.files(repo) is None:
            self._fail(404, "RepoNotFound")
        elif revision not in ("main", COMMIT):
            self._fail(404, "RevisionNotFound")
        elif not path.is_file():
            self._fail(404, "EntryNotFound")
        else:
            data = path.read_bytes()
            headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
            self._answer(200, data, "application/octet-stream", headers)

    def do_POST(self) -> None:
        path = self._note("POST")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = path.strip("/").split("/")
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
            if repo in self.hub.read_only:
                self._fail(403, "Forbidden")
                return
            (self.hub.root / repo).mkdir(parents=True, exist_ok=True)
            self._json({"url": f"{self.hub.url}/{repo}"})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif parts[4:5] == ["preupload"]:
            files = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
            self._json({"files": files})
        elif parts[4:5] == ["commit"]:
            repo = "/".join(parts[2:4])
            for line in body.splitlines():
                operation = json.loads(line)
                if operation["key"] == "file":
                    value = operation["value"]
                    (self.hub.root / repo / value["path"]).write_bytes(base64.b64decode(value["content"]))
            self._json({"commitUrl": f"{self.hub.url}/{repo}/commit/{COMMIT}", "commitOid": COMMIT, "success": True})
        else:
            self._fail(404, "EntryNotFound")

    def _note(self, method: str) -> str:
        path = unquote(urlparse(self.path).path)
        self.hub.requests.append(f"{method} {path}")
        return path

    def _json(self, data: Any) -> None:
        self._answer(200, json.dumps(data).encode(), "application/json", {"X-Repo-Commit": COMMIT})

    def _fail(self, status: int, code: str) -> None:
        self._answer(status, b"{}", "application/json", {"X-Error-Code": code, "X-Error-Message": code})

    def _answer(self, status: int, data: bytes, kind: str, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass
