"""A TCP proxy that loses what it is told to lose, at the word it is told to wait for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Proxy:
    """Between a client and a server on 127.0.0.1. Everything passes, until ``word`` comes from a client.

    ``lose`` says what happens then, once:

        "request"   it never reaches the server; both sides are cut
        "reply"     the server gets it and answers; the answer is dropped and both sides are cut
        "late"      the client is cut at once; the server gets it when ``release`` is called
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.word = b""
        self.lose = ""
        self.down = False
        self.happened = threading.Event()
        self.delivered = threading.Event()
        self._released = threading.Event()
        self._answered = threading.Event()
        self._muted: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, word: bytes, lose: str, *, stay_down: bool = False) -> None:
        """``stay_down``: after it happened no new connection is let through."""
        self.happened.clear()
        self.delivered.clear()
        self._released.clear()
        self._answered.clear()
        self.lose, self._stay_down = lose, stay_down
        self.word = word

    def release(self) -> None:
        self._released.set()

    def close(self) -> None:
        self.release()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.down:
                client.close()
                continue
            server = socket.create_connection(("127.0.0.1", self._server_port))
            threading.Thread(target=self._up, args=(client, server), daemon=True).start()
            threading.Thread(target=self._down, args=(client, server), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                if self.word and self.word in data:
                    self.word = b""
                    self._lose(client, server, data)
                    return
                server.sendall(data)
        _cut(client, server)

    def _down(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(1 << 16):
                if server in self._muted:
                    self._answered.set()
                else:
                    client.sendall(data)
        # Not cut here: a half that ended may be one whose other half is held back.
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)

    def _lose(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        self.down = self._stay_down
        if self.lose == "request":
            self.happened.set()
            _cut(client, server)
        elif self.lose == "reply":
            # From here on the other half drops what the server says.
            self._muted.add(server)
            server.sendall(data)
            self._answered.wait(10)
            self.happened.set()
            _cut(client, server)
        else:
            self.happened.set()
            self._muted.add(server)
            _cut(client)
            self._released.wait(20)
            with suppress(OSError):
                server.sendall(data)
                self._answered.wait(10)
            _cut(server)
            self.delivered.set()


def _cut(*sockets: socket.socket) -> None:
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


@contextmanager
def proxied(port: int) -> Iterator[Proxy]:
    proxy = Proxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
