"""The ledger: every fact of a flow, in order, each written by one create-only call.

A checkpoint is committed when a record here says so, and only then (I1). ``append`` is that moment. It
takes the number after the head; of any number of rivals exactly one gets it, and the others read on and
find out why.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TypeVar

import msgspec

from holdfast.blobs.base import BlobStore
from holdfast.errors import (
    ConflictError,
    HoldfastError,
    KeyExistsError,
    KeyNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from holdfast.ids import CheckpointId
from holdfast.layout import boundary_key, ledger_key
from holdfast.ledger.admitting import Claim, admit
from holdfast.ledger.history import History, is_decision
from holdfast.ledger.logs import read_logs
from holdfast.ledger.reading import Boundary, Reader, encode_boundary
from holdfast.ledger.records import (
    Author,
    Decision,
    PruneRecord,
    Record,
    RestoreRecord,
    StartRecord,
    StopRecord,
    check_draft,
    encode_record,
)
from holdfast.ledger.trimming import plan_trim, sweep

R = TypeVar("R", bound=Record)


def new_writer() -> str:
    """A name nobody else has, for one writer in one run."""
    return secrets.token_hex(16)


class Ledger:
    """The ledger of one flow. Threads may share it; processes meet in the store."""

    def __init__(
        self, blobs: BlobStore, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self._blobs = blobs
        self._now_ms = now_ms
        self._reader = Reader(blobs)
        self._history: History | None = None
        #: The generation that appends through this object, if one does.
        self._running = 0
        self._lock = threading.RLock()

    def read(self) -> History:
        """The ledger as it is now. Lists what is new; records are read when the History is asked about
        them.
        """
        with self._lock:
            known = self._history
            if known is not None and self._is_current(known):
                return known
            head, boundary = self._reader.find_ends(known.head if known is not None else 0)
            if known is None or (head, boundary.n) != (known.head, known.boundary.n):
                self._history = History(self._reader, head, boundary)
            elif known.unreadable_since:
                # What was not there to read a moment ago may be by now.
                for n in known.unreadable_since:
                    self._reader.forget(n)
                self._history = History(self._reader, head, boundary)
            assert self._history is not None
            return self._history

    def append(
        self,
        draft: R,
        *,
        author: Author,
        parent: CheckpointId | None = None,
        names: Collection[str] = (),
        since: int | None = None,
        planned_at: int | None = None,
    ) -> R:
        """Write ``draft`` as the next record, durably, and return it as written.

        ``n``, ``generation``, ``at_ms``, ``prev`` and a decision's ``after`` are filled in here. What the
        record refers to must be durable already (I2): its own fields, ``parent`` and ``names`` (keys and
        ids of its manifest). None of it may be pruned; ``since`` is the head of the ledger when the first
        of it was written, if that is known. ``planned_at`` is the head of
        the History a start or a prune was planned from.

        Raises FencedError (a newer generation runs the flow), EpochTakenError (another attempt decided this
        epoch), StalePlanError, other ConflictErrors, CorruptError (who may append cannot be read) and
        OutcomeUnknownError: then the record may be there, or get there yet, and nothing may be aborted
        before that is known.
        """
        check_draft(draft)
        claim = Claim(parent=parent, names=names, since=since, planned_at=planned_at)
        with self._lock:
            history = self._history or self.read()
            if isinstance(draft, RestoreRecord):
                # A trimming is no record, so it costs nobody a number: where this leads may be gone.
                history = History(self._reader, history.head, self._reader.find_boundary())
            while True:
                admit(history, draft, author, claim)
                record = self._filled(history, draft, author)
                data = encode_record(record)
                created = self._create(record.n, data)
                if created and self._stands(record, author, history):
                    self._reader.learn(record.n, data)
                    self._history = History(self._reader, record.n, history.boundary)
                    self._running = 0 if isinstance(record, StopRecord) else record.generation
                    self._check_arrival(record)
                    return record
                if created:
                    # Its number is trimmed, so it counts for nobody; whoever has not heard may stumble on it.
                    self._blobs.delete(ledger_key(record.n))
                self._reader.forget(record.n)
                history = self.read()

    def append_start(self, draft: StartRecord, *, writer: str, after_head: int) -> StartRecord:
        """``append`` for a start planned from a History whose head was ``after_head``. Fences every older
        run.

        Raises StalePlanError when a start, restore, prune or stop has come since: plan again.
        """
        return self.append(draft, author=Author(0, writer), planned_at=after_head)

    def reassert_head(self) -> None:
        """Write the head record's bytes once more, so that it is durable whatever became of its first
        writing.

        For the start of a run: the one before may have died between seeing its record and knowing it was
        safe.
        """
        head = self.read().head
        slot = self._reader.slot(head) if head else None
        if slot is None or not slot.is_chained:
            return
        data = self._blobs.get(ledger_key(head))
        if self._reader.learn(head, data).is_chained:
            self._blobs.put(ledger_key(head), data)

    def trim(self, keep_from: int, *, is_gone: Callable[[PruneRecord], bool], at_least: int = 1) -> int:
        """Drop what nobody needs of the records before ``keep_from``; how many objects were deleted.

        ``is_gone`` says whether nothing is left of what a prune names. Does nothing where fewer than
        ``at_least`` records would go. Raises CorruptError as long as any record cannot be read. A restore to
        a light epoch below ``keep_from`` that is appended at this very moment leads nowhere: the next start
        says so, and which restore leads out.
        """
        # Long, and without the lock: this generation goes on deciding meanwhile.
        history = self.read()
        boundary = plan_trim(history, keep_from, now_ms=self._now_ms(), is_gone=is_gone)
        if boundary is not None and self._gain(history, boundary) >= at_least:
            # KeyExistsError: another trimming was first, and this one's plan is as good as none.
            with suppress(KeyExistsError):
                self._blobs.create(boundary_key(boundary.n), encode_boundary(boundary))
        self._reader.forget_boundaries()
        deleted = sweep(self._blobs, self._reader, history.boundary)
        with self._lock:
            if self._history is not None:
                self._history = History(self._reader, self._history.head, self._reader.find_boundary())
        return deleted

    def read_logs(self, record: Decision) -> dict[str, str]:
        """The log files that a decision added, by name. Raises CorruptError for one that is not as
        recorded.
        """
        return read_logs(self._blobs, record)

    def _check_arrival(self, record: Record) -> None:
        """A restore stands, but is refused with a reason, where a trimming came between look and leap."""
        if (
            isinstance(record, RestoreRecord)
            and record.to
            and not self._reader.find_boundary().has(record.to)
        ):
            raise ConflictError(
                f"ledger record {record.to} was trimmed while the restore to it was written: it leads nowhere"
            ).with_hint("restore to a checkpoint of holdfast list instead")

    def _is_current(self, known: History) -> bool:
        """Whether nothing was appended since, found with one request instead of a listing.

        Only a running generation may ask like that: trimming keeps every record from its last one on. For
        anybody else the next record may have come and gone.
        """
        if not self._running or known.unreadable_since or known.generation != self._running:
            return False
        return self._reader.is_head(known.head)

    def _gain(self, history: History, boundary: Boundary) -> int:
        return sum(1 for n in history.numbers() if not boundary.has(n))

    def _filled(self, history: History, draft: R, author: Author) -> R:
        n = history.head + 1
        facts = {
            "n": n,
            "generation": n if isinstance(draft, StartRecord) else author.generation,
            "writer": author.writer,
            "at_ms": self._now_ms(),
            "prev": self._reader.slot(history.head).sha256 if history.head else None,
        }
        if is_decision(draft):
            facts["after"] = history.tip
        return msgspec.structs.replace(draft, **facts)

    # The moment itself

    def _create(self, n: int, data: bytes) -> bool:
        """Whether these bytes are record ``n``. Raises OutcomeUnknownError where that stays unknown."""
        key = ledger_key(n)
        try:
            self._blobs.create(key, data)
        except KeyExistsError:
            # Ours, if an earlier try of this very call got through: nobody else writes our writer's bytes.
            return self._lies_there(key, data)
        except OutcomeUnknownError as error:
            return self._settle(key, data, error)
        return True

    def _settle(self, key: str, data: bytes, error: OutcomeUnknownError) -> bool:
        """Find out what became of an unknown create. Nothing is aborted before that is known."""
        for _ in range(3):
            try:
                found = self._blobs.get(key)
            except KeyNotFoundError:
                # Not there, or not yet: the first request may still be on its way. Asking for the same again
                # is safe, since only one of them can land, and both carry the same bytes.
                try:
                    self._blobs.create(key, data)
                except (KeyExistsError, OutcomeUnknownError, StoreUnavailableError):
                    continue
                return True
            except StoreUnavailableError:
                continue
            if found != data:
                return False
            if error.proven_by_reading:
                return True
            break
        raise _unknown(key, error) from error

    def _lies_there(self, key: str, data: bytes) -> bool:
        try:
            return self._blobs.get(key) == data
        except KeyNotFoundError:
            return False
        except StoreUnavailableError as error:
            raise _unknown(key, error) from error

    def _stands(self, record: Record, author: Author, history: History) -> bool:
        """Whether the record counts: below the boundary of a trimmed ledger nothing new does.

        A run needs no check until it stops or has seen a newer one. Trimming keeps the number it would take
        next, however long it slept.
        """
        if author.generation and author.generation == self._running == history.generation:
            return True
        try:
            return self._reader.find_boundary().has(record.n)
        except StoreUnavailableError as error:
            # It lies there, so this is no failure, whatever the caller would like to do about one.
            raise _unknown(ledger_key(record.n), error) from error


def _unknown(key: str, error: HoldfastError) -> OutcomeUnknownError:
    return OutcomeUnknownError(f"{key}: it is not known whether this record was written: {error}").with_hint(
        "start again: a start makes sure of the newest record before it believes it"
    )
