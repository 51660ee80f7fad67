"""What the stores that survive their process share: one session, staged in memory, written in one go.

A backend adds only bytes: read this, write all of that in one transaction. Because a session is
staged here, nothing holds a lock in the database before ``commit``, a reader never waits for a
session, and a rollback has nothing to undo.

    _state    guards who has a session and what is staged; never held while a commit writes
    _writing  one writer at a time; ``close`` waits for it
"""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.errors import (
    CorruptError,
    InvalidInputError,
    SequenceRegressionError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from holdfast.positions.base import (
    KEEP,
    Guard,
    Marker,
    Position,
    PositionArgument,
    SourceCheckpoint,
    SourceCheckpointStore,
    checked_guard,
    checked_id,
    checked_marker,
    checked_position,
    checked_u64,
)
from holdfast.positions.session import Depth, Session, logger

#: What this version writes. A store that says more was written by a newer one.
SCHEMA_VERSION = 1


@dataclass(slots=True)  # not frozen: that costs four times as much, for each source of each session
class StagedCheckpoint:
    """One source's part of a session. KEEP: whatever is committed stays.

    ``guarded``: nothing in this session allowed a step back, so the write itself must not be one
    either, even if a rival wrote since we looked. ``ignored``: then it is dropped, not refused.
    """

    sequence: int
    position: Position
    guarded: bool
    ignored: bool

    def over(self, committed: SourceCheckpoint | None) -> SourceCheckpoint:
        if self.position is not KEEP:
            return SourceCheckpoint(self.sequence, self.position)
        return SourceCheckpoint(self.sequence, committed.source_position if committed else None)


@dataclass(slots=True)
class Staged:
    """All that one session wants written."""

    checkpoints: dict[str, StagedCheckpoint] = field(default_factory=dict)
    result_sequences: dict[str, int] = field(default_factory=dict)
    #: The caller's own connection, where the session commits through one (SQL only).
    connection: Any = None
    #: What the backend found when it looked, for the time of this session.
    seen: Any = None

    def __bool__(self) -> bool:
        return bool(self.checkpoints or self.result_sequences)


class PersistentStore(SourceCheckpointStore):
    """The contract over six primitives. Facts are named numbers and markers; checkpoints are entries."""

    def __init__(self, *, guard: Guard = "reject") -> None:
        self._guard: Guard = checked_guard(guard)
        self._state = threading.Lock()
        self._writing = threading.RLock()
        self._depth = Depth()
        self._staged = Staged()
        self._closed = False

    # -- what a backend does -------------------------------------------------------------------

    @abstractmethod
    def _load(self, source_id: str) -> SourceCheckpoint | None:
        """The committed entry, of one moment."""

    @abstractmethod
    def _load_all(self) -> dict[str, SourceCheckpoint]:
        """All committed entries, of one moment."""

    @abstractmethod
    def _load_number(self, name: str) -> int | None:
        """A committed number by its name: ``config_hash``, ``generation``, ``result_sequence:{id}``."""

    @abstractmethod
    def _store_number(self, name: str, value: int) -> None:
        """Write one number, durable on return."""

    @abstractmethod
    def _load_markers(self) -> frozenset[Marker]: ...

    @abstractmethod
    def _store_marker(self, marker: Marker) -> None: ...

    @abstractmethod
    def _drop_marker(self, marker: Marker) -> None: ...

    @abstractmethod
    def _write_session(self, staged: Staged) -> None:
        """Make all of ``staged`` visible and durable together, or nothing.

        Raises OutcomeUnknownError when it cannot be told which, SequenceRegressionError when a
        rival went past a guarded entry.
        """

    @abstractmethod
    def _clear(self) -> None:
        """What ``clear_checkpoints`` promises, in one transaction."""

    @abstractmethod
    def _release(self) -> None:
        """Close whatever is open."""

    def _committed_sequence(self, source_id: str) -> int | None:
        """The sequence a guard compares with."""
        entry = self._load(source_id)
        return entry.sequence if entry else None

    def _discard(self, staged: Staged) -> None:
        """Undo what staging already did outside this object, if anything."""

    # -- sessions ------------------------------------------------------------------------------

    def is_persistent(self) -> bool:
        return True

    def session(self) -> Session:
        return Session(_Control(self, None))

    def _begin(self, connection: Any) -> None:
        with self._state:
            self._refuse_closed()
            self._depth.refuse_strangers()
            joins = connection is None or connection is self._staged.connection
            if self._depth.depth and not joins:
                raise InvalidInputError("the open session commits through another connection")
            if self._depth.begin():
                self._staged = Staged(connection=connection)

    def _commit(self) -> None:
        with self._state:
            self._depth.require("commit")
            if self._depth.depth > 1:
                self._depth.depth -= 1
                return
            staged = self._staged
        # The depth stays 1 while it writes, so that strangers and ``clear`` are refused until it is over.
        try:
            with self._writing:
                self._refuse_closed()
                self._write_session(staged)
        finally:
            with self._state:
                if self._staged is staged:
                    self._end_session()

    def _rollback(self) -> None:
        with self._state:
            self._depth.refuse_strangers()
            if not self._depth.depth:
                return
            staged = self._staged
            self._end_session()
        self._discard(staged)

    def _end_session(self) -> None:
        self._depth.end()
        self._staged = Staged()

    # -- staging -------------------------------------------------------------------------------

    def stage_checkpoint(
        self,
        source_id: str,
        sequence: int,
        source_position: PositionArgument = KEEP,
        *,
        guard: Guard | None = None,
    ) -> None:
        source_id, sequence = checked_id(source_id), checked_u64(sequence)
        position = checked_position(source_position)
        guard = self._guard if guard is None else checked_guard(guard)
        staged = self._my_session("stage_checkpoint")
        before = staged.checkpoints.get(source_id)

        if guard != "allow":
            stands_at = before.sequence if before else self._committed_sequence(source_id)
            if stands_at is not None and sequence < stands_at:
                if guard == "ignore":
                    return
                raise SequenceRegressionError(source_id, stands_at, sequence)
        if before and position is KEEP:
            position = before.position
        staged.checkpoints[source_id] = StagedCheckpoint(
            sequence,
            position,
            # A rewind that was allowed once in a session stays allowed when the session is written.
            guarded=guard != "allow" and (before is None or before.guarded),
            ignored=guard == "ignore",
        )

    def stage_result_sequence(self, query_id: str, sequence: int) -> None:
        query_id, sequence = checked_id(query_id, "query id"), checked_u64(sequence)
        self._my_session("stage_result_sequence").result_sequences[query_id] = sequence

    def _my_session(self, what: str) -> Staged:
        self._refuse_closed()
        # No lock for the owner: nobody else can end its session, or change what it staged.
        if not self._depth.is_mine():
            with self._state:
                self._depth.require(what)
        return self._staged

    # -- reading -------------------------------------------------------------------------------

    def read_checkpoint(self, source_id: str) -> SourceCheckpoint | None:
        source_id = checked_id(source_id)
        mine = self._staged_here().checkpoints.get(source_id)
        if mine is None:
            return self._load(source_id)
        return mine.over(self._load(source_id) if mine.position is KEEP else None)

    def read_all_checkpoints(self) -> dict[str, SourceCheckpoint]:
        mine = self._staged_here().checkpoints
        entries = self._load_all()
        for source_id, staged in mine.items():
            entries[source_id] = staged.over(entries.get(source_id))
        return entries

    def read_result_sequence(self, query_id: str) -> int | None:
        query_id = checked_id(query_id, "query id")
        mine = self._staged_here().result_sequences
        return mine[query_id] if query_id in mine else self._load_number(f"result_sequence:{query_id}")

    def read_config_hash(self) -> int | None:
        self._refuse_closed()
        return self._load_number("config_hash")

    def read_generation(self) -> int:
        self._refuse_closed()
        return self._load_number("generation") or 0

    def read_markers(self) -> frozenset[Marker]:
        self._refuse_closed()
        return self._load_markers()

    def _staged_here(self) -> Staged:
        """What the caller would see on top of the committed state: its own session, or nothing."""
        # No lock: nobody but the caller can make the session the caller's, or end it.
        self._refuse_closed()
        return self._staged if self._depth.is_mine() else Staged()

    # -- at once -------------------------------------------------------------------------------

    def write_config_hash(self, value: int) -> None:
        value = checked_u64(value, "config hash")
        with self._writing:
            self._refuse_closed()
            self._store_number("config_hash", value)

    def write_result_sequence(self, query_id: str, sequence: int) -> None:
        query_id, sequence = checked_id(query_id, "query id"), checked_u64(sequence)
        with self._writing:
            self._refuse_closed()
            self._store_number(f"result_sequence:{query_id}", sequence)

    def write_marker(self, marker: Marker) -> None:
        marker = checked_marker(marker)
        with self._writing:
            self._refuse_closed()
            self._store_marker(marker)

    def delete_marker(self, marker: Marker) -> None:
        marker = checked_marker(marker)
        with self._writing:
            self._refuse_closed()
            self._drop_marker(marker)

    def clear_checkpoints(self) -> None:
        with self._state:
            self._depth.require_none("clear_checkpoints")
        # In this order, as close() takes them; a session that begins meanwhile waits until all is cleared.
        with self._writing, self._state:
            self._refuse_closed()
            self._depth.require_none("clear_checkpoints")
            self._clear()

    def close(self) -> None:
        # A commit under way is waited for; it is the session's end, not something to be cut off.
        with self._writing:
            with self._state:
                if self._closed:
                    return
                self._closed = True
                staged, was_open = self._staged, self._depth.depth > 0
                self._end_session()
            if was_open:
                logger.warning("a store of source positions was closed with an open session: rolled back")
            try:
                self._discard(staged)
            finally:
                self._release()

    def _refuse_closed(self) -> None:
        if self._closed:
            raise InvalidInputError("this store of source positions is closed")


class _Control:
    """One handle's way to the store's session."""

    def __init__(self, store: PersistentStore, connection: Any) -> None:
        self._store = store
        self._connection = connection

    def begin(self) -> None:
        self._store._begin(self._connection)

    def commit(self) -> None:
        self._store._commit()

    def rollback(self) -> None:
        self._store._rollback()


def session_through(store: PersistentStore, connection: Any) -> Session:
    """A handle whose outer commit writes through ``connection`` and commits that."""
    return Session(_Control(store, connection))


def number_to_bytes(value: int) -> bytes:
    return value.to_bytes(8, "big")


def number_from_bytes(raw: Any, key: str) -> int:
    """A stored number: 8 bytes, big-endian. Raises CorruptError, never a default."""
    if type(raw) is not bytes:
        raise CorruptError(key, f"a number is 8 bytes, and this is {type(raw).__name__}")
    if len(raw) != 8:
        raise CorruptError(key, f"a number is 8 bytes, and this is {len(raw)}")
    return int.from_bytes(raw, "big")


def make_directory(path: Path) -> None:
    """Create ``path`` and its parents where they are missing, durably. Raises StoreUnavailableError."""
    try:
        missing = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for each in missing:
            # A new directory is there after a power cut once the one that names it is on disk.
            descriptor = os.open(each.parent, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except OSError as error:
        raise StoreUnavailableError(f"{path}: {error}") from error


def check_schema(version: int | None, where: str) -> None:
    """Refuse a store that a newer version wrote."""
    if version is not None and version > SCHEMA_VERSION:
        raise UnsupportedFormatError(
            where, f"its schema_version is {version}, this version knows {SCHEMA_VERSION}"
        )


def known_markers(names: Mapping[str, bytes]) -> frozenset[Marker]:
    """The markers among ``marker:{name}`` keys. Unknown ones are left alone; a marker has no value."""
    found = set()
    for marker in Marker:
        raw = names.get(marker.value)
        if raw is None:
            continue
        if raw != b"":
            raise CorruptError(f"marker:{marker.value}", "a marker has no value")
        found.add(marker)
    return frozenset(found)
