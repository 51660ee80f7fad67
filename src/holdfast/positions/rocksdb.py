"""Source positions in a RocksDB of their own, or in the column family ``stream_state`` of a shared one.

    source_sequence:{source_id}     8 bytes; the entry exists iff this key does
    source_position:{source_id}     raw; absent when there is none
    config_hash  generation  schema_version  result_sequence:{query_id}      8 bytes
    marker:{marker}                 empty

One process has the directory open, and within it one store: so nobody writes between a look and a
commit. A session is one write batch. Other column families and unknown keys are left alone.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.errors import (
    CorruptError,
    HoldfastError,
    InvalidInputError,
    MissingExtraError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from holdfast.positions.base import KEEP, MAX_U64, Guard, Marker, SourceCheckpoint
from holdfast.positions.persistent import (
    PersistentStore,
    Staged,
    check_schema,
    known_markers,
    make_directory,
    number_from_bytes,
    number_to_bytes,
)
from holdfast.positions.session import logger

_FAMILY = "stream_state"
_SEQUENCE = b"source_sequence:"
_POSITION = b"source_position:"
_RESULT = b"result_sequence:"
_MARKER = b"marker:"


class RocksDBSourceCheckpointStore(PersistentStore):
    """One query's positions in the RocksDB at ``path``, which is created where it is missing.

    A directory that is open already, here or in another process, is StoreUnavailableError.
    ``sync``: every commit is fsynced; without, a power cut may cost the last ones, ``kill -9`` none.
    """

    def __init__(self, path: str | Path, *, sync: bool = True, guard: Guard = "reject") -> None:
        super().__init__(guard=guard)
        try:
            import rocksdict
        except ImportError as error:
            raise MissingExtraError("rocksdb", "a store of positions in RocksDB") from error
        self._path = Path(path)
        self._rocksdict = rocksdict
        self._write_options = rocksdict.WriteOptions()
        self._write_options.sync = sync
        self._opening = threading.Lock()
        self._database: Any = None
        self._family: Any = None
        make_directory(self._path.absolute())
        try:
            check_schema(self._load_number("schema_version"), str(self._path))
        except BaseException:
            self._release()
            raise

    def _live(self) -> Any:
        """The column family, open. After a failed write the database is opened anew on its next use."""
        family = self._family
        if family is not None:
            return family
        with self._opening:
            if self._family is None:
                self._refuse_closed()
                self._open()
            return self._family

    def _open(self) -> None:
        rocksdict = self._rocksdict

        def options() -> Any:
            # Raw: keys and values are the bytes that everybody else sees.
            return rocksdict.Options(raw_mode=True)

        main = options()
        main.create_if_missing(True)
        main.create_missing_column_families(True)
        with self._errors():
            # RocksDB opens only with all column families, so those of others are opened along.
            there = rocksdict.Rdict.list_cf(str(self._path), options()) if self._exists() else []
            families = {name: options() for name in {_FAMILY, *there} - {"default"}}
            self._database = rocksdict.Rdict(str(self._path), main, column_families=families)
            self._family = self._database.get_column_family(_FAMILY)

    def _exists(self) -> bool:
        return (self._path / "CURRENT").exists()

    # -- reading -------------------------------------------------------------------------------

    def _load(self, source_id: str) -> SourceCheckpoint | None:
        name = source_id.encode()
        with self._errors():
            # An iterator sees one moment, so both reads are of the same commit.
            look = self._live().iter()
            sequence = _value(look, _SEQUENCE + name)
            position = _value(look, _POSITION + name)
        if sequence is None:
            return None
        return SourceCheckpoint(number_from_bytes(sequence, f"source_sequence:{source_id}"), position)

    def _committed_sequence(self, source_id: str) -> int | None:
        raw = self._get_raw(_SEQUENCE + source_id.encode())
        return None if raw is None else number_from_bytes(raw, f"source_sequence:{source_id}")

    def _load_all(self) -> dict[str, SourceCheckpoint]:
        entries: dict[str, SourceCheckpoint] = {}
        positions: dict[bytes, bytes] = {}
        number, cut = int.from_bytes, len(_SEQUENCE)
        assert cut == len(_POSITION)
        with self._errors():
            # In key order the positions come first, so one pass over one moment finds both.
            for key, value in self._live().items(from_key=_POSITION):
                kind = key[:cut]
                if kind == _POSITION:
                    positions[key[cut:]] = value
                elif kind == _SEQUENCE:
                    if len(value) != 8:
                        number_from_bytes(value, key.decode())
                    name = key[cut:]
                    entries[name.decode()] = SourceCheckpoint(number(value, "big"), positions.get(name))
                elif key > _SEQUENCE:
                    break
        return entries

    def _load_number(self, name: str) -> int | None:
        raw = self._get(name)
        return None if raw is None else number_from_bytes(raw, name)

    def _load_markers(self) -> frozenset[Marker]:
        with self._errors():
            look = self._live().iter()
            found = {marker.value: _value(look, _MARKER + marker.value.encode()) for marker in Marker}
        return known_markers({name: raw for name, raw in found.items() if raw is not None})

    def _get(self, key: str) -> bytes | None:
        return self._get_raw(key.encode())

    def _get_raw(self, key: bytes) -> bytes | None:
        try:
            raw: bytes | None = self._live().get(key)
        except Exception as error:
            with self._errors():
                raise error
        return raw

    # -- writing -------------------------------------------------------------------------------

    def _store_number(self, name: str, value: int) -> None:
        self._write({name.encode(): number_to_bytes(value)})

    def _store_marker(self, marker: Marker) -> None:
        self._write({_MARKER + marker.value.encode(): b""})

    def _drop_marker(self, marker: Marker) -> None:
        self._write({_MARKER + marker.value.encode(): None})

    def _write_session(self, staged: Staged) -> None:
        changes: dict[bytes, bytes | None] = {}
        for source_id, entry in staged.checkpoints.items():
            name = source_id.encode()
            changes[_SEQUENCE + name] = number_to_bytes(entry.sequence)
            if entry.position is not KEEP:
                changes[_POSITION + name] = entry.position
            elif self._get(f"source_sequence:{source_id}") is None:
                # A position without an entry is nobody's. It must not become this one's.
                changes[_POSITION + name] = None
        for query_id, sequence in staged.result_sequences.items():
            changes[_RESULT + query_id.encode()] = number_to_bytes(sequence)
        if changes:
            self._write(changes)

    def _clear(self) -> None:
        generation = self._load_number("generation") or 0
        changes: dict[bytes, bytes | None] = {}
        with self._errors():
            for key in self._live().keys(from_key=_RESULT):
                if key.startswith((_SEQUENCE, _POSITION, _RESULT)):
                    changes[key] = None
                elif key > _SEQUENCE:
                    break
        changes[b"config_hash"] = None
        changes[_MARKER + Marker.BOOTSTRAPPED.value.encode()] = None
        changes[b"generation"] = number_to_bytes(min(generation + 1, MAX_U64))
        self._write(changes)

    def _write(self, changes: Mapping[bytes, bytes | None]) -> None:
        """One batch: all of it or nothing, for readers and for crashes. None deletes."""
        try:
            with self._errors():
                self._live()
                batch = self._rocksdict.WriteBatch(raw_mode=True)
                # Asked for each time: a handle that is kept would keep the directory locked after close.
                family = self._database.get_column_family_handle(_FAMILY)
                for key, value in changes.items():
                    if value is None:
                        batch.delete(key, family)
                    else:
                        batch.put(key, value, family)
                del family
                self._database.write(batch, self._write_options)
        except StoreUnavailableError as error:
            self._settle(changes, error)

    def _settle(self, changes: Mapping[bytes, bytes | None], error: StoreUnavailableError) -> None:
        """A write failed, perhaps after its bytes were in the log. Opening anew says whether they count."""
        self._drop()
        try:
            written = all(self._get_raw(key) == value for key, value in changes.items())
        except (StoreUnavailableError, CorruptError) as still:
            raise OutcomeUnknownError(
                f"{self._path}: a write failed, and opening it again did too ({still})"
            ).with_hint("free space if the disk is full, then read back before staging again") from error
        if not written:
            raise error

    # -- the border ----------------------------------------------------------------------------

    def _release(self) -> None:
        self._drop()

    def _drop(self) -> None:
        with self._opening:
            database, self._database = self._database, None
            family, self._family = self._family, None
            for handle in (family, database):
                if handle is None:
                    continue
                try:
                    handle.close()
                except Exception as error:  # noqa: BLE001 - the binding has no other kind
                    # It writes its tables out as it closes. What was committed is in the log already.
                    logger.warning("closing %s: %s", self._path, error)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """RocksDB's errors in our words: the binding raises bare Exceptions, so their text must tell."""
        try:
            yield
        except HoldfastError:
            raise
        except Exception as error:
            if isinstance(error, UnicodeDecodeError):
                raise CorruptError(str(self._path), f"a key is not UTF-8: {error.object!r}") from error
            if self._closed:
                raise InvalidInputError("this store of source positions is closed") from error
            if type(error) is not Exception and not isinstance(error, self._rocksdict.DbClosedError):
                raise
            if str(error).startswith("Corruption"):
                raise CorruptError(str(self._path), str(error)) from error
            raise StoreUnavailableError(f"{self._path}: {error}") from error


def _value(look: Any, key: bytes) -> bytes | None:
    look.seek(key)
    if look.valid() and look.key() == key:
        value: bytes = look.value()
        return value
    return None
