"""The same surface, awaited: a thin façade over any store. The event loop is never blocked.

Every call runs in a worker thread on behalf of its task, so a session's owner is the *task*: a
second task on the same loop, a child too, is a stranger. A call that was started is always seen
to its end before a cancellation goes on, so no write happens behind the caller's back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from holdfast.errors import SessionError
from holdfast.positions import base
from holdfast.positions import session as sessions
from holdfast.positions.base import KEEP, Guard, Marker, PositionArgument, SourceCheckpoint
from holdfast.positions.opening import open_positions as open_in_this_thread
from holdfast.positions.session import call_as, logger

P = ParamSpec("P")
R = TypeVar("R")


async def open_positions(url: str, query_id: str, **options: Any) -> SourceCheckpointStore:
    """``holdfast.positions.open_positions`` without blocking the loop."""
    opening = _started(open_in_this_thread, url, query_id, **options)
    try:
        return SourceCheckpointStore(await asyncio.shield(opening))
    except asyncio.CancelledError:
        await _seen_to_its_end(opening)
        if opening.exception() is None:
            # Nobody will ever hold it.
            await _call(opening.result().close)
        raise


class SourceCheckpointStore:
    """A store for tasks. Same names and meaning; ``is_persistent`` and ``session`` stay plain."""

    def __init__(self, store: base.SourceCheckpointStore) -> None:
        self._store = store

    def is_persistent(self) -> bool:
        return self._store.is_persistent()

    def session(self, *connection: Any) -> Session:
        """A handle on the store's one session. ``connection`` is for SQL, as in its own ``session``."""
        return Session(self._store.session(*connection))

    async def stage_checkpoint(
        self,
        source_id: str,
        sequence: int,
        source_position: PositionArgument = KEEP,
        *,
        guard: Guard | None = None,
    ) -> None:
        await _call(self._store.stage_checkpoint, source_id, sequence, source_position, guard=guard)

    async def stage_result_sequence(self, query_id: str, sequence: int) -> None:
        await _call(self._store.stage_result_sequence, query_id, sequence)

    async def read_checkpoint(self, source_id: str) -> SourceCheckpoint | None:
        return await _call(self._store.read_checkpoint, source_id)

    async def read_all_checkpoints(self) -> dict[str, SourceCheckpoint]:
        return await _call(self._store.read_all_checkpoints)

    async def write_config_hash(self, value: int) -> None:
        await _call(self._store.write_config_hash, value)

    async def read_config_hash(self) -> int | None:
        return await _call(self._store.read_config_hash)

    async def write_result_sequence(self, query_id: str, sequence: int) -> None:
        await _call(self._store.write_result_sequence, query_id, sequence)

    async def read_result_sequence(self, query_id: str) -> int | None:
        return await _call(self._store.read_result_sequence, query_id)

    async def write_marker(self, marker: Marker) -> None:
        await _call(self._store.write_marker, marker)

    async def delete_marker(self, marker: Marker) -> None:
        await _call(self._store.delete_marker, marker)

    async def read_markers(self) -> frozenset[Marker]:
        return await _call(self._store.read_markers)

    async def read_generation(self) -> int:
        return await _call(self._store.read_generation)

    async def clear_checkpoints(self) -> None:
        await _call(self._store.clear_checkpoints)

    async def close(self) -> None:
        await _call(self._store.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Session:
    """A session that belongs to the task that begins it. As a block it behaves as the plain one does.

    A cancelled block, also one cancelled while entering, rolls back before the cancellation goes on.
    """

    def __init__(self, session: sessions.Session) -> None:
        self._session = session
        self._settled: list[bool] = []

    async def begin(self) -> None:
        beginning = _started(self._session.begin)
        try:
            await asyncio.shield(beginning)
        except asyncio.CancelledError:
            await _seen_to_its_end(beginning)
            if beginning.exception() is None:
                # Whoever was cancelled in here never learns that it has a session to end.
                await self._give_up()
            raise

    async def commit(self) -> None:
        committing = _started(self._session.commit)
        try:
            await asyncio.shield(committing)
        except asyncio.CancelledError:
            await _seen_to_its_end(committing)
            if committing.exception() is None:
                self._settle()
            raise
        self._settle()

    async def rollback(self) -> None:
        await _call(self._session.rollback)
        self._settle()

    def _settle(self) -> None:
        if self._settled:
            self._settled[-1] = True

    async def _give_up(self) -> None:
        try:
            await _call(self._session.rollback)
        except Exception:  # noqa: BLE001 - as a plain session does: the block's own error goes on
            logger.exception("the rollback on leaving a session's block failed")

    async def __aenter__(self) -> Self:
        await self.begin()
        self._settled.append(False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._settled.pop():
            await self._give_up()


async def _call(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """``function`` in a worker thread, as the calling task. Always seen to its end."""
    running = _started(function, *args, **kwargs)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await _seen_to_its_end(running)
        running.exception()  # looked at: the cancellation is what the caller is told
        raise


def _started(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
    task = asyncio.current_task()
    if task is None:
        raise SessionError("positions are awaited inside a task")
    # A future of the executor and not a task around one: a loop that shuts down cancels its tasks,
    # and what runs in a thread would go on unwatched.
    return asyncio.get_running_loop().run_in_executor(
        None, partial(call_as, task, partial(function, *args, **kwargs))
    )


async def _seen_to_its_end(running: asyncio.Future[Any]) -> None:
    """Wait for what runs in its thread, whatever happens to us meanwhile. It can't be stopped anyway."""
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError:
            # Cancelled again. The first cancellation is still on its way, and says the same.
            continue
