"""What a ledger record is, and its bytes. Pure: nothing here reads or writes a store.

One JSON object whose last 77 bytes are ``,"sha256":"<hex>"}``. The digest covers the bytes before them plus
``}``, checked raw and never re-encoded, so a flipped bit anywhere is found. ``prev`` is the SHA-256 of the
previous record's bytes as they were written.

An edit to a struct here is a format change: new fields have defaults, old ones never change meaning.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

import msgspec

from holdfast.errors import CorruptError, InvalidInputError, UnsupportedFormatError
from holdfast.ids import CheckpointId
from holdfast.manifest.codec import decode_field, encode_field, from_document, parse_object, to_document
from holdfast.manifest.parts import U64, Receipt
from holdfast.manifest.status import SinkCommitStatus

#: ``,"sha256":"`` + 64 hex digits + ``"}``.
TRAILER_BYTES: Final = 77
_TRAILER = re.compile(rb',"sha256":"([0-9a-f]{64})"\}')
_COMMON: Final = ("n", "generation", "writer", "at_ms", "prev")


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """What every record holds. A draft leaves these to ``Ledger.append``."""

    kind: ClassVar[str]

    n: U64 = 0
    generation: U64 = 0
    writer: str = ""
    at_ms: U64 = 0
    prev: str | None = None


class LogObject(msgspec.Struct, frozen=True, kw_only=True):
    """A log file too long for the record: an object of its own."""

    key: str
    size_bytes: U64
    sha256: str


class StartRecord(Fact, frozen=True, kw_only=True):
    """A generation begins. Its number *is* ``n``."""

    kind = "start"

    pipeline_hash: U64 | None = None
    topology: dict[str, Any] | None = None
    from_id: CheckpointId | None = msgspec.field(default=None, name="from")
    corrupt: list[CheckpointId] = []


class CheckpointRecord(Fact, frozen=True, kw_only=True):
    """A decision with a manifest: the epoch is real, and so is the checkpoint."""

    kind = "checkpoint"

    #: The number of the decision this one continues, 0 for the beginning. Set by ``append``.
    after: U64 = 0
    epoch: U64
    checkpoint_id: CheckpointId
    seal: str
    #: Spark's batches in this epoch, first and last, both inclusive.
    batches: tuple[U64, U64] | None = None
    receipts: dict[str, list[Receipt]] = {}
    logs: dict[str, str | LogObject] = {}


class EpochRecord(Fact, frozen=True, kw_only=True):
    """A light decision: the epoch is real; its state is rebuilt by replay from the checkpoint before."""

    kind = "epoch"

    after: U64 = 0
    epoch: U64
    checkpoint_id: CheckpointId
    batches: tuple[U64, U64] | None = None
    receipts: dict[str, list[Receipt]] = {}
    logs: dict[str, str | LogObject] = {}


class OutcomeRecord(Fact, frozen=True, kw_only=True, omit_defaults=True):
    """How far sinks got with an epoch; or that a restore is finished."""

    kind = "outcome"

    epoch: U64 | None = None
    statuses: dict[str, SinkCommitStatus] = {}
    #: Of a sink that was fed again: these replace the decision's.
    receipts: dict[str, list[Receipt]] = {}
    restore: U64 | None = None


class RestoreRecord(Fact, frozen=True, kw_only=True):
    """From here on the timeline continues decision ``to``; what came after it is abandoned."""

    kind = "restore"

    #: A decision's number, 0 for the beginning.
    to: U64
    #: What happens to the sinks: ``rewind``, ``rebase``, or None where there are none.
    sinks: str | None = None
    #: The epochs taken back, first and last, both inclusive.
    rewound: tuple[U64, U64] | None = None
    reason: str | None = None


class StopRecord(Fact, frozen=True, kw_only=True):
    """A generation ended in good order, and where its state was taken along, as ``checkpoint_id``."""

    kind = "stop"

    epoch: U64 | None = None
    checkpoint_id: CheckpointId | None = None
    seal: str | None = None


class SavepointRecord(Fact, frozen=True, kw_only=True):
    """State was taken, without a new epoch: ``epoch`` was decided before."""

    kind = "savepoint"

    epoch: U64
    checkpoint_id: CheckpointId
    seal: str | None = None
    key: str


class PruneRecord(Fact, frozen=True, kw_only=True):
    """About to be deleted. From here on these count as deleted, whether or not they still lie there."""

    kind = "prune"

    ids: list[CheckpointId] = []
    keys: list[str] = []


class HoldRecord(Fact, frozen=True, kw_only=True):
    """A name on a checkpoint: a hold, or with ``protects`` false a tag. Released by a second record."""

    kind = "hold"

    checkpoint_id: CheckpointId
    name: str
    until_ms: U64 | None = None
    released: bool = False
    protects: bool = True


Decision: TypeAlias = CheckpointRecord | EpochRecord
Record: TypeAlias = (
    StartRecord
    | CheckpointRecord
    | EpochRecord
    | OutcomeRecord
    | RestoreRecord
    | StopRecord
    | SavepointRecord
    | PruneRecord
    | HoldRecord
)
_KINDS: Final[Mapping[str, type[Any]]] = {
    cls.kind: cls
    for cls in (
        StartRecord,
        CheckpointRecord,
        EpochRecord,
        OutcomeRecord,
        RestoreRecord,
        StopRecord,
        SavepointRecord,
        PruneRecord,
        HoldRecord,
    )
}


class _Kind(msgspec.Struct):
    kind: str


_DECODERS: Final = {kind: msgspec.json.Decoder(cls, dec_hook=decode_field) for kind, cls in _KINDS.items()}


@dataclass(frozen=True, slots=True)
class Author:
    """Who appends. ``generation`` is the number of its start record, 0 for those who never started."""

    generation: int
    writer: str


def encode_record(record: Record) -> bytes:
    """The bytes of ``record`` as stored. Raises InvalidInputError for what could not be read back."""
    return seal_bytes(_ordered(record, to_document(record)))


def decode_record(data: bytes, n: int, key: str) -> Record:
    """The record in ``data``, read from ``key`` where record ``n`` lies.

    Raises CorruptError; UnsupportedFormatError for a kind of a newer version, once its digest was seen to
    match.
    """
    body = _opened(data, key)
    record = _decode_own(body)
    if record is None:
        record = _decode_strictly(body, key)
    if record.n != n:
        raise CorruptError(key, f"it holds record {record.n}, not {n}")
    reason = _impossible(record)
    if reason is not None:
        raise CorruptError(key, reason)
    return record


def _decode_own(body: bytes) -> Record | None:
    """The record, if ``body`` is byte for byte what we write; None for anything that needs a closer look.

    The strict reader takes ten times as long, and there may be 100,000 records to go through.
    """
    try:
        decoder = _DECODERS.get(msgspec.json.decode(body, type=_Kind).kind)
        if decoder is None:
            return None
        record = decoder.decode(body)
        document = msgspec.to_builtins(record, enc_hook=encode_field)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return record if msgspec.json.encode(_ordered(record, document)) == body else None


def _decode_strictly(body: bytes, key: str) -> Record:
    document = parse_object(body, key)
    kind = document.get("kind")
    missing = [name for name in _COMMON if name not in document]
    if missing or not isinstance(kind, str):
        raise CorruptError(key, f"a record without {', '.join(missing or ['kind'])}")
    if kind not in _KINDS:
        raise UnsupportedFormatError(key, f"a record of kind {kind!r}")
    record: Record = from_document(document, _KINDS[kind], key)
    return record


def _ordered(record: Record, document: dict[str, Any]) -> dict[str, Any]:
    """``document`` as it is stored: number and kind first, and the common fields always there."""
    if isinstance(record, OutcomeRecord):
        # It leaves out what it has nothing to say of.
        document = {name: getattr(record, name) for name in _COMMON} | document
    return {"n": document["n"], "kind": record.kind} | document


def _impossible(record: Record) -> str | None:
    if isinstance(record, StartRecord) and record.generation != record.n:
        return f"a start is its own generation: {record.n}, not {record.generation}"
    if isinstance(record, CheckpointRecord | EpochRecord) and record.after >= record.n:
        return f"it continues record {record.after}, which does not come before it"
    if isinstance(record, RestoreRecord) and record.to >= record.n:
        return f"it goes back to record {record.to}, which does not come before it"
    return None


def seal_bytes(document: Mapping[str, Any]) -> bytes:
    """``document`` as one JSON object that ends in its own digest."""
    body = msgspec.json.encode(document)
    return body[:-1] + b',"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'"}'


def open_bytes(data: bytes, key: str) -> dict[str, Any]:
    """The document ``seal_bytes`` made, without its digest. Raises CorruptError."""
    return parse_object(_opened(data, key), key)


def _opened(data: bytes, key: str) -> bytes:
    """The bytes that ``seal_bytes`` sealed. Raises CorruptError."""
    trailer = _TRAILER.fullmatch(data, max(0, len(data) - TRAILER_BYTES))
    if trailer is None:
        raise CorruptError(key, f"it does not end in its digest ({len(data)} bytes)")
    body = data[:-TRAILER_BYTES] + b"}"
    computed = hashlib.sha256(body).hexdigest()
    if computed.encode() != trailer[1]:
        raise CorruptError(
            key, f"its content does not match its digest: expected {trailer[1].decode()}, got {computed}"
        )
    return body


def references(record: Record) -> Iterator[str]:
    """Every checkpoint id (as text) and every key that ``record`` itself names as something to be kept."""
    if isinstance(record, StartRecord):
        if record.from_id is not None:
            yield str(record.from_id)
    elif isinstance(record, CheckpointRecord | EpochRecord):
        yield str(record.checkpoint_id)
        yield from (log.key for log in record.logs.values() if isinstance(log, LogObject))
    elif isinstance(record, StopRecord):
        if record.checkpoint_id is not None:
            yield str(record.checkpoint_id)
    elif isinstance(record, SavepointRecord):
        yield str(record.checkpoint_id)
        yield record.key
    elif isinstance(record, HoldRecord) and not record.released:
        yield str(record.checkpoint_id)


def check_draft(draft: Record) -> None:
    """InvalidInputError for a draft that says nothing, or something impossible."""
    if isinstance(draft, CheckpointRecord | EpochRecord) and draft.epoch < 1:
        raise InvalidInputError(f"epochs start at 1, not {draft.epoch}")
    if isinstance(draft, OutcomeRecord) and (draft.epoch is None) == (draft.restore is None):
        raise InvalidInputError("an outcome is that of an epoch, or that of a restore")
    if isinstance(draft, PruneRecord) and not (draft.ids or draft.keys):
        raise InvalidInputError("a prune record names what is to be deleted")
    batches = getattr(draft, "batches", None)
    if batches is not None and batches[0] > batches[1]:
        raise InvalidInputError(f"the first batch of an epoch comes before its last, not {batches}")
