"""A v1 store's checkpoints in the terms of ``list`` and ``show``. They have numbers and epochs, no ledger."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.cli.entries import Entry
from holdfast.cli.output import Output, size_text, time_text
from holdfast.errors import (
    CheckpointNotFoundError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
)
from holdfast.manifest import CheckpointManifest
from holdfast.store import NumberedCheckpointStore


class NumberedCatalog:
    """Every checkpoint of a v1 store at one moment."""

    def __init__(self, store: NumberedCheckpointStore) -> None:
        self._store = store

    def entries(self) -> Iterator[Entry]:
        for number in self._store.list_ids():
            yield self.entry(number)

    def entry(self, number: int) -> Entry:
        try:
            manifest = self._store.load_by_id(number)
        except CorruptError:
            manifest = None
        return Entry(
            checkpoint_id=number,
            epoch=manifest.epoch if manifest else None,
            batch_id=None,
            timestamp_ms=manifest.timestamp_ms if manifest else None,
            kind="checkpoint",
            parent_id=manifest.parent_id if manifest else None,
            total_size_bytes=manifest.size_bytes if manifest else None,
            status=_status(manifest),
            tags=(),
        )

    def find(self, selector: str) -> int:
        """What is meant by ``selector``: latest, a number, or epoch:N."""
        numbers = self._store.list_ids()
        if selector == "latest":
            if not numbers:
                raise NotFoundError("there is no checkpoint yet")
            return numbers[-1]
        if found := re.fullmatch(r"epoch:([0-9]{1,18})", selector):
            return self._with_epoch(int(found[1]))
        if re.fullmatch(r"[0-9]{1,20}", selector) is None:
            raise InvalidInputError(f"{selector!r} selects no checkpoint").with_hint(
                "here a checkpoint has a number; latest and epoch:N select one too"
            )
        if int(selector) not in numbers:
            raise CheckpointNotFoundError(selector).with_hint("holdfast list")
        return int(selector)

    def _with_epoch(self, epoch: int) -> int:
        for number in reversed(self._store.list_ids()):
            if self.entry(number).epoch == epoch:
                return number
        raise NotFoundError(f"no checkpoint holds epoch {epoch}").with_hint("holdfast list")


def print_numbered(output: Output, entry: Entry, manifest: CheckpointManifest) -> None:
    """One v1 checkpoint, for a person."""
    output.fields(
        {
            "checkpoint": entry.checkpoint_id,
            "epoch": entry.epoch,
            "time": time_text(manifest.timestamp_ms),
            "status": entry.status,
            "parent": manifest.parent_id or "none: it stands alone",
            "size": size_text(manifest.size_bytes),
            "watermark": None if manifest.watermark is None else time_text(manifest.watermark),
            "pipeline hash": manifest.pipeline_hash and f"{manifest.pipeline_hash:016x}",
            "sidecar": manifest.state_checksum
            or ("without a checksum" if manifest.needs_sidecar() else None),
        }
    )
    for name, source in manifest.source_offsets.items():
        output.line(f"\nsource {name} stands at")
        output.fields({f"  {key}": value for key, value in source.offsets.items()})
    if manifest.operator_states:
        output.line()
    for name, state in manifest.operator_states.items():
        where = f"{size_text(state.external_length)} of the sidecar" if state.external else "in the manifest"
        output.line(f"operator {name}: {where}")
    for name, status in manifest.sink_commit_statuses.items():
        output.line(f"sink {name}: {status if status.is_failed else str(status).lower()}")


def _sidecar(manifest: CheckpointManifest) -> str | None:
    if not manifest.needs_sidecar():
        return None
    return f"SHA-256 {manifest.state_checksum}" if manifest.state_checksum else "without a checksum"


def _status(manifest: CheckpointManifest | None) -> str:
    if manifest is None:
        return "corrupt"
    statuses = list(manifest.sink_commit_statuses.values())
    if any(status.is_failed for status in statuses):
        return "failed"
    return "pending" if any(status.is_pending for status in statuses) else "committed"
