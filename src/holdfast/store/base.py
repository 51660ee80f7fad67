"""What every checkpoint store promises: thirteen methods, one meaning, whatever lies below.

Rules that hold on every store, and that each conformance run checks:

1. A published checkpoint never changes. Saving other content under its id is ConflictError, equal content
   is success.
2. Everything a checkpoint refers to is durable before the checkpoint is.
3. The pointer is a hint: it never moves back, and nothing is lost with it.
4. An unreadable checkpoint is CorruptError, an absent one None, a store that does not answer
   StoreUnavailableError. None is ever taken for another.
5. Deleting takes the manifest first, counts what is really gone, and raises after trying everything.
"""

from __future__ import annotations

import builtins
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.blobs.base import Data
from holdfast.errors import CorruptError, InvalidInputError, UnsupportedFormatError
from holdfast.manifest.checks import ValidationIssue

IdT = TypeVar("IdT")
ManifestT = TypeVar("ManifestT")

ORPHAN_AGE_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True)
class ValidationResult(Generic[IdT]):
    """What was found about one checkpoint. ``valid`` means: no issue is an error."""

    checkpoint_id: IdT
    valid: bool
    issues: tuple[ValidationIssue, ...] = ()

    @classmethod
    def of(cls, checkpoint_id: IdT, issues: list[ValidationIssue]) -> ValidationResult[IdT]:
        return cls(checkpoint_id, all(issue.severity != "error" for issue in issues), tuple(issues))

    @property
    def reason(self) -> str:
        """The errors as one sentence; empty when valid."""
        return "; ".join(issue.message for issue in self.issues if issue.severity == "error")

    @property
    def unrecoverable(self) -> str | None:
        """Why this is no point to recover from: errors, or sinks of which nobody said how they ended."""
        if not self.valid:
            return self.reason
        return next((issue.message for issue in self.issues if issue.code == "sinks-pending"), None)


@dataclass(frozen=True, slots=True)
class RecoveryReport(Generic[IdT]):
    """How a recovery point was chosen: ``examined`` checkpoints were looked at, in ``elapsed`` seconds.

    A skipped entry without an id is a ledger record that cannot be read: it may have named a checkpoint.
    """

    chosen_id: IdT | None
    skipped: tuple[tuple[IdT | None, str], ...]
    examined: int
    elapsed: float


class CheckpointStore(ABC, Generic[IdT, ManifestT]):
    """Checkpoints by id. Newest is the highest id, or the last on the timeline where there is a ledger."""

    @abstractmethod
    def save(self, manifest: ManifestT) -> None:
        """Publish ``manifest``. Raises ConflictError if its id is published with other content."""

    @abstractmethod
    def load_latest(self) -> ManifestT | None:
        """The newest checkpoint, None if there is none.

        Raises CorruptError if it is unreadable: only ``recover_latest_validated`` steps back.
        """

    @abstractmethod
    def load_by_id(self, checkpoint_id: IdT) -> ManifestT | None:
        """The checkpoint, None if there is none. Raises CorruptError or UnsupportedFormatError."""

    @abstractmethod
    def list(self) -> list[tuple[IdT, int]]:
        """(id, epoch) of every checkpoint whose manifest loads, oldest first."""

    @abstractmethod
    def prune(self, keep: int) -> int:
        """Delete all but the newest ``keep`` loadable checkpoints and what those need; how many are gone.

        Raises InvalidInputError for 0 or less, and the first failure after trying all.
        """

    @abstractmethod
    def save_state_data(self, checkpoint_id: IdT, data: Data) -> None:
        """Store the sidecar of a checkpoint to be. Raises ConflictError if it is published with another."""

    @abstractmethod
    def load_state_data(self, checkpoint_id: IdT) -> bytes | None:
        """The sidecar, None if there is none."""

    def list_ids(self) -> builtins.list[IdT]:
        """Every id that is published, loadable or not, oldest first."""
        return [checkpoint_id for checkpoint_id, _ in self.list()]

    def update_manifest(self, manifest: ManifestT) -> None:
        """Change what a published checkpoint lets change. A store that lets nothing change says so."""
        self.save(manifest)

    def validate_checkpoint(self, checkpoint_id: IdT) -> ValidationResult[IdT]:
        """Read all of it and say what is wrong. Raises only where the store does not answer."""
        try:
            found = self.load_by_id(checkpoint_id)
        except (CorruptError, UnsupportedFormatError) as error:
            return ValidationResult.of(checkpoint_id, [unreadable(error)])
        return ValidationResult.of(checkpoint_id, [] if found is not None else [not_found(checkpoint_id)])

    def recover_latest_validated(self) -> RecoveryReport[IdT]:
        """The newest checkpoint that is sound to its last byte, stepping back only over proven faults.

        A store that does not answer proves nothing: that error is raised, not stepped over. The reasons name
        what was skipped, checkpoints whose sinks are pending included.
        """
        started = time.monotonic()
        skipped: list[tuple[IdT | None, str]] = []
        for checkpoint_id, fault in self.candidates():
            reason = fault
            if checkpoint_id is not None:
                reason = self.validate_checkpoint(checkpoint_id).unrecoverable
                if reason is None:
                    chosen, examined = checkpoint_id, len(skipped) + 1
                    return RecoveryReport(chosen, tuple(skipped), examined, time.monotonic() - started)
            skipped.append((checkpoint_id, reason or "unknown"))
        return RecoveryReport(None, tuple(skipped), len(skipped), time.monotonic() - started)

    def candidates(self) -> Iterator[tuple[IdT | None, str | None]]:
        """Where recovery may look, newest first: an id; or None and why nobody can tell which id it was."""
        return ((checkpoint_id, None) for checkpoint_id in reversed(self.list_ids()))

    def cleanup_orphans(self, min_age_seconds: float = ORPHAN_AGE_SECONDS) -> int:
        """Delete what no checkpoint names and no writer may still publish; how many objects are gone."""
        raise InvalidInputError(f"{type(self).__name__} knows no orphans, of {min_age_seconds} s or any age")

    def save_with_state(self, manifest: ManifestT, state: Data | None) -> None:
        """``save_state_data``, then ``save``: a checkpoint without its sidecar is never seen."""
        if state is not None:
            raise InvalidInputError(f"{type(self).__name__} keeps no sidecars")
        self.save(manifest)


def check_keep(keep: int) -> None:
    if keep < 1:
        raise InvalidInputError(f"prune(keep={keep}): at least one checkpoint has to be kept")


def unreadable(error: CorruptError | UnsupportedFormatError) -> ValidationIssue:
    """The error of reading an object, as a finding."""
    code = "corrupt" if isinstance(error, CorruptError) else "unsupported"
    return ValidationIssue("error", code, str(error))


def not_found(checkpoint_id: object) -> ValidationIssue:
    return ValidationIssue("error", "not-found", f"manifest not found for checkpoint {checkpoint_id}")
