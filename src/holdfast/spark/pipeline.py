"""Declare a pipeline in Python: functions for sources, tables and operators, objects for sinks.

What is declared here and what YAML declares ends in the same ``PipelineSpec``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.coordinator.sink import Sink
from holdfast.coordinator.steps import Observer, ignore
from holdfast.errors import InvalidInputError
from holdfast.pipeline import Trigger, parse_trigger
from holdfast.pipeline.durations import parse_duration_ms
from holdfast.pipeline.spec import (
    OnChange,
    OnCorruption,
    OperatorSpec,
    OutputMode,
    PipelineSpec,
    SinkSpec,
    SourceSpec,
    TableSpec,
    Watermark,
)
from holdfast.spark.frames import Functions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])

PYTHON = "python"


class Pipeline:
    """A pipeline under declaration. ``spec()`` checks it as a whole, ``run()`` runs it; nothing before."""

    def __init__(
        self,
        name: str,
        *,
        store: str,
        every: str = "0s",
        state_every: str = "0s",
        output_mode: OutputMode = "append",
        on_corruption: OnCorruption = "fail",
        on_change: OnChange = "fail",
        spark: Mapping[str, str] | None = None,
        scratch: str | None = None,
    ) -> None:
        self._name = name
        self._store = store
        self._settings: dict[str, Any] = {
            "every_seconds": parse_duration_ms(every) / 1000,
            "state_every_seconds": parse_duration_ms(state_every) / 1000,
            "output_mode": output_mode,
            "on_corruption": on_corruption,
            "on_change": on_change,
            "spark": {key: str(value) for key, value in (spark or {}).items()},
            "scratch": scratch,
        }
        self._sources: dict[str, SourceSpec] = {}
        self._tables: dict[str, TableSpec] = {}
        self._operators: dict[str, OperatorSpec] = {}
        self._sink_specs: dict[str, SinkSpec] = {}
        self._sinks: dict[str, Sink] = {}
        self._readers: dict[str, Callable[..., Any]] = {}
        self._queries: dict[str, Callable[..., Any]] = {}

    def source(self, name: str) -> Callable[[F], F]:
        """``@pipeline.source("trades")`` on a function from a session to a streaming DataFrame."""

        def declare(read: F) -> F:
            self._sources[_free(name, "source", self._sources)] = SourceSpec(name, PYTHON)
            self._readers[name] = read
            return read

        return declare

    def table(self, name: str) -> Callable[[F], F]:
        """``@pipeline.table("names")`` on a function from a session to a static DataFrame."""

        def declare(read: F) -> F:
            self._tables[_free(name, "table", self._tables)] = TableSpec(name, PYTHON)
            self._readers[name] = read
            return read

        return declare

    def operator(
        self,
        name: str,
        *,
        inputs: Sequence[str],
        sql: str | None = None,
        watermarks: Mapping[str, tuple[str, str]] | None = None,
        version: str | None = None,
    ) -> Callable[[F], F]:
        """A query over ``inputs``: SQL given here, or a function that takes each of them by its name.

        No plan shows what is inside a Python UDF: raise ``version`` when one changes what it computes.
        ``watermarks`` is input → (column, delay), for SQL; a function calls ``withWatermark`` itself.
        """
        marks = {
            one: Watermark(column, parse_duration_ms(delay))
            for one, (column, delay) in (watermarks or {}).items()
        }
        spec = OperatorSpec(name, tuple(inputs), sql=sql, watermarks=marks, version=version)
        if sql is not None:
            self._operators[_free(name, "operator", self._operators)] = spec

        def declare(query: F) -> F:
            if sql is not None:
                raise InvalidInputError(f"operator {name!r} has SQL already; a function would not be called")
            self._operators[_free(name, "operator", self._operators)] = spec
            self._queries[name] = query
            return query

        return declare

    def sink(self, name: str, *, source: str, to: Sink) -> None:
        """Send the rows of operator ``source`` to ``to``. Sinks that share an operator form a flow."""
        facts = getattr(to, "identity_facts", None)
        self._sink_specs[_free(name, "sink", self._sink_specs)] = SinkSpec(
            name, source, facts={"type": type(to).__qualname__} if facts is None else dict(facts())
        )
        self._sinks[name] = to

    def spec(self, *, trigger: Trigger | None = None) -> PipelineSpec:
        """The declaration as a whole, checked. Raises DeclarationError."""
        return PipelineSpec(
            name=self._name,
            store=self._store if "://" in self._store else str(Path(self._store).absolute()),
            sources=self._sources,
            tables=self._tables,
            operators=self._operators,
            sinks=self._sink_specs,
            trigger=trigger or Trigger(),
            **self._settings,
        )

    @property
    def functions(self) -> Functions:
        """What was declared as Python functions, by name."""
        return Functions(self._readers, self._queries)

    def run(
        self,
        *,
        trigger: str = "0 seconds",
        session: SparkSession | None = None,
        observe: Observer = ignore,
    ) -> None:
        """Run every flow until its trigger is through (``available-now``) or the process is told to stop."""
        from holdfast.spark.running import run_pipeline

        run_pipeline(
            self.spec(trigger=parse_trigger(trigger)),
            functions=self.functions,
            sinks=self._sinks,
            session=session,
            observe=observe,
        )


def _free(name: str, what: str, taken: Mapping[str, Any]) -> str:
    if name in taken:
        raise InvalidInputError(f"{what} {name!r} is declared twice")
    return name
