"""The declared pipeline: what it is called, what it reads and writes, and how to tell that it changed.

No Spark here: a declaration is checked, hashed and compared without a JVM.
"""

from __future__ import annotations

from holdfast.pipeline.durations import Trigger, parse_trigger
from holdfast.pipeline.identity import Change, compare_topology, pipeline_hash, topology
from holdfast.pipeline.spec import FlowSpec, PipelineSpec, flows
from holdfast.pipeline.yaml_file import load_yaml

__all__ = [
    "Change",
    "FlowSpec",
    "PipelineSpec",
    "Trigger",
    "compare_topology",
    "flows",
    "load_yaml",
    "parse_trigger",
    "pipeline_hash",
    "topology",
]
