"""What a place of positions holds, for a person or a program to look at. Changes nothing, creates nothing."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import InvalidInputError, NotFoundError
from holdfast.positions.base import SourceCheckpoint, SourceCheckpointStore
from holdfast.positions.opening import open_positions

_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class PositionsReport:
    """All that a store says of one query."""

    query_id: str
    generation: int
    config_hash: int | None
    result_sequence: int | None
    markers: tuple[str, ...]
    sources: Mapping[str, SourceCheckpoint]

    def to_document(self) -> dict[str, Any]:
        """For JSON. A position is base64, and text beside it where it is text."""
        return {
            "query_id": self.query_id,
            "generation": self.generation,
            "config_hash": self.config_hash,
            "result_sequence": self.result_sequence,
            "markers": list(self.markers),
            "sources": [
                {
                    "source_id": source_id,
                    "sequence": entry.sequence,
                    "position_base64": _base64(entry.source_position),
                    "position_text": _text(entry.source_position),
                    "position_bytes": None if entry.source_position is None else len(entry.source_position),
                }
                for source_id, entry in sorted(self.sources.items())
            ],
        }

    def is_empty(self) -> bool:
        facts = (self.generation, self.config_hash, self.result_sequence)
        return (
            not self.sources
            and not self.markers
            and not any(fact is not None and fact != 0 for fact in facts)
        )


def describe(store: SourceCheckpointStore, query_id: str) -> PositionsReport:
    """What ``store``, opened for ``query_id``, shows now."""
    return PositionsReport(
        query_id=query_id,
        generation=store.read_generation(),
        config_hash=store.read_config_hash(),
        result_sequence=store.read_result_sequence(query_id),
        markers=tuple(sorted(store.read_markers())),
        sources=store.read_all_checkpoints(),
    )


def describe_place(url: str, query_id: str | None = None) -> list[PositionsReport]:
    """The queries at ``url``, or the one that is asked for. Raises NotFoundError where there is none.

    A server that speaks Redis is never searched for keys, so there the query must be named.
    """
    there = queries_at(url)
    if query_id is None and there is None:
        raise InvalidInputError(f"which query? {url} is not searched for them").with_hint("add --query ID")
    wanted = [query_id] if query_id is not None else there or []
    if not wanted or (there is not None and not set(wanted) <= set(there)):
        raise NotFoundError(f"there are no positions{f' of query {query_id!r}' if query_id else ''} at {url}")
    reports = []
    for each in wanted:
        with open_positions(url, each) as store:
            report = describe(store, each)
        if there is None and report.is_empty():
            raise NotFoundError(f"there are no positions of query {each!r} at {url}")
        reports.append(report)
    return reports


def queries_at(url: str) -> list[str] | None:
    """The ids of the queries at ``url``, in order; None where that cannot be asked. Creates nothing."""
    scheme = url.partition("://")[0] if "://" in url else None
    if scheme in ("redis", "rediss", "valkey"):
        return None
    if scheme == "rocksdb":
        base = Path(url.removeprefix("rocksdb://"))
        return sorted(path.parent.name for path in base.glob("*/CURRENT"))
    if scheme == "postgresql":
        return _sql_queries(url)
    if scheme in (None, "sqlite"):
        path = os.path.join(url, "positions.db") if scheme is None else url.removeprefix("sqlite:///")
        return _sql_queries(f"sqlite:///{path}") if Path(path).is_file() else []
    raise InvalidInputError(f"not a URL of stored source positions: {url!r}")


def _sql_queries(url: str) -> list[str]:
    from holdfast.positions.sql import query_ids

    return query_ids(url)


def position_text(position: bytes | None) -> str:
    """A position on one line: text where it is text, else the first bytes in hex."""
    if position is None:
        return "-"
    text = _text(position)
    if text:
        return (
            text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}… ({len(position)} bytes)"
        )
    if not position:
        return "(0 bytes)"
    shown = position[: _SHOWN_CHARACTERS // 2].hex()
    return f"0x{shown}" if len(position) <= _SHOWN_CHARACTERS // 2 else f"0x{shown}… ({len(position)} bytes)"


def _text(position: bytes | None) -> str | None:
    if position is None:
        return None
    try:
        text = position.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def _base64(position: bytes | None) -> str | None:
    return None if position is None else base64.b64encode(position).decode("ascii")
