"""Checkpoint ids: UUIDv7, so that they sort by time. Nothing here knows where an id is stored.

    48 bits    4 bits   12 bits        2 bits   30 bits        32 bits
    unix ms    0111     counter high   10       counter low    random

The counter starts anew at a random point in each millisecond and only counts up inside it, so ids
of one process never stand still or go back, not even when the clock does.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Callable
from functools import total_ordering
from typing import Any

from holdfast.errors import InvalidInputError

_MAX_MS = (1 << 48) - 1
_MAX_COUNTER = (1 << 42) - 1

_HEX = "[0-9a-f]"
_TEXT = re.compile(
    rf"(?:urn:uuid:)?({_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}})"
    rf"|\{{({_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}})\}}"
    rf"|({_HEX}{{32}})",
    re.ASCII | re.IGNORECASE,
)


@total_ordering
class CheckpointId:
    """The name of one checkpoint attempt. Ours are UUIDv7; a foreign id of another version is kept as it is.

    A value: immutable, ordered, hashable. Not a dataclass, for msgspec would store its field instead of its
    text.
    """

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def number(self) -> int:
        return self._number

    @classmethod
    def now(cls, after: CheckpointId | None = None) -> CheckpointId:
        """A new id, later than every one made in this process and later than ``after``, whatever the clock
        says.
        """
        return cls(_default_generator.next(after.number if after is not None else 0))

    @classmethod
    def parse(cls, text: str) -> CheckpointId:
        """The id in ``text``: with or without hyphens, in braces or as ``urn:uuid:``, in either case."""
        matched = _TEXT.fullmatch(text) if isinstance(text, str) else None
        if matched is None:
            raise InvalidInputError(f"not a checkpoint id: {text!r}").with_hint(
                "an id looks like 0195c0de-7000-7abc-8def-0123456789ab"
            )
        digits = matched[1] or matched[2] or matched[3]
        return cls(int(digits.replace("-", ""), 16))

    @classmethod
    def from_uuid(cls, value: uuid.UUID) -> CheckpointId:
        return cls(value.int)

    def as_uuid(self) -> uuid.UUID:
        return uuid.UUID(int=self.number)

    @property
    def timestamp_ms(self) -> int:
        """When the id was made, by the clock of its maker: information only."""
        return self.number >> 80

    def __str__(self) -> str:
        return str(self.as_uuid())

    def __repr__(self) -> str:
        return f"CheckpointId({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CheckpointId) and self._number == other._number

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, CheckpointId):
            return NotImplemented
        return self._number < other._number

    def __hash__(self) -> int:
        return hash(self._number)

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckpointId, (self._number,)


class IdGenerator:
    """Ever greater UUIDv7 numbers, from any number of threads."""

    def __init__(
        self,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._lock = threading.Lock()
        self._ms = -1
        self._counter = 0

    def next(self, after: int = 0) -> int:
        with self._lock:
            self._advance_to(self._now_ms())
            number = self._number()
            if number <= after:
                self._advance_to(after >> 80)
                number = self._number()
            if number <= after:
                # Same millisecond, and its counter (or a foreign version's bits) stands higher than ours.
                self._next_millisecond()
                number = self._number()
            return number

    def reseed_after_fork(self) -> None:
        """Leave the millisecond the parent may still count in, so that the two never meet."""
        self._lock = threading.Lock()
        if self._ms >= 0:
            self._next_millisecond()

    def _advance_to(self, ms: int) -> None:
        if ms > self._ms:
            self._ms = ms
            self._counter = self._seed()
        elif self._counter < _MAX_COUNTER:
            self._counter += 1
        else:
            self._next_millisecond()

    def _next_millisecond(self) -> None:
        if self._ms >= _MAX_MS:
            raise InvalidInputError(
                "no id is left after the last millisecond that a UUIDv7 can hold"
            ).with_hint("look for an id from the far future in the store: holdfast list")
        self._ms += 1
        self._counter = self._seed()

    def _seed(self) -> int:
        # One bit of the counter stays free, so that even the highest seed leaves room to count.
        return int.from_bytes(self._random_bytes(6), "big") & (_MAX_COUNTER >> 1)

    def _number(self) -> int:
        high, low = self._counter >> 30, self._counter & ((1 << 30) - 1)
        tail = int.from_bytes(self._random_bytes(4), "big")
        return self._ms << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low << 32 | tail


_default_generator = IdGenerator()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_default_generator.reseed_after_fork)
