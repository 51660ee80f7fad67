"""Fetches ledger records one by one, and remembers the latest. Knows which number lies where, not what it
means.

Nothing here scans: the head is found by listing names, and a record is read when somebody asks for it.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.blobs.base import BlobStore
from holdfast.errors import CorruptError, KeyNotFoundError, UnsupportedFormatError
from holdfast.layout import LEDGER_PREFIX, boundary_key, boundary_number, ledger_key, ledger_number
from holdfast.ledger.records import Record, decode_record, open_bytes, seal_bytes

#: Records kept in memory. An epoch with its logs has a few KB; one may have 256 KiB.
REMEMBERED: Final = 1024
#: A ledger with more records than this is not listed to find its end. One page of a listing on S3 has as
#: many.
LISTED: Final = 1000
_BOUNDARIES: Final = LEDGER_PREFIX + "boundary-"


@dataclass(frozen=True, slots=True)
class Slot:
    """What lies at one number: a record, wrong bytes, or nothing."""

    n: int
    #: Of the bytes as they lie there; None if nothing does.
    sha256: str | None
    record: Record | None
    error: CorruptError | UnsupportedFormatError | None = None

    @property
    def is_chained(self) -> bool:
        """Whether these are the bytes that were written: the next record's ``prev`` must name them."""
        return self.record is not None or isinstance(self.error, UnsupportedFormatError)


@dataclass(frozen=True, slots=True)
class Boundary:
    """Where the ledger was trimmed: at or below ``n`` only ``kept`` exists, whatever lies there."""

    n: int
    #: The highest epoch ever decided at or below ``n``.
    epoch: int = 0
    kept: frozenset[int] = frozenset()
    error: CorruptError | UnsupportedFormatError | None = None

    def has(self, n: int) -> bool:
        return n > self.n or n in self.kept


NO_BOUNDARY: Final = Boundary(n=0)


class Reader:
    """Ledger objects of one store. Any number of threads."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._slots: OrderedDict[int, Slot] = OrderedDict()
        self._boundaries: dict[int, Boundary] = {}
        self._lock = threading.Lock()

    def slot(self, n: int) -> Slot:
        """What lies at ``n``. Raises only what is not about the bytes (StoreUnavailableError, …)."""
        with self._lock:
            known = self._slots.get(n)
            if known is not None:
                self._slots.move_to_end(n)
                return known
        key = ledger_key(n)
        try:
            data = self._blobs.get(key)
        except KeyNotFoundError:
            # Not remembered: a listing may have run ahead of a slow store.
            return Slot(n, None, None, CorruptError(key, "a hole: later records are there, this one is not"))
        return self.learn(n, data)

    def learn(self, n: int, data: bytes) -> Slot:
        """Take ``data`` for what lies at ``n``: it was just read, or just written."""
        sha256 = hashlib.sha256(data).hexdigest()
        try:
            slot = Slot(n, sha256, decode_record(data, n, ledger_key(n)))
        except (CorruptError, UnsupportedFormatError) as error:
            slot = Slot(n, sha256, None, error)
        with self._lock:
            self._slots[n] = slot
            self._slots.move_to_end(n)
            while len(self._slots) > REMEMBERED:
                self._slots.popitem(last=False)
        return slot

    def forget(self, n: int) -> None:
        with self._lock:
            self._slots.pop(n, None)

    def is_head(self, n: int) -> bool:
        """Whether no record follows ``n``. One request, where a listing is one and more.

        Appending leaves no holes. One that damage made behind ``n`` is seen by the next start, which lists.
        """
        return self._blobs.head(ledger_key(n + 1)) is None

    def find_ends(self, head: int) -> tuple[int, Boundary]:
        """The number of the newest record and the highest boundary, where ``head`` is known to be there.

        Lists a short ledger. Of a long one it lists the last part: some later record is found by doubling and
        halving steps, and from there the listing is complete whatever lies between, holes included.
        """
        boundary = self.find_boundary()
        head = max(head, boundary.n)
        for count, n in enumerate(self._numbers_after(head)):
            head = n
            if count == LISTED:
                head = self._find_later(head)
                head = max(self._numbers_after(head), default=head)
                break
        return head, boundary

    def _numbers_after(self, n: int) -> Iterator[int]:
        for info in self._blobs.list(LEDGER_PREFIX, ledger_key(n) if n else None):
            number = ledger_number(info.key)
            if number is not None:
                yield number

    def _find_later(self, n: int) -> int:
        """A record at or after ``n``, the newest where there are no holes, in a logarithm of requests."""
        step = LISTED
        while self._blobs.head(ledger_key(n + step)) is not None:
            n, step = n + step, step * 2
        while step > 1:
            step //= 2
            if self._blobs.head(ledger_key(n + step)) is not None:
                n += step
        return n

    def find_boundary(self) -> Boundary:
        """The boundary in force: the highest, without what a lower one that still lies there has dropped.

        There is more than one only while the ledger is being trimmed, or where that was cut short. Two that
        trim at once may differ in what they keep; what either has dropped may be deleted already.
        """
        numbers = [boundary_number(info.key) or 0 for info in self._blobs.list(_BOUNDARIES)]
        highest = NO_BOUNDARY
        for n in sorted(filter(None, numbers)):
            boundary = self._boundary(n)
            kept = frozenset(k for k in boundary.kept if highest.has(k))
            highest = replace(boundary, kept=kept, error=boundary.error or highest.error)
        return highest

    def forget_boundaries(self) -> None:
        self._boundaries.clear()

    def _boundary(self, n: int) -> Boundary:
        known = self._boundaries.get(n)
        if known is None:
            known = self._boundaries[n] = _read_boundary(self._blobs, n)
        return known


def encode_boundary(boundary: Boundary) -> bytes:
    return seal_bytes({"n": boundary.n, "epoch": boundary.epoch, "kept": sorted(boundary.kept)})


def _read_boundary(blobs: BlobStore, n: int) -> Boundary:
    key = boundary_key(n)
    try:
        return _decode_boundary(open_bytes(blobs.get(key), key), n, key)
    except (CorruptError, UnsupportedFormatError) as error:
        return Boundary(n, error=error)


def _decode_boundary(document: dict[str, Any], n: int, key: str) -> Boundary:
    number, epoch, kept = document.get("n"), document.get("epoch"), document.get("kept")
    if number != n:
        raise CorruptError(key, f"it holds boundary {number}, not {n}")
    if not isinstance(epoch, int) or not isinstance(kept, list) or not all(isinstance(k, int) for k in kept):
        raise CorruptError(key, "it does not say which epoch was the highest, or which records are kept")
    return Boundary(n, epoch, frozenset(kept))
