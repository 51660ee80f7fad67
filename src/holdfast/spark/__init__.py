"""Pipelines on Spark: the only package that imports pyspark, and only once a session is needed.

from holdfast.spark import Pipeline, sinks      declare a whole pipeline
from holdfast.spark import start                hand over a streaming DataFrame that is already there
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.spark import sinks
    from holdfast.spark.pipeline import Pipeline
    from holdfast.spark.query import FlowQuery, start
    from holdfast.spark.running import run_pipeline

__all__ = ["FlowQuery", "Pipeline", "run_pipeline", "sinks", "start"]

_HOME = {
    "FlowQuery": "holdfast.spark.query",
    "Pipeline": "holdfast.spark.pipeline",
    "run_pipeline": "holdfast.spark.running",
    "start": "holdfast.spark.query",
}


def __getattr__(name: str) -> Any:
    """Load what is asked for, when it is: finding Java must not cost loading the protocol."""
    if name == "sinks":
        return import_module("holdfast.spark.sinks")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
