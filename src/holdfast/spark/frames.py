"""From a declared flow to one streaming DataFrame. Declares nothing to Spark's query engine yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast.errors import InvalidInputError
from holdfast.pipeline.spec import FlowSpec, OperatorSpec, SourceSpec, TableSpec
from holdfast.spark.fingerprint import plan_fingerprint

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    Reader: TypeAlias = Callable[[SparkSession], DataFrame]
    Query: TypeAlias = Callable[..., DataFrame]


@dataclass(frozen=True, slots=True)
class Functions:
    """What was declared in Python, by name; whatever is not here is made from the spec alone."""

    readers: Mapping[str, Reader] = field(default_factory=dict)
    queries: Mapping[str, Query] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BuiltFlow:
    """A flow ready to start: its query, and which declared source each of Spark's sources is.

    ``spec`` knows what only a plan can tell: schemas of Python sources, fingerprints of Python operators.
    """

    spec: FlowSpec
    frame: DataFrame
    source_order: tuple[str, ...]
    fingerprint: str


def build_flow(flow: FlowSpec, session: SparkSession, functions: Functions) -> BuiltFlow:
    """Read every source, run every operator, inputs first. InvalidInputError names the part at fault."""
    frames: dict[str, DataFrame] = {}
    sources: dict[str, SourceSpec] = {}
    for name, source in flow.sources.items():
        frames[name] = _source(source, session, functions)
        sources[name] = _with_schema(source, frames[name]) if name in functions.readers else source
    for name, table in flow.tables.items():
        frames[name] = _table(table, session, functions)
    marked = {name: frames[name] for name in flow.sources}
    operators: dict[str, OperatorSpec] = {}
    for name, operator in flow.operators.items():
        frames[name] = _operator(operator, session, frames, functions)
        fingerprint = plan_fingerprint(frames[name]) if operator.sql is None else None
        operators[name] = replace(operator, fingerprint=fingerprint)
    frame = frames[flow.name]
    if not frame.isStreaming:
        raise InvalidInputError(f"operators.{flow.name}: its rows do not depend on any source")
    return BuiltFlow(
        spec=replace(flow, sources=sources, operators=operators),
        frame=frame,
        source_order=_source_order(frame, marked),
        fingerprint=plan_fingerprint(frame),
    )


def _source(source: SourceSpec, session: SparkSession, functions: Functions) -> DataFrame:
    if reader := functions.readers.get(source.name):
        frame = reader(session)
    else:
        stream = session.readStream.format(source.format).options(**source.options)
        if source.schema is not None:
            stream = stream.schema(source.schema)
        frame = stream.load(source.path) if source.path is not None else stream.load()
    if not frame.isStreaming:
        raise InvalidInputError(f"sources.{source.name}: not a stream").with_hint(
            "declare it under tables, or read it with spark.readStream"
        )
    return frame


def _table(table: TableSpec, session: SparkSession, functions: Functions) -> DataFrame:
    if reader := functions.readers.get(table.name):
        return reader(session)
    read = session.read.format(table.format).options(**table.options)
    if table.schema is not None:
        read = read.schema(table.schema)
    return read.load(table.path)


def _operator(
    operator: OperatorSpec, session: SparkSession, frames: Mapping[str, DataFrame], functions: Functions
) -> DataFrame:
    inputs = {}
    for name in operator.inputs:
        frame = frames[name]
        if mark := operator.watermarks.get(name):
            frame = frame.withWatermark(mark.column, mark.delay)
        inputs[name] = frame
    if query := functions.queries.get(operator.name):
        return query(**inputs)
    assert operator.sql is not None  # a spec without SQL and without a function does not exist
    for name, frame in inputs.items():
        frame.createOrReplaceTempView(name)
    return session.sql(operator.sql)


def _with_schema(source: SourceSpec, frame: DataFrame) -> SourceSpec:
    return replace(source, schema=frame.schema.simpleString())


# --- which of Spark's sources is which of ours


def _source_order(frame: DataFrame, sources: Mapping[str, DataFrame]) -> tuple[str, ...]:
    """The declared name of each source, in the order in which Spark numbers them: leaves, left to right.

    Spark keeps a source's relation object through the whole plan, so it is the object that is
    compared: names and paths may repeat.
    """
    owners = {name: _streaming_leaves(source) for name, source in sources.items()}
    order: list[str] = []
    for leaf in _streaming_leaves(frame):
        names = [name for name, own in owners.items() if any(_same_source(leaf, one) for one in own)]
        name = names[0] if names else f"source-{len(order)}"
        order.append(name if name not in order else f"{name}-{len(order)}")
    return tuple(order)


def _streaming_leaves(frame: DataFrame) -> list[Any]:
    leaves = frame._jdf.queryExecution().analyzed().collectLeaves()
    found: list[Any] = []
    for position in range(leaves.size()):
        leaf = leaves.apply(position)
        if leaf.isStreaming() and not any(leaf.equals(one) for one in found):
            found.append(leaf)
    return found


def _same_source(one: Any, other: Any) -> bool:
    if one.getClass().getName() != other.getClass().getName():
        return False
    if one.getClass().getSimpleName() == "StreamingRelation":
        return bool(one.dataSource().equals(other.dataSource()))
    if one.getClass().getSimpleName() == "StreamingRelationV2":
        return bool(one.table().equals(other.table()))
    return bool(one.equals(other))
