"""Where a source stands, from the text that Spark keeps of it: kind and position, readable.

Spark's log doesn't say which source wrote an offset; the shape of its JSON does. A shape that is not known
here is somebody's own source (Python, or a connector we have not met): its fields are shown as they are.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """``kind``: file, kafka, rate, rate-micro-batch, delta, iceberg, custom, or none (nothing read yet)."""

    kind: str
    #: Where the next read starts, field by field; of Kafka by ``topic-partition``.
    offsets: dict[str, str]


def read_position(text: str | None) -> SourcePosition:
    """Never fails: what can't be understood is a custom source's business, and is shown raw."""
    if text is None:
        return SourcePosition("none", {})
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return SourcePosition("custom", {"offset": text})
    if isinstance(document, int) and not isinstance(document, bool):
        return SourcePosition("rate", {"offset": str(document)})
    if not isinstance(document, dict):
        return SourcePosition("custom", {"offset": text})
    return _of_object(document)


def _of_object(document: dict[str, Any]) -> SourcePosition:
    fields = set(document)
    if fields == {"logOffset"}:
        return SourcePosition("file", _fields(document))
    if document and all(_is_partitions(value) for value in document.values()):
        parts = {f"{topic}-{p}": str(at) for topic, ps in document.items() for p, at in ps.items()}
        return SourcePosition("kafka", parts)
    if {"reservoirId", "reservoirVersion"} <= fields:
        return SourcePosition("delta", _fields(document))
    if {"snapshot_id", "position"} <= fields:
        return SourcePosition("iceberg", _fields(document))
    if fields == {"offset", "timestamp"}:
        return SourcePosition("rate-micro-batch", _fields(document))
    return SourcePosition("custom", _fields(document))


def _is_partitions(value: Any) -> bool:
    """Kafka's ``{"0": 23, "1": 17}``."""
    return (
        isinstance(value, dict)
        and bool(value)
        and all(key.isascii() and key.isdigit() and type(at) is int for key, at in value.items())
    )


def _fields(document: dict[str, Any]) -> dict[str, str]:
    return {
        key: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        for key, value in document.items()
    }
