"""The protocol over real sockets, and who is not let in."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgespec.demo.page import page_source
from edgespec.demo.protocol import Settings
from edgespec.demo.server import Events, Server
from edgespec.demo.service import Service
from tests.demo.conftest import WAIT_S


@pytest.fixture
def server(tmp_path: Path, bundles: Path) -> Iterator[Server]:
    events = Events()
    service = Service(tmp_path / "state", bundles, events.emit, settings=Settings(threads=1, max_new_tokens=30))
    service.open(bundles / "first")
    assert service.wait(WAIT_S)
    made = Server(events, service.receive, service.state)
    yield made
    made.close()
    service.close()


def ask(server: Server, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    try:
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def command(server: Server, **data: Any) -> int:
    return ask(server, "POST", "/command", json.dumps(data).encode(), X_Token=server.token, Content_Type="application/json")[0]


class Stream:
    """Server-sent events of a server."""

    def __init__(self, server: Server) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
        self._connection.request("GET", f"/events?token={server.token}")
        self._answer = self._connection.getresponse()
        assert self._answer.getheader("Content-Type") == "text/event-stream"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while line := self._answer.readline():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])

    def until(self, kind: str) -> list[dict[str, Any]]:
        found = []
        for event in self:
            found.append(event)
            if event["type"] == kind:
                return found
        raise AssertionError(f"the stream ended before {kind}")

    def close(self) -> None:
        self._answer.close()
        self._connection.close()


def test_a_whole_conversation_over_sockets(server: Server) -> None:
    stream = Stream(server)
    state = stream.until("state")[-1]
    assert (state["bundle"]["name"], state["messages"]) == ("first", [])
    assert command(server, type="send", text="hello") == 204
    events = stream.until("finished")
    text = "".join(event["text"] for event in events if event["type"] == "piece")
    assert events[-1]["new_tokens"] == 30
    after = stream.until("state")[-1]
    assert "".join(part for part, _ in after["messages"][1]["parts"]) == text
    second = Stream(server)  # the page was loaded again, or a second one
    assert second.until("state")[-1]["messages"] == after["messages"]
    assert command(server, type="compare", text="hello") == 204
    assert stream.until("compared")[-1] == second.until("compared")[-1]
    stream.close()
    assert command(server, type="clear") == 204
    second.until("state")
    second.close()


def test_errors_come_as_events(server: Server) -> None:
    stream = Stream(server)
    assert command(server, type="send", text="") == 204
    assert stream.until("error")[-1]["text"] == "Type a message first."
    stream.close()


def test_the_page_is_served_with_a_policy(server: Server) -> None:
    status, headers, body = ask(server, "GET", f"/?token={server.token}")
    assert status == 200
    nonce = headers["Content-Security-Policy"].partition("script-src 'nonce-")[2].partition("'")[0]
    assert len(nonce) > 16
    assert f'<script nonce="{nonce}">' in body.decode()
    assert "{{" not in body.decode()
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    again = ask(server, "GET", f"/?token={server.token}")[1]["Content-Security-Policy"]
    assert nonce not in again, "a nonce is used once"


@pytest.mark.parametrize(
    "request_",
    [
        ("GET", "/", {}),
        ("GET", "/?token=", {}),
        ("GET", "/?token=wrong", {}),
        ("GET", "/events?token=wrong", {}),
        ("GET", "/?token=é", {}),
        ("GET", "/?token={token}", {"Host": "evil.example"}),
        ("GET", "/?token={token}", {"Host": "127.0.0.1:1"}),
        ("GET", "/events?token={token}", {"Origin": "http://evil.example"}),
        ("POST", "/command", {"Content-Type": "application/json"}),
        ("POST", "/command?token={token}", {"Content-Type": "application/json"}),
        ("POST", "/command", {"Content-Type": "application/json", "X-Token": "{token}", "Origin": "null"}),
        ("POST", "/command", {"Content-Type": "application/json", "X-Token": "{token}", "Origin": "https://127.0.0.1:{port}"}),
    ],
)
def test_nobody_else_is_let_in(server: Server, request_: tuple[str, str, dict[str, str]]) -> None:
    method, path, headers = request_

    def filled(text: str) -> str:
        return text.replace("{token}", server.token).replace("{port}", str(server.port)).replace("é", "%C3%A9")

    sent = {name.replace("-", "_"): filled(value) for name, value in headers.items()}
    status, answered, body = ask(server, method, filled(path), b"{}" if method == "POST" else None, **sent)
    assert status == 403
    assert server.token.encode() not in body
    assert "Access-Control-Allow-Origin" not in answered


@pytest.mark.parametrize(
    ("path", "kind", "body", "status"),
    [
        ("/other", "application/json", b"{}", 404),
        ("/command", "text/plain", b"{}", 415),
        ("/command", "application/json", b" " * (2**20 + 1), 413),
    ],
)
def test_requests_that_are_none(server: Server, path: str, kind: str, body: bytes, status: int) -> None:
    try:
        found = ask(server, "POST", path, body, X_Token=server.token, Content_Type=kind)[0]
    except ConnectionError:  # it was closed while a body was being sent that nobody reads
        found = status
    assert found == status
    assert ask(server, "GET", f"/nothing?token={server.token}")[0] == 404
    assert ask(server, "DELETE", "/")[0] == 501


def test_it_listens_on_loopback_only(server: Server) -> None:
    assert server._server.server_address[0] == "127.0.0.1"
    assert server.url.startswith(f"http://127.0.0.1:{server.port}/?token=")


def test_half_a_request_and_a_page_that_goes_do_no_harm(server: Server) -> None:
    for data in (b"GET / HT", b"\0\xff" * 50 + b"\r\n\r\n", b"POST /command HTTP/1.1\r\nContent-Length: x\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
            connection.sendall(data)
    stream = Stream(server)
    stream.until("state")
    stream.close()
    assert command(server, type="send", text="hello") == 204
    other = Stream(server)
    other.until("state")
    other.close()
    assert ask(server, "GET", f"/?token={server.token}")[0] == 200


def test_the_page_needs_nothing_from_elsewhere() -> None:
    source = page_source()
    assert "http" not in source.replace("http.server", "").replace("over HTTP", "")
    assert "innerHTML" not in source
    assert len(source.encode()) < 100_000
    assert source.count("<script") == source.count('<script nonce="{{nonce}}">') == 1


def test_the_command_prints_an_address_that_works(bundles: Path) -> None:
    command_ = [sys.executable, "-m", "edgespec", "demo", str(bundles / "first"), "--no-browser", "--threads", "1"]
    with subprocess.Popen(command_, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            port = int(url.partition("127.0.0.1:")[2].partition("/")[0])
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
            connection.request("GET", url.partition(str(port))[2])
            assert connection.getresponse().status == 200
            connection.close()
        finally:
            process.send_signal(2)
            try:
                status = process.wait(WAIT_S)
            finally:
                process.kill()  # where Ctrl-C is ignored, as in a shell's background job, this test fails and does not hang
        assert status == 130


def test_the_command_refuses_what_is_no_bundle(tmp_path: Path) -> None:
    for words, message in (([str(tmp_path)], "edgespec.json"), ([str(tmp_path), "--port", "99999"], "99999")):
        done = subprocess.run([sys.executable, "-m", "edgespec", "demo", *words], capture_output=True, text=True, timeout=WAIT_S)
        assert done.returncode == 2
        assert message in done.stderr
        assert len(done.stderr.splitlines()) == 1
