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
from typing import Final, TypeVar

import msgspec

from holdfast.blobs.base import BlobStore
from holdfast.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptError,
    EpochTakenError,
    FencedError,
    HoldfastError,
    InvalidInputError,
    KeyExistsError,
    KeyNotFoundError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from holdfast.ids import CheckpointId
from holdfast.layout import ledger_key
from holdfast.ledger.history import History, is_decision, key_of
from holdfast.ledger.logs import read_logs
from holdfast.ledger.reading import Reader
from holdfast.ledger.records import (
    Author,
    CheckpointRecord,
    Decision,
    EpochRecord,
    HoldRecord,
    PruneRecord,
    Record,
    RestoreRecord,
    SavepointRecord,
    StartRecord,
    StopRecord,
    check_draft,
    encode_record,
    references,
)

R = TypeVar("R", bound=Record)

#: Which new records make a plan worthless that a draft of this kind was made from.
_OVERTURNS: Final[dict[type, tuple[type, ...]]] = {
    StartRecord: (StartRecord, RestoreRecord, PruneRecord, StopRecord),
    # A collector must see every new child, hold and restore before it names anything.
    PruneRecord: (
        StartRecord,
        CheckpointRecord,
        RestoreRecord,
        PruneRecord,
        StopRecord,
        SavepointRecord,
        HoldRecord,
    ),
}


class StalePlanError(ConflictError):
    """The ledger moved on since the plan that this record carries out was made: plan again."""

    def __init__(self, planned_at: int, record: int, kind: str) -> None:
        super().__init__(planned_at, record, kind)
        self.planned_at = planned_at
        self.record = record
        self.kind = kind

    def __str__(self) -> str:
        return (
            f"planned at ledger record {self.planned_at}, "
            f"but record {self.record} ({self.kind}) has come since"
        )


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
        with self._lock:
            history = self._history or self.read()
            while True:
                self._admit(history, draft, author, parent, names, since, planned_at)
                record = self._filled(history, draft, author)
                data = encode_record(record)
                if self._create(record.n, data) and self._stands(record, author):
                    self._reader.learn(record.n, data)
                    self._history = History(self._reader, record.n, history.boundary)
                    self._running = 0 if isinstance(record, StopRecord) else record.generation
                    return record
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

    def read_logs(self, record: Decision) -> dict[str, str]:
        """The log files that a decision added, by name. Raises CorruptError for one that is not as
        recorded.
        """
        return read_logs(self._blobs, record)

    def _is_current(self, known: History) -> bool:
        """Whether nothing was appended since, found with one request instead of a listing.

        Only a running generation may ask like that: trimming keeps every record from its last one on. For
        anybody else the next record may have come and gone.
        """
        if not self._running or known.unreadable_since or known.generation != self._running:
            return False
        return self._reader.is_head(known.head)

    # Before: may it be written?

    def _admit(
        self,
        history: History,
        draft: Record,
        author: Author,
        parent: CheckpointId | None,
        names: Collection[str],
        since: int | None,
        planned_at: int | None,
    ) -> None:
        if planned_at is not None:
            _check_plan(history, draft, planned_at)
        if isinstance(draft, CheckpointRecord | EpochRecord | RestoreRecord | StopRecord):
            _check_author(history, author)
        elif isinstance(draft, PruneRecord) and author.generation:
            # Anyone may prune, but a fenced generation can take nothing away (I5).
            _check_author(history, author)
        if is_decision(draft) or isinstance(draft, StopRecord):
            _check_readable(history, author)
        if is_decision(draft):
            _check_epoch(history, draft.epoch)
        if isinstance(draft, RestoreRecord):
            _check_target(history, draft.to)
        if not isinstance(draft, PruneRecord):
            _check_not_pruned(history, draft, author, parent, names, since)

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

    def _stands(self, record: Record, author: Author) -> bool:
        """Whether the record counts: below the boundary of a trimmed ledger nothing new does.

        A runner needs no check. Trimming keeps the number it would take next, however long it slept.
        """
        if author.generation:
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


def _check_plan(history: History, draft: Record, planned_at: int) -> None:
    overturning = _OVERTURNS.get(type(draft), ())
    named = set(map(str, getattr(draft, "ids", ()))) | set(getattr(draft, "keys", ()))
    for n in history.numbers(above=planned_at):
        record = history.record(n)
        if record is None:
            raise StalePlanError(planned_at, n, "unreadable")
        if isinstance(record, overturning) or not named.isdisjoint(references(record)):
            raise StalePlanError(planned_at, n, record.kind)


def _check_author(history: History, author: Author) -> None:
    if author.generation == history.generation and (not author.generation or author.writer == history.writer):
        return
    if author.generation > history.generation:
        raise ConflictError(
            f"generation {author.generation} has no start record in this ledger, "
            f"whose newest is {history.generation}"
        ).with_hint("holdfast verify")
    if not author.generation:
        raise ConflictError(
            f"a runner decides here (generation {history.generation}); only it may append a checkpoint"
        ).with_hint("take a savepoint of a flow that runs, or capture into a store of its own")
    raise FencedError(author.generation, history.generation, history.writer or "unknown")


def _check_readable(history: History, author: Author) -> None:
    """A record that cannot be read may be a newer start, or a decision. A restore says that a person looked
    at it.
    """
    restore = history.newest_restore
    known = max(author.generation, restore.n if restore is not None else 0)
    for n in history.unreadable_since:
        if n > known:
            error = history.slot(n).error
            reason = error.reason if error is not None else "it cannot be read"
            raise CorruptError(
                key_of(history, n), f"{reason}; it may hold a decision, so none is made after it"
            ).with_hint("holdfast recover --dry-run names the restore that leads out")


def _check_epoch(history: History, epoch: int) -> None:
    if epoch > history.highest_epoch:
        return
    taken = history.decision_of(epoch)
    if taken is not None:
        raise EpochTakenError(epoch, taken.n)
    raise ConflictError(f"epoch numbers only grow: {epoch} is not above {history.highest_epoch}")


def _check_target(history: History, to: int) -> None:
    if to and not is_decision(history.record(to)):
        raise InvalidInputError(
            f"ledger record {to} is no decision that can be read: a restore cannot lead there"
        )


def _check_not_pruned(
    history: History,
    draft: Record,
    author: Author,
    parent: CheckpointId | None,
    names: Collection[str],
    since: int | None,
) -> None:
    """Refuse a reference to anything a prune record names. ``first`` is where such records can start to
    matter.
    """
    referred = {*references(draft), *names}
    first = since or 0
    if isinstance(draft, RestoreRecord):
        target = history.record(draft.to) if draft.to else None
        if target is None:
            return
        referred.update(references(target))
        first = target.n
    elif isinstance(draft, StartRecord | HoldRecord) and referred:
        id = draft.from_id if isinstance(draft, StartRecord) else draft.checkpoint_id
        assert id is not None
        first = _named_at(history, id)
    elif is_decision(draft):
        first = first or author.generation  # what a runner refers to was made after its start
        if parent is not None:
            referred.add(str(parent))
            first = min(first, _parent_at(history, parent))
        if since is not None and since < history.boundary.n and not author.generation:
            # A runner's prunes are kept with its records. This writer's may have been trimmed.
            raise ConflictError(
                f"this checkpoint was begun at ledger record {since}; the ledger has been trimmed up to "
                f"{history.boundary.n} since, and what was written may have been collected"
            ).with_hint("begin it again")
    if not referred:
        return
    gone = sorted(referred & history.pruned(first))
    if gone:
        raise ConflictError(
            f"{gone[0]} is pruned: a prune record names it, so nothing may refer to it any more"
        ).with_hint("holdfast list shows what is left; holdfast log shows who pruned it")


def _named_at(history: History, id: CheckpointId) -> int:
    record = history.naming(id)
    if record is None:
        raise CheckpointNotFoundError(id)
    return record.n


def _parent_at(history: History, parent: CheckpointId) -> int:
    """The record that made ``parent`` a checkpoint. Raises ConflictError if it is abandoned, or none."""
    record = history.naming(parent)
    if record is None:
        raise ConflictError(f"the parent {parent} is no checkpoint of this ledger")
    if not history.is_on_timeline(record):
        raise ConflictError(f"the parent {parent} was abandoned by a restore")
    return record.n
