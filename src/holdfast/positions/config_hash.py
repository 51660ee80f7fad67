"""A query's identity as one number, the same in every process, release and language.

Not a checksum and not for security: it answers only "is this still the query that wrote the
stored positions?". A language's own hash may change between versions and would then throw every
position away, so the algorithm is fixed: FNV-1a 64 over canonical JSON. This is algorithm 1 and
has no version prefix; a later one will carry one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from holdfast.errors import InvalidInputError

Json: TypeAlias = Any

_OFFSET_BASIS = 0xCBF29CE484222325
_PRIME = 0x100000001B3
_U64 = 0xFFFFFFFFFFFFFFFF

#: Operating knobs: changing one changes neither the query nor what its state means.
NOT_HASHED = frozenset(
    {
        "id",
        "auto_start",
        "enable_bootstrap",
        "bootstrap_buffer_size",
        "priority_queue_capacity",
        "dispatch_buffer_capacity",
        "dispatch_mode",
        "storage_backend",
        "recovery_policy",
        "outbox_capacity",
        "bootstrap_timeout_secs",
    }
)


def config_hash(projection: Mapping[str, Json]) -> int:
    """The identity hash of a query's configuration. Raises InvalidInputError."""
    return hash_text(canonical_projection(projection))


def hash_text(text: str) -> int:
    """FNV-1a 64 of ``text`` as UTF-8 plus one byte 0xFF, which ends a string in the scheme we share."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"the text does not encode as UTF-8: {error.reason}") from error
    return fnv1a_64(data + b"\xff")


def fnv1a_64(data: bytes) -> int:
    """FNV-1a with 64 bits over ``data``."""
    value = _OFFSET_BASIS
    for byte in data:
        value = ((value ^ byte) * _PRIME) & _U64
    return value


def canonical_projection(projection: Mapping[str, Json]) -> str:
    """The compact JSON that is hashed: fixed field order, sorted where order means nothing.

    Sorted: sources by id, their nodes and relations (and without duplicates), joins by id, join
    keys, the keys of a middleware's config. Kept: middleware and pipeline order, which is meaning.
    """
    _only(
        projection, {"query", "query_language", "middleware", "sources", "joins"} | NOT_HASHED, "projection"
    )
    try:
        return json.dumps(_document(projection), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except RecursionError as error:
        raise InvalidInputError("the projection is nested too deeply, or contains itself") from error


def _document(projection: Mapping[str, Json]) -> dict[str, Json]:
    return {
        "query": _text(projection, "query", "projection"),
        "query_language": _text(projection, "query_language", "projection"),
        "middleware": [_middleware(one) for one in _mappings(projection, "middleware")],
        "sources": sorted(
            (_source(one) for one in _mappings(projection, "sources")),
            key=lambda source: _order(source["source_id"]),
        ),
        "joins": _joins(projection),
    }


def _middleware(one: Mapping[str, Json]) -> dict[str, Json]:
    _only(one, {"kind", "name", "config"}, "middleware")
    config = one.get("config", {})
    if not isinstance(config, Mapping):
        raise InvalidInputError(f"middleware config must be a mapping, not {type(config).__name__}")
    return {
        "kind": _text(one, "kind", "middleware"),
        "name": _text(one, "name", "middleware"),
        "config": _sorted_json(config, "middleware config"),
    }


def _source(one: Mapping[str, Json]) -> dict[str, Json]:
    _only(one, {"source_id", "nodes", "relations", "pipeline"}, "source")
    return {
        "source_id": _text(one, "source_id", "source"),
        "nodes": sorted(set(_texts(one, "nodes")), key=_order),
        "relations": sorted(set(_texts(one, "relations")), key=_order),
        "pipeline": _texts(one, "pipeline"),
    }


def _joins(projection: Mapping[str, Json]) -> list[dict[str, Json]] | None:
    # Absent and empty differ: "no joins were declared" is not "joins were declared, none of them".
    if projection.get("joins") is None:
        return None
    return sorted((_join(one) for one in _mappings(projection, "joins")), key=lambda join: _order(join["id"]))


def _join(one: Mapping[str, Json]) -> dict[str, Json]:
    _only(one, {"id", "keys"}, "join")
    keys = [_join_key(key) for key in _mappings(one, "keys")]
    keys.sort(key=lambda key: (_order(key["label"]), _order(key["property"])))
    return {"id": _text(one, "id", "join"), "keys": keys}


def _join_key(one: Mapping[str, Json]) -> dict[str, str]:
    _only(one, {"label", "property"}, "join key")
    return {"label": _text(one, "label", "join key"), "property": _text(one, "property", "join key")}


def _sorted_json(value: Json, where: str) -> Json:
    """``value`` with every mapping's keys in order; refuses what JSON has no exact form for."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise InvalidInputError(f"{where}: keys must be text, not {type(key).__name__}")
        return {key: _sorted_json(value[key], where) for key in sorted(value, key=_order)}
    if isinstance(value, (list, tuple)):
        return [_sorted_json(one, where) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidInputError(f"{where}: {value} has no JSON form")
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    raise InvalidInputError(f"{where}: {type(value).__name__} has no JSON form")


def _only(one: Mapping[str, Json], known: Iterable[str], where: str) -> None:
    if not isinstance(one, Mapping):
        raise InvalidInputError(f"{where} must be a mapping, not {type(one).__name__}")
    unknown = sorted(str(key) for key in one if key not in set(known))
    if unknown:
        raise InvalidInputError(f"{where}: unknown field {', '.join(unknown)}")


def _text(one: Mapping[str, Json], name: str, where: str) -> str:
    if name not in one:
        raise InvalidInputError(f"{where}: {name} is missing")
    value = one[name]
    if not isinstance(value, str):
        raise InvalidInputError(f"{where}: {name} must be text, not {type(value).__name__}")
    return value


def _texts(one: Mapping[str, Json], name: str) -> list[str]:
    values = _list(one, name)
    for value in values:
        if not isinstance(value, str):
            raise InvalidInputError(f"{name} must hold text only, not {type(value).__name__}")
    return list(values)


def _mappings(one: Mapping[str, Json], name: str) -> list[Mapping[str, Json]]:
    return list(_list(one, name))


def _list(one: Mapping[str, Json], name: str) -> list[Json]:
    value = one.get(name)
    if value is None:
        return []
    # Sets are refused too: pipelines and middleware keep their order, and a set has none to keep.
    if not isinstance(value, (list, tuple)):
        raise InvalidInputError(f"{name} must be a list, not {type(value).__name__}")
    return list(value)


def _order(text: str) -> bytes:
    # By UTF-8 bytes, as every other implementation of this hash compares its strings.
    return text.encode("utf-8", "surrogatepass")
