"""Source positions on a server that speaks the Redis protocol. As durable as that server is set to be.

    ss:{<q>}:seq:<source>      decimal          ss:{<q>}:config_hash  result_seq  generation  schema_version
    ss:{<q>}:pos:<source>      raw                                    decimal; result_seq is <q>'s own
    ss:{<q>}:sources           JSON array       ss:{<q>}:result_seqs  hash: another query -> decimal
                                                ss:{<q>}:markers      set

The braces are literal and put one query into one cluster slot. A session is one MULTI/EXEC. From
the first look at a source to EXEC its key is watched, and so is ``generation``: so a rival's write
or clear in between is never overwritten blindly, and touching ``generation`` later makes sure that
an EXEC whose reply was lost, and that may still be on its way, does nothing any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import (
    CorruptError,
    HoldfastError,
    InvalidInputError,
    OutcomeUnknownError,
    SequenceRegressionError,
    StoreUnavailableError,
)
from holdfast.positions.base import KEEP, MAX_U64, Guard, Marker, SourceCheckpoint, checked_id
from holdfast.positions.persistent import PersistentStore, Staged, StagedCheckpoint, check_schema
from holdfast.positions.redis_wire import Command, Connection, LostReply, Wire

#: How often a write starts over because a rival changed what it watched.
_ATTEMPTS = 20
_CHUNK = 1_000
_HOT_SOURCES = 1_000
_ZERO = ord("0")


@dataclass(slots=True)
class _Watch:
    """What a session saw, on the connection that watches it."""

    connection: Connection
    sequences: dict[str, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Listed:
    """The value of ``sources``, what it says, and the keys that it leads to."""

    raw: bytes | None
    names: list[str]
    keys: list[str]


class RedisSourceCheckpointStore(PersistentStore):
    """One query's positions on Redis, Valkey, or another server that knows MULTI, WATCH and EXEC."""

    def __init__(self, url: str, query_id: str, *, guard: Guard = "reject") -> None:
        super().__init__(guard=guard)
        self._query = checked_id(query_id, "query id")
        if "{" in query_id or "}" in query_id:
            raise InvalidInputError(f"a query id must not hold braces here, they mark the slot: {query_id!r}")
        self._prefix = f"ss:{{{query_id}}}:"
        self._wire = Wire(url)
        # What was last seen at ``sources``, so that reading all entries takes one round trip.
        self._listed = _Listed(None, [], [])
        # The sources of the last session, looked at together when the next one begins to stage.
        self._hot: tuple[str, ...] = ()
        try:
            check_schema(self._load_number("schema_version"), self._key("schema_version"))
        except BaseException:
            self._wire.close()
            raise

    def _key(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)

    # -- reading -------------------------------------------------------------------------------

    def _load(self, source_id: str) -> SourceCheckpoint | None:
        entries = self._entries([source_id], self._mget(self._entry_keys([source_id])))
        return entries.get(source_id)

    def _load_all(self) -> dict[str, SourceCheckpoint]:
        for _ in range(_ATTEMPTS):
            listed = self._listed
            # One command sees one moment, and is not refused where a transaction would be.
            raw, *values = self._mget([self._key("sources"), *listed.keys])
            if raw == listed.raw:
                return self._entries(listed.names, values)
            # The list had changed, and now we know it. List and entries must be of one moment.
            names = self._source_ids(raw)
            self._listed = _Listed(raw, names, self._entry_keys(names))
        raise StoreUnavailableError(
            f"{self._wire.where}: the list of sources changes faster than it can be read"
        )

    def _entry_keys(self, names: Sequence[str]) -> list[str]:
        return [self._key(kind, name) for kind in ("seq", "pos") for name in names]

    def _entries(self, names: Sequence[str], values: Sequence[bytes | None]) -> dict[str, SourceCheckpoint]:
        sequences, positions = values[: len(names)], values[len(names) :]
        prefix = self._key("seq", "")
        return {
            name: SourceCheckpoint(_decimal(sequence, prefix + name), position)
            for name, sequence, position in zip(names, sequences, positions, strict=True)
            # Listed and not there: what a clear that died half-way, not ours, leaves behind.
            if sequence is not None
        }

    def _mget(self, keys: Sequence[str]) -> list[bytes | None]:
        values: list[bytes | None]
        (values,) = self._wire.read(("MGET", *keys))
        if None in values:
            self._refuse_other_types([key for key, value in zip(keys, values, strict=True) if value is None])
        return values

    def _refuse_other_types(self, keys: Sequence[str]) -> None:
        """To MGET a list or a hash is as good as missing. Look whether one of these is."""
        (count,) = self._wire.read(("EXISTS", *keys))
        if not count:
            return
        types = self._wire.read(*[("TYPE", key) for key in keys])
        for key, kind in zip(keys, types, strict=True):
            if kind not in (b"none", b"string"):
                raise CorruptError(key, f"a string was expected, and this is a {kind.decode()}")

    def _load_number(self, name: str) -> int | None:
        command, key = self._number_at(name)
        (raw,) = self._wire.read(command)
        return None if raw is None else _decimal(raw, key)

    def _number_at(self, name: str) -> tuple[Command, str]:
        result_of = name.removeprefix("result_sequence:") if name.startswith("result_sequence:") else None
        if result_of is None:
            return ("GET", self._key(name)), self._key(name)
        if result_of == self._query:
            return ("GET", self._key("result_seq")), self._key("result_seq")
        return ("HGET", self._key("result_seqs"), result_of), f"{self._key('result_seqs')}[{result_of}]"

    def _load_markers(self) -> frozenset[Marker]:
        (members,) = self._wire.read(("SMEMBERS", self._key("markers")))
        return frozenset(marker for marker in Marker if marker.value.encode() in members)

    def _source_ids(self, raw: bytes | None) -> list[str]:
        if raw is None:
            return []
        key = self._key("sources")
        try:
            names = json.loads(raw)
        except ValueError as error:
            raise CorruptError(key, "it is not JSON") from error
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise CorruptError(key, "a JSON array of source ids was expected")
        return list(dict.fromkeys(names))

    # -- sessions ------------------------------------------------------------------------------

    def _committed_sequence(self, source_id: str) -> int | None:
        watch = self._watch(self._staged)
        if source_id not in watch.sequences:
            ahead = self._hot if not watch.sequences else ()
            self._look(self._staged, [source_id, *ahead])
        raw = self._staged.seen.sequences[source_id]
        return None if raw is None else _decimal(raw, self._key("seq", source_id))

    def _watch(self, staged: Staged) -> _Watch:
        if staged.seen is None:
            staged.seen = _Watch(self._wire.take())
        watch: _Watch = staged.seen
        return watch

    def _look(self, staged: Staged, source_ids: Iterable[str]) -> None:
        """Watch these sources and see where they stand, in one round trip."""
        watch = self._watch(staged)
        new = [each for each in dict.fromkeys(source_ids) if each not in watch.sequences]
        if not new and watch.sequences:
            return
        keys = [self._key("seq", each) for each in new]
        look: list[Command] = [("WATCH", self._key("generation"), *keys)]
        if keys:
            look.append(("MGET", *keys))
        try:
            found = [*self._wire.exchange(watch.connection, look), []][1]
            if None in found:
                # To MGET a key of another type is missing too; GET tells.
                found = self._wire.exchange(watch.connection, [("GET", key) for key in keys])
        except LostReply as lost:
            staged.seen = None
            raise lost.error from lost
        for reply in found:
            self._wire.refuse_error(reply)
        watch.sequences.update(zip(new, found, strict=True))

    def _discard(self, staged: Staged) -> None:
        watch, staged.seen = staged.seen, None
        if watch is not None:
            # With its connection goes the watch.
            self._wire.drop(watch.connection)

    def _write_session(self, staged: Staged) -> None:
        if not staged:
            self._discard(staged)
            return
        try:
            for _ in range(_ATTEMPTS):
                if self._attempt(staged):
                    self._hot = tuple(staged.checkpoints)[:_HOT_SOURCES]
                    return
            raise StoreUnavailableError(f"{self._wire.where}: rivals changed these sources at every attempt")
        finally:
            self._discard(staged)

    def _attempt(self, staged: Staged) -> bool:
        """Write the session once. False: a rival or a broken connection came between; nothing was done."""
        self._look(staged, staged.checkpoints)
        watch: _Watch = staged.seen
        entries = self._unless_passed(staged, watch)
        commands = self._commands(entries, staged, watch)
        try:
            done = self._wire.transaction(watch.connection, commands)
        except LostReply as lost:
            known = dict(watch.sequences)
            staged.seen = None
            return self._settle(entries, staged.result_sequences, known, lost)
        # EXEC ended the watch, and the connection is as good as new.
        staged.seen = None
        self._wire.give_back(watch.connection)
        return done is not None

    def _unless_passed(self, staged: Staged, watch: _Watch) -> dict[str, StagedCheckpoint]:
        """The entries to write: a rival may have gone past a guarded one since it was staged."""
        entries = dict(staged.checkpoints)
        for source_id, entry in staged.checkpoints.items():
            raw = watch.sequences[source_id]
            if not entry.guarded or raw is None:
                continue
            stands_at = _decimal(raw, self._key("seq", source_id))
            if entry.sequence < stands_at and entry.ignored:
                del entries[source_id]
            elif entry.sequence < stands_at:
                raise SequenceRegressionError(source_id, stands_at, entry.sequence)
        return entries

    def _commands(self, entries: dict[str, StagedCheckpoint], staged: Staged, watch: _Watch) -> list[Command]:
        commands: list[Command] = []
        new = [source_id for source_id in entries if watch.sequences[source_id] is None]
        for source_id, entry in entries.items():
            commands.append(("SET", self._key("seq", source_id), str(entry.sequence)))
            if isinstance(entry.position, bytes):
                commands.append(("SET", self._key("pos", source_id), entry.position))
            elif entry.position is None or watch.sequences[source_id] is None:
                # Also for KEEP without an entry: a position alone is nobody's.
                commands.append(("DEL", self._key("pos", source_id)))
        if new:
            commands.append(("SET", self._key("sources"), self._sources_with(new, staged, watch)))
        commands += [self._set_result(each, value) for each, value in staged.result_sequences.items()]
        if any(command[0] == "HSET" for command in commands):
            self._refuse_wrong_type(self._key("result_seqs"), staged, watch)
        return commands

    def _refuse_wrong_type(self, key: str, staged: Staged, watch: _Watch) -> None:
        # EXEC does not take back what it did before a command that fails on a wrong type.
        try:
            _, reply = self._wire.exchange(watch.connection, [("WATCH", key), ("HLEN", key)])
        except LostReply as lost:
            staged.seen = None
            raise lost.error from lost
        self._wire.refuse_error(reply)

    def _sources_with(self, new: list[str], staged: Staged, watch: _Watch) -> bytes:
        key = self._key("sources")
        try:
            _, raw = self._wire.exchange(watch.connection, [("WATCH", key), ("GET", key)])
        except LostReply as lost:
            staged.seen = None
            raise lost.error from lost
        self._wire.refuse_error(raw)
        names = dict.fromkeys([*self._source_ids(raw), *new])
        return json.dumps(list(names), ensure_ascii=False, separators=(",", ":")).encode()

    def _set_result(self, query_id: str, value: int) -> Command:
        if query_id == self._query:
            return ("SET", self._key("result_seq"), str(value))
        return ("HSET", self._key("result_seqs"), query_id, str(value))

    def _settle(
        self,
        entries: dict[str, StagedCheckpoint],
        results: dict[str, int],
        known: dict[str, bytes | None],
        lost: LostReply,
    ) -> bool:
        """The reply to EXEC was lost. True: it was done. False: it was not, and never will be.

        In one transaction ``generation`` is touched, which the lost EXEC watches, and everything is
        read: so what is seen is how it stays.
        """
        unknown = OutcomeUnknownError(
            f"{self._wire.where}: the reply to a commit was lost, and reading back did not settle it"
        ).with_hint("read the checkpoints back before staging again")
        wanted = [(each, str(entry.sequence).encode()) for each, entry in entries.items()]
        reads: list[Command] = [("GET", self._key("seq", each)) for each in entries]
        reads += [("GET", self._key("pos", each)) for each in entries]
        reads += [self._number_at(f"result_sequence:{each}")[0] for each in results]
        try:
            found = self._touch_generation(reads)
        except (StoreUnavailableError, CorruptError) as error:
            raise unknown from error
        sequences, rest = found[: len(wanted)], found[len(wanted) :]
        positions, numbers = rest[: len(wanted)], rest[len(wanted) :]
        shows = (
            sequences == [sequence for _, sequence in wanted]
            and all(
                entry.position is KEEP or entry.position == position
                for entry, position in zip(entries.values(), positions, strict=True)
            )
            and numbers == [str(value).encode() for value in results.values()]
        )
        if shows:
            return True
        if (
            entries
            and sequences == [known[each] for each, _ in wanted]
            and sequences != [s for _, s in wanted]
        ):
            return False
        raise unknown from lost.error

    def _touch_generation(self, reads: Sequence[Command]) -> list[Any]:
        key = self._key("generation")
        for _ in range(_ATTEMPTS):
            try:
                with self._wire.borrowed() as connection:
                    _, raw = self._wire.exchange(connection, [("WATCH", key), ("GET", key)])
                    self._wire.refuse_error(raw)
                    touch: list[Command] = [("SET", key, raw if raw is not None else "0")]
                    if raw is None:
                        touch.append(("DEL", key))
                    done = self._wire.transaction(connection, [*reads, *touch])
            except LostReply as lost:
                raise lost.error from lost
            if done is not None:
                return done[: len(reads)]
        raise StoreUnavailableError(f"{self._wire.where}: {key} changes all the time")

    # -- at once -------------------------------------------------------------------------------

    def _store_number(self, name: str, value: int) -> None:
        if name.startswith("result_sequence:"):
            self._at_once(self._set_result(name.removeprefix("result_sequence:"), value))
        else:
            self._at_once(("SET", self._key(name), str(value)))

    def _store_marker(self, marker: Marker) -> None:
        self._at_once(("SADD", self._key("markers"), marker.value))

    def _drop_marker(self, marker: Marker) -> None:
        self._at_once(("SREM", self._key("markers"), marker.value))

    def _at_once(self, command: Command) -> None:
        """One command that may safely be done twice: a lost reply means doing it again."""
        try:
            self._do(command)
        except LostReply as lost:
            try:
                self._do(command)
            except (LostReply, StoreUnavailableError):
                raise OutcomeUnknownError(
                    f"{self._wire.where}: the reply to a write was lost"
                ) from lost.error

    def _do(self, command: Command) -> None:
        with self._wire.borrowed() as connection:
            (reply,) = self._wire.exchange(connection, [command])
            self._wire.refuse_error(reply)

    def _clear(self) -> None:
        for _ in range(_ATTEMPTS):
            if self._clear_once(None):
                return
        raise StoreUnavailableError(f"{self._wire.where}: rivals changed this query at every attempt")

    def _clear_once(self, lost_at: int | None) -> bool:
        """Clear, if nothing changes meanwhile. ``lost_at``: the generation when a reply was lost before.

        Trying again settles that one: either it is seen to be done, or this one overtakes it.
        """
        generation, sources, markers = (self._key(each) for each in ("generation", "sources", "markers"))
        stands_at = 0
        sent = False
        try:
            with self._wire.borrowed() as connection:
                _, raw, listed, count = self._wire.exchange(
                    connection,
                    [
                        ("WATCH", generation, sources, markers),
                        *[("GET", generation), ("GET", sources), ("SCARD", markers)],
                    ],
                )
                for reply in (raw, listed, count):
                    # EXEC does not take back what it did before a command that fails on a wrong type.
                    self._wire.refuse_error(reply)
                stands_at = _decimal(raw, generation) if raw is not None else 0
                if lost_at is not None and stands_at != lost_at:
                    self._wire.exchange(connection, [("UNWATCH",)])
                    return True
                commands = self._clearing(stands_at, self._source_ids(listed))
                sent = True
                return self._wire.transaction(connection, commands) is not None
        except LostReply as lost:
            if not sent or lost_at is not None:
                raise self._unsettled(lost.error, lost_at) from lost.error
        except StoreUnavailableError as error:
            raise self._unsettled(error, lost_at) from error
        return self._clear_once(stands_at)

    def _unsettled(self, error: HoldfastError, lost_at: int | None) -> HoldfastError:
        if lost_at is None:
            return error
        return OutcomeUnknownError(
            f"{self._wire.where}: the reply to a clear was lost, and reading back failed"
        )

    def _clearing(self, generation: int, source_ids: Sequence[str]) -> list[Command]:
        keys = [self._key(kind, each) for each in source_ids for kind in ("seq", "pos")]
        keys += [self._key(name) for name in ("sources", "config_hash", "result_seq", "result_seqs")]
        commands: list[Command] = [("DEL", *keys[at : at + _CHUNK]) for at in range(0, len(keys), _CHUNK)]
        commands.append(("SREM", self._key("markers"), Marker.BOOTSTRAPPED.value))
        commands.append(("SET", self._key("generation"), str(min(generation + 1, MAX_U64))))
        return commands

    def _release(self) -> None:
        self._wire.close()


def _decimal(raw: bytes, key: str) -> int:
    # Of bytes, isdigit knows the ASCII digits alone. No sign, no blank, no leading zero.
    if (
        not raw.isdigit()
        or len(raw) > 20
        or (raw[0] == _ZERO and raw != b"0")
        or (value := int(raw)) > MAX_U64
    ):
        raise CorruptError(key, f"a decimal number below 2^64 was expected, and this is {raw[:40]!r}")
    return value
