"""Connections kept for the next one who needs one. Nothing here knows a statement."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from holdfast.errors import StoreUnavailableError
from holdfast.positions.sql_drivers import Connection, Driver

T = TypeVar("T")


class Idle:
    """Connections nobody uses right now. A connection that saw an error is not used again."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._idle: list[tuple[int, Connection]] = []
        self._closed = False

    def run(self, work: Callable[[Connection], T]) -> T:
        """``work`` on a connection; once more on a fresh one if an idle one turns out to be gone.

        That is safe because ``work`` raises UncertainCommit, which is not tried again, for
        everything that happens from its commit on.
        """
        connection = self._take()
        if connection is not None:
            try:
                return self._run_on(connection, work)
            except StoreUnavailableError:
                if not self._driver.is_lost(connection):
                    raise
                self.drop_all()
        return self._run_on(self._driver.open(), work)

    def _run_on(self, connection: Connection, work: Callable[[Connection], T]) -> T:
        try:
            with self._driver.errors():
                result = work(connection)
        except BaseException:
            # Closing rolls back whatever was open on it.
            self._driver.close(connection)
            raise
        self._give_back(connection)
        return result

    def _take(self) -> Connection | None:
        me = threading.get_ident()
        with self._lock:
            for at in range(len(self._idle) - 1, -1, -1):
                if self._driver.shareable or self._idle[at][0] == me:
                    return self._idle.pop(at)[1]
        return None

    def _give_back(self, connection: Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append((threading.get_ident(), connection))
                return
        self._driver.close(connection)

    def drop_all(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            self._driver.close(connection)

    def close(self) -> None:
        self._closed = True
        self.drop_all()
