"""An HTTP proxy in front of a server: it counts requests, takes its time, and loses answers as told."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Fault:
    """What happens to one request of ``method`` (of ``times`` of them).

    ``forward``: whether the server sees it. ``status``: what the client is told; None: the connection ends.
    ``keep``: how many bytes of the real body the client gets, of the length that it was promised.
    """

    method: str
    forward: bool
    status: int | None = None
    body: bytes = b""
    keep: int | None = None
    raw: bytes | None = None
    hang_seconds: float = 0
    times: int = 1


class BadDayProxy(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, upstream: str, *, delay_seconds: float = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream.removeprefix("http://")
        self.delay_seconds = delay_seconds
        self.requests: list[tuple[str, str]] = []
        self.faults: list[Fault] = []
        #: Called once, between the request and its answer: the moment for a rival.
        self.meanwhile: Callable[[], None] | None = None
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def next_fault(self, method: str) -> Fault | None:
        with self.lock:
            for fault in self.faults:
                if fault.method == method and fault.times > 0:
                    fault.times -= 1
                    return fault
        return None

    def close(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away in the middle is a client's good right."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    server: BadDayProxy
    _upstream: http.client.HTTPConnection | None = None

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.requests.append((self.command, self.path))
        if self.server.delay_seconds:
            time.sleep(self.server.delay_seconds)
        fault = self.server.next_fault(self.command)
        answer = self._forwarded(body) if fault is None or fault.forward else None
        meanwhile, self.server.meanwhile = self.server.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        if fault is None:
            assert answer is not None
            self._answer(*answer)
        else:
            self._misbehave(fault, answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

    def finish(self) -> None:
        super().finish()
        if self._upstream is not None:
            self._upstream.close()

    def _forwarded(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        # One connection to the server for each that we have from a client.
        if self._upstream is None:
            self._upstream = http.client.HTTPConnection(self.server.upstream, timeout=60)
        connection = self._upstream
        # The Host stays the client's: it is part of what was signed.
        headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
        connection.request(self.command, self.path, body=body or None, headers=headers)
        response = connection.getresponse()
        return response.status, response.getheaders(), response.read()

    def _misbehave(self, fault: Fault, answer: tuple[int, list[tuple[str, str]], bytes] | None) -> None:
        if fault.hang_seconds:
            time.sleep(fault.hang_seconds)
        if fault.raw is not None:
            self.wfile.write(fault.raw)
        elif fault.keep is not None and answer is not None:
            status, headers, body = answer
            self._answer(status, headers, body, keep=fault.keep)
        elif fault.status is not None:
            return self._answer(fault.status, [("Content-Length", str(len(fault.body)))], fault.body)
        self.wfile.flush()
        self.close_connection = True
        return None

    def _answer(
        self, status: int, headers: list[tuple[str, str]], body: bytes, *, keep: int | None = None
    ) -> None:
        self.send_response_only(status)
        names = {name.lower() for name, _ in headers}
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "keep-alive"):
                self.send_header(name, value)
        if "content-length" not in names and status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status != 204:
            self.wfile.write(body if keep is None else body[:keep])
        self.wfile.flush()
