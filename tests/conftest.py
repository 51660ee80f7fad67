"""What every test shares: a Java, one Spark session a process, and the rule that CI skips nothing.

- A test marked ``spark`` is skipped, with the reason, where no Java is found. With HOLDFAST_REQUIRE_ALL=1 a
  skip of any kind is a failure: a proof that silently did not run is worse than one that failed.
- Fixture ``spark``: started once, stopped at the end. Tests that kill processes start their own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from holdfast.errors import HoldfastError
from holdfast.spark.java import JavaHome, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent

# Machines are slow and noisy: no test fails on time. CI takes the same examples each time.
settings.register_profile(
    "holdfast",
    deadline=None,
    print_blob=True,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("holdfast")


@cache
def java() -> JavaHome | str:
    """The Java for every test of this process, or the reason why there is none."""
    try:
        return find_java(wrapper_root=ROOT / ".java")
    except HoldfastError as error:
        return f"{error}; {error.hint}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("spark") is None:
        return
    found = java()
    if isinstance(found, str):
        pytest.skip(f"no Java for Spark: {found}")
    # For this process and for every one that a test starts.
    found.export(os.environ)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_a_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_a_skip(report)
    return report


def _fail_a_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Where nothing may be skipped, a skip becomes a failure. An expected failure is not a skip."""
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("HOLDFAST_REQUIRE_ALL") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped, and HOLDFAST_REQUIRE_ALL=1 allows no skips: {report.longrepr}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark session of this test process. Its tests are marked ``spark``."""
    from pyspark.sql import SparkSession

    place = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2]").appName("holdfast-tests")
    for name, value in _spark_settings(place).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def _spark_settings(place: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "1g",
        # -Xss8m: stopping a query inside foreachBatch overflows the default stack, in a regex of Spark's own.
        # The others start a JVM sooner, and are slower only in runs longer than a test.
        "spark.driver.extraJavaOptions": "-Xss8m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.local.dir": str(place / "local"),
        # Often, so that what maintenance deletes or uploads happens while a test is looking.
        "spark.sql.streaming.stateStore.maintenanceInterval": "1s",
    }
