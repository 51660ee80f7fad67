"""A fingerprint of what a query computes. Spark itself lets a changed grouping expression or aggregate
pass and runs on with garbage state; this is how we notice.

It does not see inside a Python function: a plan shows only a UDF's name. That is what ``version=`` is for.
"""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A watermark carries a random UUID, new in every process.
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
# What a source reads, and from where, is hashed by name elsewhere; its columns stay in.
_SOURCE = re.compile(r"(StreamingRelation(?:V2)?) .*?(?=\[none|\[\])")


def canonical_plan(frame: DataFrame) -> str:
    """The analysed plan with everything that differs from process to process taken out."""
    plan = frame._jdf.queryExecution().analyzed().canonicalized().toString()
    return _SOURCE.sub(r"\1 ", _UUID.sub("", plan))


def plan_fingerprint(frame: DataFrame) -> str:
    """Equal in any two processes for the same query; 64 hex digits."""
    return hashlib.sha256(canonical_plan(frame).encode()).hexdigest()
