"""The page and the protocol over HTTP on loopback.

    GET  /?token=T          the page
    GET  /events?token=T    events, one JSON object each, as server-sent events
    POST /command           a command in JSON, with the token in the header X-Token

Other users and other pages of the browser can reach a loopback port too, so everything needs the token, which changes with every
start, and a request that says another Host or Origin is refused.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import queue
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from edgespec.demo.page import page, policy
from edgespec.demo.protocol import MOST_BYTES, Event

log = logging.getLogger(__name__)
HEARTBEAT_S = 15.0  # a comment after so long without an event shows whether the page is still there
MOST_WAITING = 10_000  # events for one page; one that reads none of them is dropped


class Events:
    """Hands every event to every page that listens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[queue.Queue[Event | None]] = set()

    def emit(self, event: Event) -> None:
        with self._lock:
            for listener in list(self._listeners):
                try:
                    listener.put_nowait(event)
                except queue.Full:
                    self._listeners.discard(listener)

    @contextlib.contextmanager
    def listening(self) -> Any:
        """A queue of the events from now on; None in it ends it."""
        listener: queue.Queue[Event | None] = queue.Queue(MOST_WAITING)
        with self._lock:
            self._listeners.add(listener)
        try:
            yield listener
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def end(self) -> None:
        """Let every listener go."""
        with self._lock:
            for listener in self._listeners:
                with contextlib.suppress(queue.Full):
                    listener.put_nowait(None)


class Server:
    """Serves on loopback until :meth:`close`. ``receive`` gets the commands' JSON."""

    def __init__(self, events: Events, receive: Callable[[bytes], None], state: Callable[[], Event], port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        self.events = events
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.owner = self
        self.receive = receive
        self.state = state
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="edgespec demo server", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Address of the page, with the token."""
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def allows(self, host: str | None, origin: str | None) -> bool:
        """Whether a request comes from this server's own page, and not from another name for this address or another page."""
        hosts = (f"127.0.0.1:{self.port}", f"localhost:{self.port}")
        return host in hosts and origin in (None, *(f"http://{name}" for name in hosts))

    def knows(self, token: str | None) -> bool:
        """Whether ``token`` is the right one."""
        return token is not None and hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())

    def close(self) -> None:
        self.events.end()
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    owner: Server

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        log.debug("a request failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "edgespec", ""
    timeout = 60

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        token = parse_qs(address.query).get("token", [None])[0]
        if not self._may(token):
            return
        if address.path == "/":
            self._send_page()
        elif address.path == "/events":
            self._send_events()
        else:
            self._answer(404, b"not found")

    def do_POST(self) -> None:
        # Whatever is refused, its body is not read, so the connection cannot serve another request.
        self.close_connection = True
        if not self._may(self.headers.get("X-Token")):
            return
        length = self.headers.get("Content-Length", "")
        if self.path != "/command":
            self._answer(404, b"not found")
        elif self.headers.get_content_type() != "application/json":
            self._answer(415, b"expected application/json")
        elif not (length.isascii() and length.isdecimal()):
            self._answer(411, b"expected a length")
        elif int(length) > MOST_BYTES:
            self._answer(413, b"too long")
        else:
            self.server.owner.receive(self.rfile.read(int(length)))
            self._answer(204, b"")

    def _may(self, token: str | None) -> bool:
        owner = self.server.owner
        if not owner.allows(self.headers.get("Host"), self.headers.get("Origin")) or not owner.knows(token):
            self.close_connection = True
            self._answer(403, b"refused: open the address that edgespec demo printed")
            return False
        return True

    def _send_page(self) -> None:
        nonce = secrets.token_urlsafe(16)
        self._answer(200, page(nonce).encode(), "text/html; charset=utf-8", policy(nonce))

    def _send_events(self) -> None:
        owner = self.server.owner
        with owner.events.listening() as listener:
            self.close_connection = True
            self._head(200, "text/event-stream", None)
            self.end_headers()
            with contextlib.suppress(ConnectionError, TimeoutError):
                self._send_event(owner.state())
                while True:
                    try:
                        event = listener.get(timeout=HEARTBEAT_S)
                    except queue.Empty:
                        self.wfile.write(b":\n\n")
                        continue
                    if event is None:
                        return
                    self._send_event(event)

    def _send_event(self, event: Event) -> None:
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8", content_policy: str | None = None) -> None:
        self._head(status, kind, content_policy)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def _head(self, status: int, kind: str, content_policy: str | None) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Security-Policy": content_policy or "default-src 'none'; frame-ancestors 'none'",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in headers.items():
            self.send_header(name, value)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
