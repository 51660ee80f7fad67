"""``pipeline.yaml`` -> PipelineSpec. Every key it knows stands here; a key it does not know is refused.

Every error is an InvalidInputError whose text starts with file, line and keys
(``pipeline.yaml:12: sinks.db.database.url: …``) and says what is allowed. Relative paths are relative
to the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from holdfast.errors import InvalidInputError
from holdfast.pipeline.durations import Trigger, parse_duration_ms, parse_trigger
from holdfast.pipeline.spec import (
    FILE_FORMATS,
    SCHEMA_FIRST,
    SINK_FORMATS,
    TABLE_FORMATS,
    DatabaseSpec,
    DeclarationError,
    FilesSpec,
    OnChange,
    OnCorruption,
    OperatorSpec,
    OutputMode,
    PipelineSpec,
    SinkSpec,
    SourceSpec,
    TableSpec,
    Watermark,
    allowed_names,
    is_url,
    not_one_of,
    not_supported_yet,
)
from holdfast.pipeline.sql_text import relations
from holdfast.pipeline.yaml_nodes import Node, located, read_document

T = TypeVar("T")

_TOP = (
    "pipeline",
    "store",
    "every",
    "state_every",
    "trigger",
    "output_mode",
    "on_corruption",
    "on_change",
    "spark",
    "scratch",
    "sources",
    "tables",
    "operators",
    "sinks",
)
_READ = ("format", "path", "schema", "options")
_OPERATOR = ("sql", "inputs", "watermark", "version")
_SINK_KINDS = ("files", "database")
_SINK_KINDS_TO_COME = ("delta", "iceberg", "kafka", "python")


def load_yaml(path: Path | str, *, environ: Mapping[str, str] | None = None) -> PipelineSpec:
    """The pipeline declared in the file at ``path``, checked as far as that goes without Spark."""
    root = read_document(Path(path), str(path), os.environ if environ is None else environ)
    base_dir = Path(os.path.abspath(path)).parent
    try:
        return _pipeline(root, base_dir)
    except DeclarationError as error:
        raise located(root.document, error) from error


def _pipeline(root: Node, base_dir: Path) -> PipelineSpec:
    top = root.fields(_TOP, required=("pipeline", "store", "sources", "operators", "sinks"))
    sources = _each(top, "sources", lambda name, node: _source(name, node, base_dir))
    tables = _each(top, "tables", lambda name, node: _table(name, node, base_dir))
    readable = [*sources, *tables, *(top["operators"].entries())]
    return PipelineSpec(
        name=top["pipeline"].text(),
        store=_location(top["store"], base_dir),
        every_seconds=_seconds(top.get("every")),
        state_every_seconds=_seconds(top.get("state_every")),
        trigger=_checked(top["trigger"], parse_trigger) if "trigger" in top else Trigger(),
        output_mode=cast(OutputMode, _word(top.get("output_mode"), get_args(OutputMode), "append")),
        on_corruption=cast(OnCorruption, _word(top.get("on_corruption"), get_args(OnCorruption), "fail")),
        on_change=cast(OnChange, _word(top.get("on_change"), get_args(OnChange), "fail")),
        spark=_settings(top.get("spark")),
        scratch=_location(top["scratch"], base_dir) if "scratch" in top else None,
        sources=sources,
        tables=tables,
        operators=_each(top, "operators", lambda name, node: _operator(name, node, readable)),
        sinks=_each(top, "sinks", lambda name, node: _sink(name, node, base_dir)),
        base_dir=base_dir,
    )


def _source(name: str, node: Node, base_dir: Path) -> SourceSpec:
    given = node.fields(_READ, required=("format",))
    kind = given["format"].text()
    if kind in SCHEMA_FIRST and "schema" not in given:
        raise node.error(
            f'missing; a stream of {kind} files needs one, such as "ts TIMESTAMP, qty BIGINT"',
            below=("schema",),
        )
    return SourceSpec(name=name, format=kind, **_read(node, given, kind, base_dir))


def _table(name: str, node: Node, base_dir: Path) -> TableSpec:
    given = node.fields(_READ, required=("format",))
    kind = given["format"].text()
    if kind in ("delta", "iceberg", "jdbc", "table"):
        raise not_supported_yet(given["format"].path, repr(kind))
    _word(given["format"], TABLE_FORMATS, "")
    return TableSpec(name=name, format=kind, **_read(node, given, kind, base_dir))


def _read(node: Node, given: Mapping[str, Node], kind: str, base_dir: Path) -> dict[str, Any]:
    if kind in FILE_FORMATS and "path" not in given:
        raise node.error(f"missing; the format {kind} reads files, and this says which", below=("path",))
    options = _settings(given.get("options"))
    for key in options:
        if key.lower() in ("path", "schema"):
            raise given["options"].error(
                f"is no option here; write `{key.lower()}:` beside `format:`", below=(key,)
            )
    return {
        "path": _location(given["path"], base_dir) if "path" in given else None,
        "schema": given["schema"].text() if "schema" in given else None,
        "options": options,
    }


def _operator(name: str, node: Node, readable: list[str]) -> OperatorSpec:
    given = node.fields(_OPERATOR, required=("sql",))
    sql = given["sql"].text()
    if "inputs" in given:
        inputs = given["inputs"].texts()
    else:
        inputs = _inputs_of(sql, given["sql"], [one for one in readable if one != name])
    return OperatorSpec(
        name=name,
        inputs=inputs,
        sql=sql,
        watermarks=_each(given, "watermark", lambda _, node: _watermark(node)),
        version=given["version"].text() if "version" in given else None,
    )


def _inputs_of(sql: str, node: Node, readable: list[str]) -> tuple[str, ...]:
    """What the query reads, spelled as declared: SQL does not mind capitals."""
    declared = {one.lower(): one for one in readable}
    found = []
    for relation in relations(sql):
        if relation.lower() not in declared:
            raise node.error(
                f"reads {relation!r}, which nothing declares; {allowed_names(relation, readable)}. "
                "If it is right, list what the query reads under `inputs:`"
            )
        found.append(declared[relation.lower()])
    if not found:
        raise node.error("reads nothing that is declared; name it after FROM, or list it under `inputs:`")
    return tuple(sorted(found))


def _watermark(node: Node) -> Watermark:
    given = node.fields(("column", "delay"), required=("column", "delay"))
    return Watermark(column=given["column"].text(), delay_ms=_checked(given["delay"], parse_duration_ms))


def _sink(name: str, node: Node, base_dir: Path) -> SinkSpec:
    given = node.fields(("from", *_SINK_KINDS, *_SINK_KINDS_TO_COME), required=("from",))
    for kind in _SINK_KINDS_TO_COME:
        if kind in given:
            raise given[kind].error(
                f"the sink {kind!r} is not supported yet; allowed: {', '.join(_SINK_KINDS)}"
            )
    kinds = [kind for kind in _SINK_KINDS if kind in given]
    if len(kinds) != 1:
        count = "both" if kinds else "neither"
        raise node.error(f"{count} of `files:` and `database:` given; a sink is exactly one of them")
    return SinkSpec(
        name=name,
        source=given["from"].text(),
        files=_files(given["files"], base_dir) if "files" in given else None,
        database=_database(given["database"], base_dir) if "database" in given else None,
    )


def _files(node: Node, base_dir: Path) -> FilesSpec:
    given = node.fields(("path", "format", "partition_by"), required=("path",))
    return FilesSpec(
        path=_location(given["path"], base_dir),
        format=_word(given.get("format"), SINK_FORMATS, "parquet"),
        partition_by=given["partition_by"].texts() if "partition_by" in given else (),
    )


def _database(node: Node, base_dir: Path) -> DatabaseSpec:
    given = node.fields(("url", "table", "key", "epoch_column"), required=("url", "table"))
    return DatabaseSpec(
        url=_database_url(given["url"], base_dir),
        table=given["table"].text(),
        key=given["key"].texts() if "key" in given else (),
        epoch_column=given["epoch_column"].text() if "epoch_column" in given else None,
    )


def _database_url(node: Node, base_dir: Path) -> str:
    url = node.text()
    scheme = url.partition(":")[0]
    prefix = f"{scheme}:///"
    if "://" not in url:
        raise node.error(
            "not a database URL; such as sqlite:///out.db (three slashes: relative to this file)"
        )
    if scheme not in ("sqlite", "duckdb"):
        return url
    if not url.startswith(prefix):
        raise node.error(f"a {scheme} URL has three slashes and a relative path, or four and an absolute one")
    file = url.removeprefix(prefix)
    if file in ("", ":memory:"):
        raise node.error("names no file; what a database in memory holds is gone after a crash")
    return prefix + _absolute(file, base_dir)


# --- values


def _each(given: Mapping[str, Node], section: str, make: Callable[[str, Node], T]) -> dict[str, T]:
    if section not in given:
        return {}
    return {name: make(name, node) for name, node in given[section].entries().items()}


def _settings(node: Node | None) -> dict[str, str]:
    return {} if node is None else {key: value.setting() for key, value in node.entries().items()}


def _location(node: Node, base_dir: Path) -> str:
    text = node.text()
    if not text.strip():
        raise node.error("empty; a path or URL is allowed")
    return text if is_url(text) or text.startswith("file://") else _absolute(text, base_dir)


def _absolute(text: str, base_dir: Path) -> str:
    return os.path.normpath(base_dir / Path(text).expanduser())


def _seconds(node: Node | None) -> float:
    return 0.0 if node is None else _checked(node, parse_duration_ms) / 1000


def _word(node: Node | None, allowed: tuple[str, ...], default: str) -> str:
    if node is None:
        return default
    word = node.text()
    if word not in allowed:
        raise node.error(not_one_of(word, allowed))
    return word


def _checked(node: Node, parse: Callable[[str], T]) -> T:
    text = node.text()
    try:
        return parse(text)
    except InvalidInputError as error:
        raise node.error(str(error)) from error
