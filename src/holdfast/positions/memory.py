"""Source positions in memory: for volatile queries and for tests. Nothing survives the process.

There are no sessions here: ``begin``, ``commit`` and ``rollback`` always succeed and do nothing,
staging takes effect at once, and a rollback undoes nothing.
"""

from __future__ import annotations

import threading

from holdfast.errors import SequenceRegressionError
from holdfast.positions.base import (
    KEEP,
    Guard,
    Marker,
    PositionArgument,
    SourceCheckpoint,
    SourceCheckpointStore,
    checked_guard,
    checked_id,
    checked_marker,
    checked_position,
    checked_u64,
)
from holdfast.positions.session import Session


class _NoSessions:
    def begin(self) -> None:
        pass

    def commit(self) -> None:
        pass

    def rollback(self) -> None:
        pass


class MemorySourceCheckpointStore(SourceCheckpointStore):
    """The contract without the disk; ``is_persistent`` is False."""

    def __init__(self, *, guard: Guard = "reject") -> None:
        self._guard = checked_guard(guard)
        self._lock = threading.Lock()
        self._checkpoints: dict[str, SourceCheckpoint] = {}
        self._result_sequences: dict[str, int] = {}
        self._config_hash: int | None = None
        self._markers: set[Marker] = set()
        self._generation = 0

    def is_persistent(self) -> bool:
        return False

    def session(self) -> Session:
        return Session(_NoSessions())

    def stage_checkpoint(
        self,
        source_id: str,
        sequence: int,
        source_position: PositionArgument = KEEP,
        *,
        guard: Guard | None = None,
    ) -> None:
        source_id, sequence = checked_id(source_id), checked_u64(sequence)
        position = checked_position(source_position)
        guard = self._guard if guard is None else checked_guard(guard)
        with self._lock:
            stored = self._checkpoints.get(source_id)
            if stored is not None and sequence < stored.sequence and guard != "allow":
                if guard == "ignore":
                    return
                raise SequenceRegressionError(source_id, stored.sequence, sequence)
            if position is KEEP:
                position = stored.source_position if stored is not None else None
            self._checkpoints[source_id] = SourceCheckpoint(sequence, position)

    def stage_result_sequence(self, query_id: str, sequence: int) -> None:
        self.write_result_sequence(query_id, sequence)

    def read_checkpoint(self, source_id: str) -> SourceCheckpoint | None:
        source_id = checked_id(source_id)
        with self._lock:
            return self._checkpoints.get(source_id)

    def read_all_checkpoints(self) -> dict[str, SourceCheckpoint]:
        with self._lock:
            return dict(self._checkpoints)

    def write_config_hash(self, value: int) -> None:
        value = checked_u64(value, "config hash")
        with self._lock:
            self._config_hash = value

    def read_config_hash(self) -> int | None:
        with self._lock:
            return self._config_hash

    def write_result_sequence(self, query_id: str, sequence: int) -> None:
        query_id, sequence = checked_id(query_id, "query id"), checked_u64(sequence)
        with self._lock:
            self._result_sequences[query_id] = sequence

    def read_result_sequence(self, query_id: str) -> int | None:
        query_id = checked_id(query_id, "query id")
        with self._lock:
            return self._result_sequences.get(query_id)

    def write_marker(self, marker: Marker) -> None:
        marker = checked_marker(marker)
        with self._lock:
            self._markers.add(marker)

    def delete_marker(self, marker: Marker) -> None:
        marker = checked_marker(marker)
        with self._lock:
            self._markers.discard(marker)

    def read_markers(self) -> frozenset[Marker]:
        with self._lock:
            return frozenset(self._markers)

    def read_generation(self) -> int:
        with self._lock:
            return self._generation

    def clear_checkpoints(self) -> None:
        with self._lock:
            self._checkpoints.clear()
            self._result_sequences.clear()
            self._config_hash = None
            self._markers.discard(Marker.BOOTSTRAPPED)
            self._generation += 1

    def close(self) -> None:
        """Nothing is held open, so nothing is let go of."""
