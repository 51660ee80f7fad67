"""A checkpoint becomes a directory that Spark resumes from. Never in place, and every byte checked on the
way.

Rolling a directory back in place leaves newer files behind, and Spark loads them without a word. So the
target is fresh, always. What a restore means for the sinks of a running flow is the coordinator's business,
not this one's.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

from holdfast.errors import CheckpointNotFoundError, InvalidInputError
from holdfast.ids import CheckpointId
from holdfast.sparkdir.materialise import materialise
from holdfast.store import PartitionedCheckpointStore


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was put where. The query started on ``target`` goes on with batch ``batch_id + 1``."""

    checkpoint_id: CheckpointId
    epoch: int
    batch_id: int
    target: str
    files: int
    bytes: int
    #: The checkpoints that its state came from, the snapshot first.
    chain: tuple[CheckpointId, ...]
    #: Files with absolute paths inside that now name the new place.
    rewritten: tuple[str, ...]
    #: A restore went back behind this checkpoint: it is no part of the flow's present any more.
    abandoned: bool
    elapsed_seconds: float

    def to_json(self) -> dict[str, Any]:
        """The report as ``--json`` prints it."""
        return {
            "checkpoint_id": str(self.checkpoint_id),
            "epoch": self.epoch,
            "batch_id": self.batch_id,
            "next_batch_id": self.batch_id + 1,
            "target": self.target,
            "files": self.files,
            "bytes": self.bytes,
            "chain": [str(id) for id in self.chain],
            "rewritten": list(self.rewritten),
            "abandoned": self.abandoned,
            "elapsed_seconds": round(self.elapsed_seconds, 3),
        }


def restore(
    store: PartitionedCheckpointStore, id: CheckpointId, target: str | os.PathLike[str]
) -> RestoreReport:
    """Write checkpoint ``id`` into ``target``, a new or empty directory, verified to the last byte.

    Raises CheckpointNotFoundError (pruned ones included), ConflictError if ``target`` holds anything already,
    CorruptError if anything is not as recorded, InvalidInputError if it was not taken from Spark.
    """
    started = time.monotonic()
    manifest = store.load_by_id(id)
    if manifest is None:
        raise CheckpointNotFoundError(id).with_hint("holdfast list shows what there is")
    if manifest.engine is None or manifest.engine.batch_id is None:
        raise InvalidInputError(f"checkpoint {id} was not taken from a Spark checkpoint")
    chain = tuple(link.checkpoint_id for link in store.chain(id))
    done = materialise(manifest, store, target)
    return RestoreReport(
        checkpoint_id=id,
        epoch=manifest.epoch,
        batch_id=done.batch_id,
        target=os.fspath(target),
        files=len(done.files),
        bytes=done.bytes,
        chain=chain,
        rewritten=done.rewritten,
        abandoned=_is_abandoned(store, id),
        elapsed_seconds=time.monotonic() - started,
    )


def _is_abandoned(store: PartitionedCheckpointStore, id: CheckpointId) -> bool:
    history = store.ledger.read()
    record = history.naming(id) if history.head else None
    return record is not None and not history.is_on_timeline(record)
