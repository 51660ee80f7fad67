"""What can be wrong with a manifest that parses. Values in, findings out; no store is asked anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import CorruptError
from holdfast.manifest.parts import SinkCommitStatus
from holdfast.manifest.v1 import CheckpointManifest
from holdfast.manifest.v2 import CheckpointManifestV2

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class ValidationIssue:
    """One finding. An error makes a checkpoint invalid, a warning does not. Programs go by ``code``."""

    severity: Severity
    code: str
    message: str

    def __str__(self) -> str:
        return self.message


def error(code: str, message: str) -> ValidationIssue:
    return ValidationIssue("error", code, message)


def warning(code: str, message: str) -> ValidationIssue:
    return ValidationIssue("warning", code, message)


def check_v2(manifest: CheckpointManifestV2) -> list[ValidationIssue]:
    """Findings in the manifest alone. Its seal, parents and objects are the store's to check."""
    return [
        *_identity(manifest),
        *_sinks(manifest),
        *_sources(manifest),
        *_artifacts(manifest),
    ]


def check_v1(manifest: CheckpointManifest) -> list[ValidationIssue]:
    """Findings in the manifest alone. Its sidecar is the store's to check."""
    issues = [warning("manifest", f"manifest validation: {found}") for found in manifest.validate()]
    if manifest.epoch == 0 or manifest.checkpoint_id == 0:
        issues.append(error("zero-id", "epoch or checkpoint_id is 0 — likely corrupted"))
    issues += _inline(manifest)
    return [*issues, *_pending(manifest.sink_commit_statuses)]


def _inline(manifest: CheckpointManifest) -> Iterator[ValidationIssue]:
    """State that is in the manifest itself: text that does not decode would be state dropped in silence."""
    for operator, state in sorted(manifest.operator_states.items()):
        try:
            state.decode_inline()
        except CorruptError as fault:
            yield error("inline-state", f"operator {operator!r}: {fault.reason}")
    for channel, records in sorted(manifest.inflight_data.items()):
        for record in records:
            try:
                _ = record.data
            except CorruptError as fault:
                yield error("inflight-data", f"in-flight data of {channel!r}: {fault.reason}")


def _pending(statuses: Mapping[str, SinkCommitStatus]) -> Iterator[ValidationIssue]:
    pending = sorted(name for name, status in statuses.items() if status.is_pending)
    if pending:
        yield warning("sinks-pending", f"the outcome of {_listed(pending)} is not recorded")


def _identity(manifest: CheckpointManifestV2) -> Iterator[ValidationIssue]:
    if manifest.version == 0:
        yield error("version-zero", "manifest version is 0")
    if manifest.epoch == 0:
        yield error("epoch-zero", "epoch is 0")
    if manifest.timestamp_ms == 0:
        yield warning("no-timestamp", "timestamp_ms is 0 (missing creation time)")
    if manifest.parent_id == manifest.checkpoint_id:
        yield error("own-parent", "the checkpoint names itself as its parent")
    if manifest.seal is None:
        yield warning("no-seal", "the manifest has no seal: a change in it would go unnoticed")


def _sinks(manifest: CheckpointManifestV2) -> Iterator[ValidationIssue]:
    if manifest.sink_commit_statuses:
        for sink in sorted(manifest.sink_epochs.keys() - manifest.sink_commit_statuses.keys()):
            yield warning("sink-without-status", f"sink {sink!r} has epoch but no commit status")
    yield from _pending(manifest.sink_commit_statuses)


def _sources(manifest: CheckpointManifestV2) -> Iterator[ValidationIssue]:
    if manifest.source_names:
        for source in sorted(manifest.source_offsets.keys() - set(manifest.source_names)):
            yield warning("unknown-source", f"source_offsets contains {source!r} not in source_names")


def _artifacts(manifest: CheckpointManifestV2) -> Iterator[ValidationIssue]:
    total = 0
    for operator, entry in sorted(manifest.operators.items()):
        seen: set[tuple[int, bool]] = set()
        for part in entry.partitions:
            total += part.size_bytes
            if (part.partition_id, part.is_delta) in seen and not part.is_delta:
                message = f"operator {operator!r} has two snapshots of partition {part.partition_id}"
                yield error("two-snapshots", message)
            seen.add((part.partition_id, part.is_delta))
            if part.sha256 is None:
                yield warning("no-digest", f"{part.path} has no recorded hash: only its size can be checked")
    if manifest.total_size_bytes and manifest.total_size_bytes < total:
        yield warning(
            "total-size", f"total_size_bytes is {manifest.total_size_bytes}, the artifacts alone have {total}"
        )


def _listed(names: list[str]) -> str:
    return ("sink " if len(names) == 1 else "sinks ") + ", ".join(repr(name) for name in names)
