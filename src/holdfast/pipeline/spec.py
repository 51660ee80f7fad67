"""One model of a pipeline, whichever way it was declared: YAML or Python end here. Nothing runs here.

A spec that exists is coherent: names are unique and usable, every input and every ``from`` names
something declared, and no operator reads itself. What the design names and this version does not
build is refused here too, so that no part of a declaration is silently ignored.

Errors of a declaration are DeclarationError, with the path of keys to the culprit: the YAML loader
puts file and line in front of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from holdfast.errors import InvalidInputError
from holdfast.pipeline.durations import Trigger

OutputMode: TypeAlias = Literal["append", "update", "complete"]
OnCorruption: TypeAlias = Literal["fail", "rewind", "rebase"]
OnChange: TypeAlias = Literal["fail", "warn", "reset"]

#: Source formats that read a path, and those of them for which Spark wants the schema up front.
FILE_FORMATS = frozenset({"json", "csv", "parquet", "orc", "text", "xml", "avro", "binaryfile"})
SCHEMA_FIRST = frozenset({"json", "csv", "parquet", "orc", "xml"})
TABLE_FORMATS = ("csv", "json", "parquet", "orc", "text")
#: How the URLs of databases begin that a sink can write to.
DATABASES = ("sqlite:///", "duckdb:///", "postgresql://", "postgres://")
SINK_FORMATS = ("parquet", "json", "csv", "orc")

# Names become directory names, sink keys and temporary views: plain ones are safe in all three.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_SQL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class DeclarationError(InvalidInputError):
    """A pipeline is declared wrongly at ``path``, the keys that lead there. Values are never echoed."""

    def __init__(self, path: tuple[str, ...], reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: {self.reason}" if self.path else self.reason


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """A stream that is read. ``hash_facts`` is what identity knows of a source declared in Python."""

    name: str
    format: str
    path: str | None = None
    schema: str | None = None
    # Options may hold credentials: they are neither shown nor hashed.
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    hash_facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A reference table, read as it stands."""

    name: str
    format: str
    path: str | None = None
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    hash_facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Watermark:
    column: str
    delay_ms: int

    @property
    def delay(self) -> str:
        """As Spark's ``withWatermark`` takes it."""
        return f"{self.delay_ms} milliseconds"


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    """A query over ``inputs`` (sources, tables, other operators): SQL, or Python where ``sql`` is None.

    A Python operator's ``fingerprint`` is that of its plan; no plan shows a changed UDF, so a
    person raises ``version``.
    """

    name: str
    inputs: tuple[str, ...]
    sql: str | None = None
    watermarks: Mapping[str, Watermark] = field(default_factory=dict)
    version: str | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class FilesSpec:
    path: str
    format: str = "parquet"
    partition_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DatabaseSpec:
    url: str = field(repr=False)  # may hold a password
    table: str
    key: tuple[str, ...] = ()
    epoch_column: str | None = None


@dataclass(frozen=True, slots=True)
class SinkSpec:
    """Where an operator's rows go. ``facts`` is what identity knows of a sink declared in Python."""

    name: str
    source: str
    files: FilesSpec | None = None
    database: DatabaseSpec | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class PipelineSpec:
    """A whole declaration, checked on creation. Raises DeclarationError."""

    name: str
    store: str
    sources: Mapping[str, SourceSpec]
    operators: Mapping[str, OperatorSpec]
    sinks: Mapping[str, SinkSpec]
    tables: Mapping[str, TableSpec] = field(default_factory=dict)
    every_seconds: float = 0.0
    state_every_seconds: float = 0.0
    trigger: Trigger = field(default_factory=Trigger)
    output_mode: OutputMode = "append"
    on_corruption: OnCorruption = "fail"
    on_change: OnChange = "fail"
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    scratch: str | None = None
    base_dir: Path = field(default_factory=Path.cwd)

    def __post_init__(self) -> None:
        check_coherent(self)
        check_built(self)


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """One streaming query of a pipeline: an operator, all it reads, and the sinks that share it.

    ``operators`` is in the order in which they can be built: inputs first, the flow's own last.
    """

    name: str
    pipeline: PipelineSpec
    sources: Mapping[str, SourceSpec]
    tables: Mapping[str, TableSpec]
    operators: Mapping[str, OperatorSpec]
    sinks: Mapping[str, SinkSpec]

    @property
    def operator(self) -> OperatorSpec:
        return self.operators[self.name]

    @property
    def full_name(self) -> str:
        """How sinks know the flow: ``pipeline/flow``."""
        return f"{self.pipeline.name}/{self.name}"

    @property
    def store_url(self) -> str:
        """Where this flow's checkpoints live, as ``--store`` takes it."""
        return f"{self.pipeline.store.rstrip('/')}/{self.full_name}"


def flows(spec: PipelineSpec) -> list[FlowSpec]:
    """The flows of ``spec``, each called by its operator's name, in the order of their first sink."""
    heads = dict.fromkeys(sink.source for sink in spec.sinks.values())
    return [_flow(spec, head) for head in heads]


def _flow(spec: PipelineSpec, head: str) -> FlowSpec:
    reach: dict[str, None] = {}
    _visit(spec, head, reach)
    return FlowSpec(
        name=head,
        pipeline=spec,
        sources={name: source for name, source in spec.sources.items() if name in reach},
        tables={name: table for name, table in spec.tables.items() if name in reach},
        operators={name: spec.operators[name] for name in reach if name in spec.operators},
        sinks={name: sink for name, sink in spec.sinks.items() if sink.source == head},
    )


def _visit(spec: PipelineSpec, name: str, reach: dict[str, None]) -> None:
    """Adds ``name`` behind everything it reads."""
    if name in reach:
        return
    if name in spec.operators:
        for one in spec.operators[name].inputs:
            _visit(spec, one, reach)
    reach[name] = None


# --- what makes a declaration coherent


def check_coherent(spec: PipelineSpec) -> None:
    _check_name((), "pipeline", spec.name, key=("pipeline",))
    if not spec.store:
        raise DeclarationError(("store",), "empty; any path or URL where checkpoints may live is allowed")
    if unsafe := _sql_view_clash(spec):
        raise unsafe
    for path, value, allowed in (
        (("output_mode",), spec.output_mode, get_args(OutputMode)),
        (("on_corruption",), spec.on_corruption, get_args(OnCorruption)),
        (("on_change",), spec.on_change, get_args(OnChange)),
    ):
        if value not in allowed:
            raise DeclarationError(path, not_one_of(value, allowed))
    for section, what in (
        ("sources", "a stream to read"),
        ("operators", "a query"),
        ("sinks", "a place to write to"),
    ):
        if not getattr(spec, section):
            raise DeclarationError((section,), f"none declared; a pipeline needs at least {what}")
    for operator in spec.operators.values():
        _check_operator(spec, operator)
    _check_no_cycle(spec)
    for sink in spec.sinks.values():
        _check_sink(spec, sink)
    _check_targets(spec)
    _check_nothing_is_cleaned_early(spec)
    for flow in flows(spec):
        if not flow.sources:
            raise DeclarationError(
                ("operators", flow.name), "reads no source, neither itself nor through its inputs"
            )


def _sql_view_clash(spec: PipelineSpec) -> DeclarationError | None:
    """Sources, tables and operators are views of one session: their names differ, capitals aside."""
    seen: dict[str, str] = {}
    for section in ("sources", "tables", "operators"):
        for name in getattr(spec, section):
            _check_name((section, name), section.rstrip("s"), name)
            if name.lower() in seen:
                return DeclarationError(
                    (section, name), f"the name is taken by {seen[name.lower()]} (capitals do not count)"
                )
            seen[name.lower()] = f"{section}.{name}"
    for name in spec.sinks:
        _check_name(("sinks", name), "sink", name)
    return None


def _check_name(path: tuple[str, ...], what: str, name: str, *, key: tuple[str, ...] | None = None) -> None:
    if _NAME.fullmatch(name) is None:
        raise DeclarationError(
            key or path,
            f"not a name for a {what}; allowed are up to 100 letters (a-z), digits, '_', '-' and '.', "
            "not starting with '-' or '.'",
        )


def _check_operator(spec: PipelineSpec, operator: OperatorSpec) -> None:
    path = ("operators", operator.name)
    readable = [*spec.sources, *spec.tables, *spec.operators]
    if not operator.inputs:
        raise DeclarationError(path, "reads nothing: no input is named")
    for one in operator.inputs:
        if one not in readable:
            raise DeclarationError(
                (*path, "inputs"), f"nothing is called {one!r}; {allowed_names(one, readable)}"
            )
        if operator.sql is not None and _SQL_NAME.fullmatch(one) is None:
            raise DeclarationError(
                (*path, "inputs"),
                f"{one!r} cannot be named in SQL; allowed are letters, digits and '_', no digit first",
            )
    if operator.sql is not None and not operator.sql.strip():
        raise DeclarationError((*path, "sql"), "empty")
    for one in operator.watermarks:
        if one not in operator.inputs:
            raise DeclarationError(
                (*path, "watermark", one),
                f"not an input of this operator; {allowed_names(one, operator.inputs)}",
            )
        if one in spec.tables:
            raise DeclarationError((*path, "watermark", one), "a table is not a stream and has no watermark")


def _check_no_cycle(spec: PipelineSpec) -> None:
    done: set[str] = set()
    for name in spec.operators:
        _walk(spec, name, (), done)


def _walk(spec: PipelineSpec, name: str, above: tuple[str, ...], done: set[str]) -> None:
    if name in above:
        circle = " -> ".join((*above[above.index(name) :], name))
        raise DeclarationError(("operators", name), f"reads itself: {circle}")
    if name in spec.operators and name not in done:
        for one in spec.operators[name].inputs:
            _walk(spec, one, (*above, name), done)
        done.add(name)


def _check_sink(spec: PipelineSpec, sink: SinkSpec) -> None:
    path = ("sinks", sink.name)
    if sink.source in spec.sources or sink.source in spec.tables:
        raise DeclarationError(
            (*path, "from"),
            f"{sink.source!r} is not an operator, and a sink takes an operator's rows; "
            f'to pass all rows on, declare one with sql: "SELECT * FROM {sink.source}"',
        )
    if sink.source not in spec.operators:
        raise DeclarationError(
            (*path, "from"),
            f"no operator is called {sink.source!r}; {allowed_names(sink.source, spec.operators)}",
        )
    if sink.files is not None and sink.files.format not in SINK_FORMATS:
        raise DeclarationError((*path, "files", "format"), not_one_of(sink.files.format, SINK_FORMATS))


def _check_targets(spec: PipelineSpec) -> None:
    """No two sinks write to one place: each would sweep away what the other has staged."""
    taken: dict[tuple[str, ...], str] = {}
    for sink in spec.sinks.values():
        if sink.files is not None:
            target, path = ("files", sink.files.path.rstrip("/")), ("files", "path")
        elif sink.database is not None:
            target, path = (sink.database.url, sink.database.table.lower()), ("database", "table")
        else:
            continue
        if target in taken:
            raise DeclarationError(
                ("sinks", sink.name, *path), f"the sink {taken[target]!r} already writes there"
            )
        taken[target] = sink.name


def _check_nothing_is_cleaned_early(spec: PipelineSpec) -> None:
    """No source throws away what an epoch needs: with either interval Spark is done with a batch first."""
    longer = [name for name in ("every", "state_every") if getattr(spec, f"{name}_seconds") > 0]
    for source in spec.sources.values():
        for option, value in source.options.items():
            if longer and option.lower() == "cleansource" and value.lower() != "off":
                raise DeclarationError(
                    ("sources", source.name, "options", option),
                    f"with {longer[0]} above 0s only off is allowed: input could be gone before its epoch is "
                    "decided or replayed",
                )


# --- what the design names and this version does not build


def check_built(spec: PipelineSpec) -> None:
    """Refuses what would otherwise be accepted and not done."""
    if spec.on_corruption != "fail":
        raise not_supported_yet(("on_corruption",), repr(spec.on_corruption))
    if spec.on_change == "reset":
        raise not_supported_yet(("on_change",), repr(spec.on_change))
    for sink in spec.sinks.values():
        if sink.files is not None and is_url(sink.files.path):
            raise not_supported_yet(("sinks", sink.name, "files", "path"), "a URL (a local path is)")
        if sink.database is not None and not sink.database.url.startswith(DATABASES):
            raise not_supported_yet(
                ("sinks", sink.name, "database", "url"), f"a database other than {', '.join(DATABASES)}"
            )


def not_supported_yet(path: tuple[str, ...], what: str) -> DeclarationError:
    return DeclarationError(path, f"{what} is not supported yet")


# --- words for messages


def allowed_names(given: str, allowed: Iterable[str]) -> str:
    """``did you mean 'trades'?`` where one is near, then all there are."""
    names = list(allowed)
    close = get_close_matches(given.lower(), [name.lower() for name in names], n=1, cutoff=0.6)
    everything = f"allowed: {', '.join(names)}" if names else "there are none"
    if not close:
        return everything
    nearest = next(name for name in names if name.lower() == close[0])
    return f"did you mean {nearest!r}? ({everything})"


def not_one_of(given: str, allowed: Iterable[str]) -> str:
    return f"not one of the words allowed here; {allowed_names(given, allowed)}"


def is_url(text: str) -> bool:
    """Whether ``text`` has a scheme other than ``file``."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text) is not None and not text.startswith("file://")
