"""The Spark session a pipeline runs in, and the settings that a query of ours needs. Starts no query."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import InvalidInputError, MissingExtraError
from holdfast.spark.java import find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

#: State of our own runs: RocksDB with a changelog, in format 2, whose file names are never used twice.
STATE_SETTINGS: Mapping[str, str] = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}

JAVA_OPTIONS = "spark.driver.extraJavaOptions"

#: What a session that we make ourselves starts with; a pipeline's own ``spark:`` settings win.
SESSION_SETTINGS: Mapping[str, str] = {
    "spark.master": "local[*]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # A stop during a Python callback runs a regex over the error text; on the default stack it overflows.
    JAVA_OPTIONS: "-Xss8m",
    "spark.sql.session.timeZone": "UTC",
}


def session_for(app: str, settings: Mapping[str, str], session: SparkSession | None = None) -> SparkSession:
    """``session``, else the active one, else a new one, set up for ``app``.

    In a session that is there already, a setting that only counts at its start is refused.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtraError("spark", "running a pipeline") from error

    session = session or SparkSession.getActiveSession()
    if session is None:
        find_java().export(os.environ)
        # Workers must run this very interpreter, not whatever `python3` is on their PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        wanted = quieted({**SESSION_SETTINGS, **STATE_SETTINGS, **settings}, os.environ)
        if wanted["spark.master"].startswith("local"):
            # Nobody outside needs to reach this driver, and many a machine cannot resolve its own name.
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = SparkSession.builder.appName(app)
        for name, value in wanted.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()
    for name, value in {**STATE_SETTINGS, **settings}.items():
        _set(session, name, value)
    return session


def quieted(settings: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """``settings`` of a session that logs errors alone, unless somebody has said how Spark is to log.

    Setting the level of a session that runs comes too late: by then its start has been told.
    """
    options = settings.get(JAVA_OPTIONS, "")
    told = (
        options,
        *(environ.get(name, "") for name in ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")),
    )
    homes = (environ.get("SPARK_CONF_DIR"), environ.get("SPARK_HOME") and f"{environ['SPARK_HOME']}/conf")
    if any("log4j" in one for one in told) or any(
        home and (Path(home) / "log4j2.properties").exists() for home in homes
    ):
        return dict(settings)
    ours = Path(__file__).with_name("log4j2.properties").as_uri()
    return {**settings, JAVA_OPTIONS: f"{options} -Dlog4j2.configurationFile={ours}".strip()}


def is_session_active() -> bool:
    """Whether somebody has a Spark session here already: then it is theirs to stop."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise MissingExtraError("spark", "running a pipeline") from error
    return SparkSession.getActiveSession() is not None


def _set(session: SparkSession, name: str, value: str) -> None:
    from pyspark.errors import AnalysisException

    if session.conf.get(name, None) == value:
        return
    try:
        # Asking isModifiable first would be wrong: it says no to all that Spark has not registered.
        session.conf.set(name, value)
    except AnalysisException as error:
        raise InvalidInputError(f"{name} cannot be changed in a running Spark session").with_hint(
            "stop the session first, or leave this setting out"
        ) from error
