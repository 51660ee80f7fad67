"""Rebuild the state of decided batches by running exactly those again, with the sinks closed.

Spark re-runs the one batch that has an ``offsets`` file and no ``commits`` file, with those very
offsets. So the recorded files of a batch are put in place, the query is started for one batch, and
what it leaves is compared with what was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from holdfast.errors import CorruptError
from holdfast.spark.driving import OnBatch
from holdfast.sparkdir.reading import parse_commit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: Starts the flow's query over a scratch directory for exactly one batch, and returns when it ended.
RunOnce: TypeAlias = Callable[[OnBatch], None]


def replay_batch(
    batch: int,
    scratch: Path,
    logs: Mapping[str, str],
    *,
    run_once: RunOnce,
    take: Callable[[DataFrame], None],
) -> None:
    """Run ``batch`` again over ``scratch``, which holds the state before it; ``take`` gets its rows.

    Raises CorruptError when the batch did not come out as recorded: its sources no longer hold the
    same rows, or the query is another.
    """
    offsets, commit = f"offsets/{batch}", f"commits/{batch}"
    for name in (offsets, commit):
        if name not in logs:
            raise CorruptError(name, "the record of its epoch does not hold it").with_hint("holdfast log")
    _put_in_place(scratch, {name: text for name, text in logs.items() if _precedes(name, batch)})
    seen: list[int] = []

    def on_batch(frame: DataFrame, number: int, _: StreamingQuery) -> None:
        seen.append(number)
        take(frame)

    run_once(on_batch)
    if seen != [batch]:
        raise _not_as_recorded(batch, f"Spark ran {seen or 'nothing'} instead")
    if (scratch / offsets).read_text(encoding="utf-8") != logs[offsets]:
        raise _not_as_recorded(batch, "Spark planned other offsets")
    if not (scratch / commit).exists():
        raise _not_as_recorded(batch, "Spark did not finish it")
    left = parse_commit((scratch / commit).read_bytes(), commit).next_watermark_ms
    recorded = parse_commit(logs[commit].encode(), commit).next_watermark_ms
    if left != recorded:
        raise _not_as_recorded(batch, f"the watermark came out as {left}, and was {recorded}")


def _precedes(name: str, batch: int) -> bool:
    """Whether a recorded log file is one that Spark has when it begins ``batch``: no later batch's."""
    log, _, rest = name.partition("/")
    if log == "commits":
        return False
    return log != "offsets" or rest == str(batch)


def drive(frame: DataFrame) -> None:
    """Compute a batch for its state alone: the rows go nowhere."""
    frame.write.format("noop").mode("overwrite").save()


def _put_in_place(scratch: Path, logs: Mapping[str, str]) -> None:
    for name, text in logs.items():
        path = scratch / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())


def _not_as_recorded(batch: int, reason: str) -> CorruptError:
    return CorruptError(f"batch {batch}", f"its replay is not what was recorded: {reason}").with_hint(
        "a source no longer holds the rows of that time, or the query changed; "
        "holdfast recover --dry-run shows what is left to choose from"
    )
