"""Connections that speak the Redis protocol, one exchange at a time. Nothing here knows a key.

A connection that failed is never used again: a client that reconnects by itself would lose its
WATCH without a word, and with it the promise that the watch makes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

from holdfast.errors import (
    CorruptError,
    HoldfastError,
    InvalidInputError,
    MissingExtraError,
    StoreUnavailableError,
)

Command: TypeAlias = tuple[Any, ...]
Connection: TypeAlias = Any

_CONNECT_TIMEOUT_SECONDS = 5.0
_REPLY_TIMEOUT_SECONDS = 30.0


class LostReply(Exception):
    """Commands were sent, and it is not known what became of them. Never leaves this package."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(error)
        self.error = error


class Wire:
    """Connections to one server, kept while idle."""

    def __init__(self, url: str) -> None:
        try:
            import redis
        except ImportError as error:
            raise MissingExtraError("redis", "a store of positions in Redis") from error
        self._redis = redis
        try:
            # It parses the URL and makes connections; what it keeps of them is not used.
            self._factory = redis.ConnectionPool.from_url(
                "redis://" + url.removeprefix("valkey://") if url.startswith("valkey://") else url,
                protocol=2,
                decode_responses=False,
                socket_connect_timeout=_CONNECT_TIMEOUT_SECONDS,
                socket_timeout=_REPLY_TIMEOUT_SECONDS,
                retry=redis.retry.Retry(redis.backoff.NoBackoff(), 0),
            )
        except ValueError as error:
            raise InvalidInputError(f"not a Redis URL: {error}") from error
        options = self._factory.connection_kwargs
        self.where = f"redis://{options.get('host', '')}:{options.get('port', 6379)}/{options.get('db', 0)}"
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False

    def take(self) -> Connection:
        """A connection that answered to nothing wrong so far. Raises StoreUnavailableError."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is not None:
            if self._is_quiet(connection):
                return connection
            self.drop(connection)
        fresh: Connection = self._factory.make_connection()
        with self._errors():
            fresh.connect()
        return fresh

    @contextmanager
    def borrowed(self) -> Iterator[Connection]:
        """A connection for the time of a block that leaves nothing watched; dropped if it raises."""
        connection = self.take()
        try:
            yield connection
        except BaseException:
            self.drop(connection)
            raise
        self.give_back(connection)

    def _is_quiet(self, connection: Connection) -> bool:
        # Something to read between two exchanges can only be the end of the connection.
        try:
            return not connection.can_read(timeout=0)
        except (self._redis.RedisError, OSError):
            return False

    def give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        self.drop(connection)

    def drop(self, connection: Connection) -> None:
        with suppress(self._redis.RedisError, OSError):
            connection.disconnect()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            self.drop(connection)

    def exchange(self, connection: Connection, commands: Sequence[Command]) -> list[Any]:
        """Send all, read all. A reply may be an error. Raises LostReply, and then drops the connection."""
        try:
            with self._errors():
                connection.send_packed_command(connection.pack_commands(commands), check_health=False)
                return [self._reply(connection) for _ in commands]
        except HoldfastError as error:
            self.drop(connection)
            raise LostReply(error) from error
        except BaseException:
            # Interrupted with replies on the way: whoever came next would read them as its own.
            self.drop(connection)
            raise

    def _reply(self, connection: Connection) -> Any:
        try:
            return connection.read_response()
        except self._redis.ResponseError as error:
            return error

    def transaction(self, connection: Connection, commands: Sequence[Command]) -> list[Any] | None:
        """``commands`` as one MULTI/EXEC. None: something watched was changed, and nothing was done."""
        replies = self.exchange(connection, [("MULTI",), *commands, ("EXEC",)])
        for reply in replies:
            self.refuse_error(reply)
        done: list[Any] | None = replies[-1]
        for reply in done or ():
            self.refuse_error(reply)
        return done

    def read(self, *commands: Command) -> list[Any]:
        """The replies to commands that change nothing; once more on another connection if one was lost."""
        try:
            return self._read(commands)
        except LostReply:
            pass  # a connection that had died unnoticed; whether the server has, the next one tells
        try:
            return self._read(commands)
        except LostReply as lost:
            raise lost.error from lost

    def _read(self, commands: Sequence[Command]) -> list[Any]:
        with self.borrowed() as connection:
            replies = self.exchange(connection, commands)
            for reply in replies:
                self.refuse_error(reply)
            return replies

    def refuse_error(self, reply: Any) -> None:
        """Raise what a server's error reply means."""
        if not isinstance(reply, Exception):
            return
        text = str(reply)
        if text.startswith(("WRONGTYPE", "Operation against a key")):
            raise CorruptError(self.where, f"a key holds another type of value: {text}") from reply
        raise StoreUnavailableError(f"{self.where}: {text}") from reply

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (self._redis.RedisError, OSError) as error:
            raise StoreUnavailableError(f"{self.where}: {error}") from error
