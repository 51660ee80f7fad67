"""Is this still the pipeline a checkpoint was taken from, and if not, what changed?

The hash answers the first, the topology the second. Both leave out what may change without touching
the meaning of state: store, scratch, trigger, intervals, policies, options, paths, URLs, credentials.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from holdfast.pipeline.spec import FlowSpec, OperatorSpec, SinkSpec, SourceSpec, TableSpec
from holdfast.pipeline.sql_text import fold_space
from holdfast.positions.config_hash import hash_text

#: ``{section: {name: {"hash": 16 hex digits, "inputs": [names]}}}``, as manifests and start records hold it.
Topology: TypeAlias = dict[str, dict[str, dict[str, Any]]]

SECTIONS = ("sources", "tables", "operators", "sinks")
#: What state depends on and no member holds; it stands beside the sections where a run recorded it.
SETTINGS = "settings"

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What of Spark's settings is baked into state, with the values our own runs start from."""

    state_provider: str = ROCKSDB
    state_format: str = "2"
    shuffle_partitions: str = "200"

    @classmethod
    def of(cls, conf: Mapping[str, str]) -> EngineFacts:
        """The facts that ``conf`` (Spark settings by name) sets, the defaults for the rest."""
        default = cls()
        return cls(
            state_provider=conf.get("spark.sql.streaming.stateStore.providerClass", default.state_provider),
            state_format=conf.get(
                "spark.sql.streaming.stateStore.checkpointFormatVersion", default.state_format
            ),
            shuffle_partitions=conf.get("spark.sql.shuffle.partitions", default.shuffle_partitions),
        )


def pipeline_hash(flow: FlowSpec, engine: EngineFacts | None = None) -> int:
    """The flow's identity as one unsigned 64-bit number. Without ``engine``: what the declaration sets."""
    return hash_text(canonical(flow, engine))


def canonical(flow: FlowSpec, engine: EngineFacts | None = None) -> str:
    """The JSON that is hashed: compact, keys sorted, non-ASCII as itself."""
    facts = engine or EngineFacts.of(flow.pipeline.spark)
    document: dict[str, Any] = {
        "pipeline": flow.pipeline.name,
        "flow": flow.name,
        "output_mode": flow.pipeline.output_mode,
        "state_provider": facts.state_provider,
        "state_format": facts.state_format,
        "shuffle_partitions": facts.shuffle_partitions,
    }
    for section in SECTIONS:
        document[section] = {
            name: {"inputs": inputs, **facts_} for name, (facts_, inputs) in _members(flow, section).items()
        }
    return _compact(document)


def topology(flow: FlowSpec) -> Topology:
    """What the flow is made of, member by member, each with a hash of its own."""
    return {
        section: {
            name: {"hash": f"{hash_text(_compact(facts)):016x}", "inputs": inputs}
            for name, (facts, inputs) in _members(flow, section).items()
        }
        for section in SECTIONS
    }


def settings(flow: FlowSpec, engine: EngineFacts) -> dict[str, dict[str, Any]]:
    """The settings that state depends on, each as a member of the topology's section ``settings``."""
    facts = {
        "output mode": flow.pipeline.output_mode,
        "state provider": engine.state_provider,
        "state format": engine.state_format,
        "shuffle partitions": engine.shuffle_partitions,
    }
    return {name: {"hash": f"{hash_text(value):016x}", "inputs": []} for name, value in facts.items()}


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between two topologies. ``str()`` is a sentence for a person."""

    section: str
    name: str
    what: Literal["added", "removed", "changed"]
    detail: str = ""

    def __str__(self) -> str:
        sentence = f"{self.section.rstrip('s')} {self.name!r} was {self.what}"
        return f"{sentence}: {self.detail}" if self.detail else sentence


def compare_topology(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What was added, removed and changed from ``old`` to ``new``, section by section, sorted by name."""
    changes = []
    for section in (*SECTIONS, *([SETTINGS] if SETTINGS in old and SETTINGS in new else [])):
        before: Mapping[str, Any] = old.get(section) or {}
        after: Mapping[str, Any] = new.get(section) or {}
        for name in sorted({*before, *after}):
            if name not in before:
                changes.append(Change(section, name, "added"))
            elif name not in after:
                changes.append(Change(section, name, "removed"))
            elif detail := _difference(section, before[name], after[name]):
                changes.append(Change(section, name, "changed", detail))
    return changes


_MADE_OF = {
    "sources": "its format or schema is another",
    "tables": "its format or schema is another",
    "operators": "its query, watermark or version is another",
    "sinks": "its kind, format, table or key is another",
    SETTINGS: "its value is another",
}


def _difference(section: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    parts = []
    if before.get("inputs") != after.get("inputs"):
        was, now = (", ".join(side.get("inputs") or ["nothing"]) for side in (before, after))
        parts.append(f"it read {was} and now reads {now}")
    if before.get("hash") != after.get("hash"):
        parts.append(_MADE_OF[section])
    return "; ".join(parts)


def _members(flow: FlowSpec, section: str) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Name -> (what identity knows of it, what it reads)."""
    if section == "sources":
        return {name: (_read_facts(one), []) for name, one in flow.sources.items()}
    if section == "tables":
        return {name: (_read_facts(one), []) for name, one in flow.tables.items()}
    if section == "operators":
        return {name: (_operator_facts(one), list(one.inputs)) for name, one in flow.operators.items()}
    return {name: (_sink_facts(one), [one.source]) for name, one in flow.sinks.items()}


def _read_facts(one: SourceSpec | TableSpec) -> dict[str, Any]:
    return {
        "format": one.format.lower(),
        "schema": None if one.schema is None else fold_space(one.schema),
        **one.hash_facts,
    }


def _operator_facts(one: OperatorSpec) -> dict[str, Any]:
    return {
        "query": {"fingerprint": one.fingerprint} if one.sql is None else {"sql": fold_space(one.sql)},
        "version": one.version,
        "watermarks": {
            name: {"column": mark.column, "delay_ms": mark.delay_ms} for name, mark in one.watermarks.items()
        },
    }


def _sink_facts(one: SinkSpec) -> dict[str, Any]:
    if one.files is not None:
        return {
            "kind": "files",
            "format": one.files.format,
            "partition_by": list(one.files.partition_by),
            **one.facts,
        }
    if one.database is not None:
        return {
            "kind": "database",
            "table": one.database.table,
            "key": list(one.database.key),
            "epoch_column": one.database.epoch_column,
            **one.facts,
        }
    return {"kind": "python", **one.facts}


def _compact(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
