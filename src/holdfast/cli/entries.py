"""A store's checkpoints as a person asks for them: one entry each, and by which words one is meant.

latest      the newest on the timeline        epoch:41    the one that decided epoch 41
1a2b3c4d    an id, or either end of one       batch:40    the one whose epoch holds Spark's batch 40
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from holdfast.errors import CheckpointNotFoundError, CorruptError, InvalidInputError, NotFoundError
from holdfast.ids import CheckpointId
from holdfast.ledger import Decision, Gap, History, is_decision
from holdfast.manifest import CheckpointManifestV2, SinkCommitStatus
from holdfast.store import PartitionedCheckpointStore
from holdfast.store.naming import Named, named_by, named_on_timeline

_MIN_DIGITS = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One checkpoint in the terms of ``--json``. Unknown facts of an unreadable one are None."""

    checkpoint_id: CheckpointId | int
    epoch: int | None
    batch_id: int | None
    timestamp_ms: int | None
    kind: str
    parent_id: CheckpointId | int | None
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
    """Every checkpoint of a store at one moment. Reads the whole ledger only where all of it is asked for."""

    def __init__(self, store: PartitionedCheckpointStore) -> None:
        self._store = store
        self.history: History = store.ledger.read()

    def entries(self) -> Iterator[Entry]:
        """All that is not deleted, oldest first, the abandoned and the corrupt among them."""
        pruned = self.history.pruned()
        for id in self._ids:
            if str(id) not in pruned:
                yield self.entry(id)

    def entry(self, id: CheckpointId) -> Entry:
        named = self._named.get(id)
        decision = self._decision_of(named)
        try:
            manifest = self._store.load_named(named) if named is not None else self._store.load_by_id(id)
        except CorruptError:
            manifest = None
        return Entry(
            checkpoint_id=id,
            epoch=named.epoch if named else (manifest.epoch if manifest else None),
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

    @cached_property
    def _named(self) -> dict[CheckpointId, Named]:
        """What records name, by a decision or where a stop took state along, oldest first."""
        found = (named_by(record) for record in self.history.records.values())
        return {named.id: named for named in found if named is not None}

    @cached_property
    def _decisions(self) -> dict[int, Decision]:
        """Every decision by its epoch."""
        return {record.epoch: record for record in self.history.records.values() if is_decision(record)}

    @cached_property
    def _ids(self) -> list[CheckpointId]:
        # A tree without a ledger is somebody else's: there the manifests are all there is.
        return list(self._named) if self.history.head else self._store.list_ids()

    @cached_property
    def _on_timeline(self) -> frozenset[int]:
        return frozenset(decision.n for decision in self.history.timeline)

    @cached_property
    def _continued(self) -> frozenset[int]:
        """Decisions that a flow's next one follows: it says that every sink of them has committed."""
        return frozenset(one.after for one in self._decisions.values() if one.generation > 0)

    @cached_property
    def _tags(self) -> dict[CheckpointId, list[str]]:
        tags: dict[CheckpointId, list[str]] = {}
        for id, name in self.history.holds(time.time_ns() // 1_000_000):
            tags.setdefault(id, []).append(name)
        return tags

    def _decision_of(self, named: Named | None) -> Decision | None:
        return None if named is None else self._decisions.get(named.epoch)

    def _latest(self) -> CheckpointId:
        if not self.history.head:
            ids = self._ids
            if ids:
                return ids[-1]
            raise NotFoundError("there is no checkpoint yet")
        newest = next(named_on_timeline(self.history), None)
        if newest is None:
            raise NotFoundError("there is no checkpoint yet")
        if isinstance(newest, Gap):
            # Nothing older may pass for the newest.
            raise newest.error.with_hint("holdfast recover --dry-run")
        return newest.id

    def _numbered(self, word: str, number: str, selector: str) -> CheckpointId:
        if re.fullmatch(r"[0-9]{1,18}", number) is None:
            raise InvalidInputError(f"{selector!r} selects nothing: after '{word}:' stands a number")
        wanted = int(number)
        decided = {named.id: self._decision_of(named) for named in self._named.values()}
        found = {
            id: decision
            for id, decision in decided.items()
            if decision and (wanted == decision.epoch if word == "epoch" else _holds_batch(decision, wanted))
        }
        # A batch may have been decided twice, once on a timeline that was left.
        current = [id for id, decision in found.items() if decision.n in self._on_timeline] or list(found)
        if not current:
            raise NotFoundError(f"no checkpoint holds {word} {wanted}").with_hint("holdfast list")
        return current[-1]

    def _abbreviated(self, selector: str) -> CheckpointId:
        digits = selector.lower().replace("-", "")
        if re.fullmatch(rf"[0-9a-f]{{{_MIN_DIGITS},32}}", digits) is None:
            raise InvalidInputError(f"{selector!r} selects no checkpoint").with_hint(
                f"an id, at least {_MIN_DIGITS} digits from either end of one, latest, epoch:N or batch:N"
            )
        ids = self._ids
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

    def _status(self, decision: Decision | None, manifest: CheckpointManifestV2 | None) -> str:
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


def _batch_id(decision: Decision | None, manifest: CheckpointManifestV2 | None) -> int | None:
    if decision is not None and decision.batches is not None:
        return decision.batches[1]
    return manifest.engine.batch_id if manifest is not None and manifest.engine is not None else None


def _holds_batch(decision: Decision, batch: int) -> bool:
    return decision.batches is not None and decision.batches[0] <= batch <= decision.batches[1]
