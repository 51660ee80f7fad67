"""Sessions: who has one open, how deep, and what leaving its block does. Nothing here stores anything.

A store has at most one session. All its handles count one depth:

    call        depth 0          depth 1                 depth n > 1
    begin       open, depth 1    depth 2                 depth n + 1
    commit      an error         commit, depth 0         depth n - 1, nothing is written
    rollback    nothing          give all up, depth 0    give all up, depth 0

The session belongs to whoever opened it: the thread, or in ``aio`` the task.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import ParamSpec, Protocol, Self, TypeVar

from holdfast.errors import ForeignSessionError, NoActiveSessionError, SessionError

logger = logging.getLogger("holdfast.positions")

P = ParamSpec("P")
R = TypeVar("R")


class SessionControl(Protocol):
    """What a session drives. ``rollback`` without a session must do nothing."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...


class Session:
    """A handle on a session. As a block: entering begins, and leaving without a commit rolls back.

    **Leaving the block does not commit**: ``session.commit()`` is its last line. The rollback on
    the way out is called exactly once, also after a commit that raised; after a commit that
    succeeded, or a rollback by hand, nothing more is called. An error in the block is passed on
    unchanged, and a rollback that fails on the way out is logged, not raised.
    """

    def __init__(self, control: SessionControl) -> None:
        self._control = control
        # One flag for each block that this handle is inside of: has it been settled by hand?
        self._settled: list[bool] = []

    def begin(self) -> None:
        self._control.begin()

    def commit(self) -> None:
        self._control.commit()
        self._settle()

    def rollback(self) -> None:
        # After the call: a stranger's rollback raises, and must not settle the owner's block.
        self._control.rollback()
        self._settle()

    def _settle(self) -> None:
        if self._settled:
            self._settled[-1] = True

    def __enter__(self) -> Self:
        self._control.begin()
        self._settled.append(False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._settled.pop():
            return
        try:
            self._control.rollback()
        except Exception:
            logger.exception("the rollback on leaving a session's block failed")


class Depth:
    """The table above, and its owner. Not thread-safe by itself: the store's lock guards it."""

    def __init__(self) -> None:
        self.depth = 0
        self._owner: object | None = None

    def is_mine(self) -> bool:
        """Whether the caller owns the open session. Needs no lock: only the owner can change the answer."""
        return self._owner is current_owner()

    def begin(self) -> bool:
        """Go one deeper. True if this opened the session."""
        self.refuse_strangers()
        self.depth += 1
        self._owner = current_owner()
        return self.depth == 1

    def require(self, what: str) -> None:
        """Raise unless the caller has the session open."""
        self.refuse_strangers()
        if self.depth == 0:
            raise NoActiveSessionError(f"{what} needs an open session").with_hint(
                "with store.session() as session: …; session.commit()"
            )

    def refuse_strangers(self) -> None:
        if self.depth and not self.is_mine():
            raise ForeignSessionError("the open session belongs to another thread or task")

    def require_none(self, what: str) -> None:
        if self.depth:
            raise SessionError(f"{what} is refused while a session is open")

    def end(self) -> None:
        self.depth = 0
        self._owner = None


_acting: ContextVar[object | None] = ContextVar("holdfast_positions_owner", default=None)
_thread = threading.local()


def current_owner() -> object:
    """What a session opened here and now belongs to.

    Not the thread's number, which the system gives to another thread once this one is gone.
    """
    acting = _acting.get()
    if acting is not None:
        return acting
    token: object | None = getattr(_thread, "token", None)
    if token is None:
        token = _thread.token = object()
    return token


def call_as(owner: object, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call ``function`` on behalf of ``owner``: how a task borrows a thread without lending its session."""
    before = _acting.set(owner)
    try:
        return function(*args, **kwargs)
    finally:
        _acting.reset(before)
