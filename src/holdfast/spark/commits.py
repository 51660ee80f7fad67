"""The text of Spark's ``commits/N``, made inside ``foreachBatch(N)`` before Spark writes it.

After the last action of a batch, the running query holds all that its commit record will say: the
next watermark and, in state format 2, the id of every state file. Spark writes the same bytes a
moment later. The way there is internal to Spark, so it is taken only on versions that a test has
compared byte by byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.errors import UnsupportedFormatError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Minor versions whose commit files our tests have seen to be equal, byte by byte.
PROVEN_VERSIONS = frozenset({"4.3"})

_STATE_WRITER = "org.apache.spark.sql.execution.streaming.operators.stateful.StateStoreWriter"


def check_supported(session: SparkSession) -> None:
    """Raises UnsupportedFormatError where a commit record cannot be made ahead of Spark."""
    minor = ".".join(session.version.split(".")[:2])
    if not hasattr(session, "_jsparkSession"):
        raise UnsupportedFormatError("Spark Connect", "a pipeline runs beside its driver").with_hint(
            "use a classic session (no spark.remote); `holdfast capture` works with Connect"
        )
    if minor not in PROVEN_VERSIONS:
        raise UnsupportedFormatError(
            f"Spark {session.version}", f"pipelines are proven on {', '.join(sorted(PROVEN_VERSIONS))}"
        ).with_hint("install that version of pyspark; `holdfast capture` works with any")


def commit_text(query: StreamingQuery, *, state_format: int) -> str:
    """What Spark will write into ``commits/N`` for the batch that ``query`` is in, after its last action."""
    execution = query._jsq.streamingQuery()
    plan = execution.lastExecution().executedPlan()
    tracker = execution.watermarkTracker()
    tracker.updateWatermark(plan)  # idempotent: Spark does the same again when the batch ends
    record: dict[str, Any] = {"nextBatchWatermarkMs": tracker.currentWatermark()}
    if state_format >= 2:
        record["stateUniqueIds"] = dict(_state_ids(plan))
    return f"v{state_format}\n" + json.dumps(record, separators=(",", ":"))


def _state_ids(plan: Any) -> Iterator[tuple[str, list[list[str]]]]:
    """Operator id → [partition][store] → id of the state that this batch left."""
    for node in _walk(plan):
        if _writes_state(node):
            operator = str(node.stateInfo().get().operatorId())
            yield (
                operator,
                [list(info.stateStoreCkptId().get()) for info in node.getStateStoreCheckpointInfo()],
            )


def _writes_state(node: Any) -> bool:
    # A py4j object answers to every name, so it is the class that has to be asked.
    writer = node.getClass().getClassLoader().loadClass(_STATE_WRITER)
    return bool(writer.isInstance(node))


def _walk(plan: Any) -> Iterator[Any]:
    yield plan
    children = plan.children()
    for position in range(children.size()):
        yield from _walk(children.apply(position))
