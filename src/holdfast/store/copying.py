"""Checkpoints from one store to another: all of a flow with its ledger, or some of them under a new one.

    replicate   the same bytes under the same keys, the ledger last: what results is the flow, elsewhere
    copy_some   checkpoints with the chains they stand on, published anew: a store that is no flow's

Both send objects first, then manifests, then records, so what was cut short is no checkpoint to anybody and
the next copy sends only what is missing. Every byte sent is checked against its manifest on the way; what
lies there already is taken by name and size, and ``verify`` reads it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field

from holdfast.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptError,
    KeyExistsError,
    KeyNotFoundError,
)
from holdfast.ids import CheckpointId
from holdfast.layout import LEDGER_PREFIX, boundary_key, ledger_key, ledger_number, split_packed
from holdfast.ledger import History, LogObject, SavepointRecord, is_decision
from holdfast.manifest import CheckpointManifestV2
from holdfast.manifest.codec import sha256_hex
from holdfast.manifest.v2 import read_sealed
from holdfast.store.findings import Problem
from holdfast.store.naming import Named, named_by
from holdfast.store.objects import checked, create_once
from holdfast.store.parallel import try_all
from holdfast.store.partitioned import PartitionedCheckpointStore
from holdfast.store.validating import artifacts_of

#: How often a copy is planned again because the source was pruned under it.
ATTEMPTS = 10


@dataclass(slots=True)
class Copied:
    """What a copy came to. ``problems``: what is wrong in the source, and was therefore not sent."""

    checkpoints: int = 0
    sent: int = 0
    sent_bytes: int = 0
    #: Objects, manifests and records that lay in the target already.
    present: int = 0
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Expected:
    """An object that a manifest or a record names. What is None is not recorded."""

    key: str
    size_bytes: int | None = None
    sha256: str | None = None


def replicate(
    source: PartitionedCheckpointStore,
    target: PartitionedCheckpointStore,
    *,
    progress: Callable[[str], None] | None = None,
) -> Copied:
    """Make ``target`` hold what ``source`` held when this began, or bring it up to that.

    Raises ConflictError if the target has a history of its own, CorruptError while a record of the source
    cannot be read. A damaged checkpoint is a problem in the result; the others are sent all the same.
    """
    sent = 0
    for _ in range(ATTEMPTS):
        history = source.ledger.read()
        for error in history.problems.values():
            raise error.with_hint("nothing is copied while a record cannot be read; see holdfast verify")
        there = _records_there(source, target, history)
        sender = _Sender(source, target, progress)
        for named in _all_named(source, history):
            sender.checkpoint(named, history)
        sender.objects(_of_records(history))
        # Until here nothing of it is a checkpoint in the target, and what was pruned meanwhile never will be.
        if not _was_pruned(source, history) and sender.records(history, there):
            return sender.done
        sent += sender.done.sent
    raise ConflictError(f"the source was pruned {ATTEMPTS} times while {sent} objects were sent").with_hint(
        "copy again: only what is missing is sent"
    )


def copy_some(
    source: PartitionedCheckpointStore,
    target: PartitionedCheckpointStore,
    ids: Collection[CheckpointId],
    *,
    progress: Callable[[str], None] | None = None,
) -> Copied:
    """Publish checkpoints of ``source`` in ``target`` as well, oldest first, with what they stand on.

    A copy has no sinks to drive, so receipts stay behind. Raises CorruptError for one that is not sound,
    ConflictError where the target is a flow's or has decided these epochs otherwise.
    """
    sender = _Sender(source, target, progress)
    links = {link.checkpoint_id: link for id in ids for link in source.chain(id)}
    # A parent's epoch is always the lower one; foreign ids sort as they like.
    for id in sorted(links, key=lambda id: links[id].epoch):
        if target.load_raw(id) is not None:
            sender.done.present += 1
            continue
        sender.objects(list(_of_manifest(source, links[id])))
        if sender.done.problems:
            problem = sender.done.problems[0]
            raise CorruptError(problem.key, problem.message).with_hint(problem.hint)
        manifest = source.load_by_id(id)
        if manifest is None:
            raise CheckpointNotFoundError(id)
        target.save(manifest.replaced(sink_receipts={}))
        sender.done.checkpoints += 1
    return sender.done


class _Sender:
    def __init__(
        self,
        source: PartitionedCheckpointStore,
        target: PartitionedCheckpointStore,
        progress: Callable[[str], None] | None,
    ) -> None:
        self.done = Copied()
        self._source = source
        self._target = target
        self._progress = progress or _ignore
        self._seen: set[CheckpointId] = set()
        self._bounded = False
        #: Objects travel side by side.
        self._lock = threading.Lock()

    def checkpoint(self, named: Named, history: History) -> None:
        """Objects, then the manifest; parents that no record names with them."""
        if named.id in self._seen:
            return
        self._seen.add(named.id)
        try:
            data, key = self._source.manifest_bytes(named.id)
            manifest = read_sealed(data, key, expected_seal=named.seal)
        except CorruptError as error:
            self.done.problems.append(_problem(error, named.id))
            return
        if manifest.parent_id is not None and manifest.needs_parent():
            parent = history.naming(manifest.parent_id) if history.head else None
            if parent is None:
                self.checkpoint(Named(manifest.parent_id, 0, manifest.parent_seal, 0), history)
        self.objects(list(_of_manifest(self._source, manifest)))
        self.raw(key, data)
        self.done.checkpoints += 1

    def objects(self, wanted: list[_Expected]) -> None:
        for one, error in try_all(self._object, wanted):
            if not isinstance(error, CorruptError):
                raise error
            self.done.problems.append(_problem(error, None, one.key))

    def raw(self, key: str, data: bytes) -> None:
        """Manifests and records: small, and compared where they are there already."""
        self._progress(key)
        try:
            self._target.blobs.create(key, data)
        except KeyExistsError:
            if self._target.blobs.get(key) != data:
                raise ConflictError(f"{key} of the target is not the one of the source").with_hint(
                    "if holdfast verify says that it is damaged there, delete it and copy again"
                ) from None
            self.done.present += 1
        else:
            self._count(len(data))

    def records(self, history: History, there: set[int]) -> bool:
        """The ledger, oldest first. False if it was trimmed meanwhile, and has to be looked at again."""
        try:
            for n in sorted(history.numbers()):
                if n > history.boundary.n:
                    self._boundary(history)
                if n in there:
                    self.done.present += 1
                else:
                    self.raw(ledger_key(n), self._source.blobs.get(ledger_key(n)))
            self._boundary(history)
        except KeyNotFoundError:
            return False
        return True

    def _boundary(self, history: History) -> None:
        """After the records it keeps, before those above it: then as few as can be seem to be missing."""
        if self._bounded or not history.boundary.n:
            return
        self._bounded = True
        key = boundary_key(history.boundary.n)
        self.raw(key, self._source.blobs.get(key))

    def _object(self, wanted: _Expected) -> None:
        self._progress(wanted.key)
        present = self._target.blobs.head(wanted.key)
        if present is not None and wanted.size_bytes in (None, present.size):
            with self._lock:
                self.done.present += 1
            return
        try:
            data = self._source.blobs.get(wanted.key)
        except KeyNotFoundError:
            raise CorruptError(wanted.key, "a manifest or a record names it, and it is missing") from None
        if wanted.size_bytes is not None and wanted.sha256 is not None:
            checked(data, wanted.size_bytes, wanted.sha256, wanted.key)
        create_once(self._target.blobs, wanted.key, data, sha256_hex(data))
        self._count(len(data))

    def _count(self, size: int) -> None:
        with self._lock:
            self.done.sent += 1
            self.done.sent_bytes += size


def _records_there(
    source: PartitionedCheckpointStore, target: PartitionedCheckpointStore, history: History
) -> set[int]:
    """The target's records, once they are seen to be of the source's ledger. Raises ConflictError."""
    numbers = {ledger_number(info.key) for info in target.blobs.list(LEDGER_PREFIX)}
    there = {n for n in numbers if n is not None}
    if not there:
        if target.list_ids() and history.head:
            raise _foreign("it holds checkpoints and no ledger")
        return there
    if max(there) > history.head:
        raise _foreign(f"its ledger goes on to record {max(there)}, the source's ends at {history.head}")
    shared = [n for n in there if history.boundary.has(n)]
    if not shared:
        raise _foreign("no record of it is left in the source, so nothing shows that they are one ledger")
    # Each record names the one before it: where this one is the same, so are all below.
    key = ledger_key(max(shared))
    if target.blobs.get(key) != source.blobs.get(key):
        raise _foreign(f"{key} is another record there")
    return there


def _was_pruned(source: PartitionedCheckpointStore, history: History) -> bool:
    now = source.ledger.read()
    return bool(now.pruned(since=history.head)) or now.boundary.n != history.boundary.n


def _foreign(reason: str) -> ConflictError:
    return ConflictError(f"the target has a history of its own: {reason}").with_hint(
        "copy into an empty place, or name the checkpoints to copy"
    )


def _all_named(source: PartitionedCheckpointStore, history: History) -> Iterator[Named]:
    """Everything that is a checkpoint and not pruned, abandoned ones included, oldest first."""
    if not history.head:
        yield from (named for named in source.named() if isinstance(named, Named))
        return
    pruned = history.pruned()
    for record in history.records.values():
        named = named_by(record)
        if named is not None and str(named.id) not in pruned:
            yield named


def _of_records(history: History) -> list[_Expected]:
    """Long logs and savepoints: objects that records name themselves."""
    pruned = history.pruned()
    wanted: list[_Expected] = []
    for record in history.records.values():
        if isinstance(record, SavepointRecord):
            wanted.append(_Expected(record.key))
        if is_decision(record):
            logs = [log for log in record.logs.values() if isinstance(log, LogObject)]
            wanted += [_Expected(log.key, log.size_bytes, log.sha256) for log in logs]
    return [one for one in dict.fromkeys(wanted) if one.key not in pruned]


def _of_manifest(source: PartitionedCheckpointStore, manifest: CheckpointManifestV2) -> Iterator[_Expected]:
    """Every object of a checkpoint, at the key where it really lies."""

    def key(name: str) -> str:
        id = manifest.checkpoint_id
        return source.objects.find_key(id, name) or source.objects.key(id, name)

    for name, stored in manifest.objects.items():
        yield _Expected(key(name), stored.size_bytes, stored.sha256)
    for part in artifacts_of(manifest):
        name, entry = split_packed(part.path)
        if name not in manifest.objects:  # a foreign manifest's
            yield _Expected(key(name)) if entry else _Expected(key(name), part.size_bytes, part.sha256)


def _problem(error: CorruptError, id: CheckpointId | None, key: str | None = None) -> Problem:
    hint = "holdfast verify --read-data on the source names everything that depends on it"
    return Problem("object" if id is None else "manifest", error.reason, key or error.key, hint)


def _ignore(key: str) -> None:
    del key
