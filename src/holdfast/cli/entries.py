"""A store's checkpoints as a person asks for them: one entry each, and by which words one is meant.

latest      the newest on the timeline        epoch:41    the one that decided epoch 41
1a2b3c4d    an id, or either end of one       batch:40    the one whose epoch holds Spark's batch 40
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.errors import CheckpointNotFoundError, CorruptError, InvalidInputError, NotFoundError
from holdfast.ids import CheckpointId
from holdfast.ledger import CheckpointRecord, History
from holdfast.manifest import CheckpointManifestV2, SinkCommitStatus
from holdfast.store import PartitionedCheckpointStore

_MIN_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint in the terms of ``--json``. Unknown facts of an unreadable one are None."""

    checkpoint_id: CheckpointId
    epoch: int | None
    batch_id: int | None
    timestamp_ms: int | None
    kind: str
    parent_id: CheckpointId | None
    total_size_bytes: int | None
    status: str
    tags: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        return {
            "checkpoint_id": str(self.checkpoint_id),
            "epoch": self.epoch,
            "batch_id": self.batch_id,
            "timestamp_ms": self.timestamp_ms,
            "kind": self.kind,
            "parent_id": None if self.parent_id is None else str(self.parent_id),
            "total_size_bytes": self.total_size_bytes,
            "status": self.status,
            "tags": list(self.tags),
        }


class Catalog:
    """Every checkpoint of a store at one moment."""

    def __init__(self, store: PartitionedCheckpointStore) -> None:
        self._store = store
        self.history: History = store.ledger.read()
        self._tags: dict[CheckpointId, list[str]] = {}
        for id, name in self.history.holds(time.time_ns() // 1_000_000):
            self._tags.setdefault(id, []).append(name)
        self._decisions = {
            record.checkpoint_id: record
            for record in self.history.records.values()
            if isinstance(record, CheckpointRecord)
        }
        self._on_timeline = {decision.n for decision in self.history.timeline}
        # A flow's next decision says that every sink of the one before has committed.
        self._continued = {d.after for d in self._decisions.values() if d.generation > 0}

    def entries(self) -> Iterator[Entry]:
        """All that is not deleted, oldest first, the abandoned and the corrupt among them."""
        pruned = self.history.pruned()
        for id in self._ids():
            if str(id) not in pruned:
                yield self.entry(id)

    def entry(self, id: CheckpointId) -> Entry:
        decision = self._decisions.get(id)
        try:
            manifest = self._store.load_by_id(id)
        except CorruptError:
            manifest = None
        return Entry(
            checkpoint_id=id,
            epoch=decision.epoch if decision else (manifest.epoch if manifest else None),
            batch_id=_batch_id(decision, manifest),
            timestamp_ms=manifest.timestamp_ms if manifest else (decision.at_ms if decision else None),
            kind="checkpoint",
            parent_id=manifest.parent_id if manifest else None,
            total_size_bytes=manifest.total_size_bytes if manifest else None,
            status=self._status(decision, manifest),
            tags=tuple(sorted(self._tags.get(id, ()))),
        )

    def find(self, selector: str) -> CheckpointId:
        """What is meant by ``selector``. Raises NotFoundError, InvalidInputError if it means several."""
        if selector == "latest":
            return self._latest()
        word, colon, number = selector.partition(":")
        if colon and word in ("epoch", "batch"):
            return self._numbered(word, number, selector)
        return self._abbreviated(selector)

    def _ids(self) -> list[CheckpointId]:
        # A tree without a ledger is somebody else's: there the manifests are all there is.
        return list(self._decisions) if self.history.head else self._store.list_ids()

    def _latest(self) -> CheckpointId:
        if not self.history.head:
            ids = self._store.list_ids()
            if ids:
                return ids[-1]
            raise NotFoundError("there is no checkpoint yet")
        # Raises CorruptError where the newest decision cannot be read: nothing older passes for it.
        newest = self.history.newest_decision
        if newest is None:
            raise NotFoundError("there is no checkpoint yet")
        on_timeline = [d for d in self._decisions.values() if d.n in self._on_timeline]
        if not on_timeline:
            raise NotFoundError("there is no checkpoint yet")
        return on_timeline[-1].checkpoint_id

    def _numbered(self, word: str, number: str, selector: str) -> CheckpointId:
        if re.fullmatch(r"[0-9]{1,18}", number) is None:
            raise InvalidInputError(f"{selector!r} selects nothing: after '{word}:' stands a number")
        wanted = int(number)
        found = [
            decision
            for decision in self._decisions.values()
            if (wanted == decision.epoch if word == "epoch" else _holds_batch(decision, wanted))
        ]
        # A batch may have been decided twice, once on a timeline that was left.
        current = [decision for decision in found if decision.n in self._on_timeline] or found
        if not current:
            raise NotFoundError(f"no checkpoint holds {word} {wanted}").with_hint("holdfast list")
        return current[-1].checkpoint_id

    def _abbreviated(self, selector: str) -> CheckpointId:
        digits = selector.lower().replace("-", "")
        if re.fullmatch(rf"[0-9a-f]{{{_MIN_DIGITS},32}}", digits) is None:
            raise InvalidInputError(f"{selector!r} selects no checkpoint").with_hint(
                f"an id, at least {_MIN_DIGITS} digits from either end of one, latest, epoch:N or batch:N"
            )
        ids = self._ids()
        hexes = {id: str(id).replace("-", "") for id in ids}
        found = [id for id in ids if hexes[id].startswith(digits) or hexes[id].endswith(digits)]
        if not found:
            raise CheckpointNotFoundError(selector).with_hint("holdfast list")
        if len(found) > 1:
            some = ", ".join(map(str, found[:3])) + (", …" if len(found) > 3 else "")
            raise InvalidInputError(f"{selector!r} may mean {len(found)} checkpoints: {some}").with_hint(
                "the last 8 digits, as `holdfast list` shows them, are almost always enough"
            )
        return found[0]

    def _status(self, decision: CheckpointRecord | None, manifest: CheckpointManifestV2 | None) -> str:
        if decision is not None and decision.n not in self._on_timeline:
            return "abandoned"
        if manifest is None:
            return "corrupt"
        statuses = list(manifest.sink_commit_statuses.values())
        if decision is not None:
            if decision.n in self._continued:
                return "committed"
            # Of a sink that nobody has told of, nothing is known yet.
            unknown = dict.fromkeys(decision.receipts, SinkCommitStatus.PENDING)
            statuses = list((unknown | self.history.statuses(decision.epoch)).values())
        if any(status.is_failed for status in statuses):
            return "failed"
        return "committed" if all(status == SinkCommitStatus.COMMITTED for status in statuses) else "pending"


def _batch_id(decision: CheckpointRecord | None, manifest: CheckpointManifestV2 | None) -> int | None:
    if decision is not None and decision.batches is not None:
        return decision.batches[1]
    return manifest.engine.batch_id if manifest is not None and manifest.engine is not None else None


def _holds_batch(decision: CheckpointRecord, batch: int) -> bool:
    return decision.batches is not None and decision.batches[0] <= batch <= decision.batches[1]
