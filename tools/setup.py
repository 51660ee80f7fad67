"""Makes `.venv` in the checkout: pinned packages, this project, and a Java for Spark. Standard library only.

Run by `make setup`, with any Python >= 3.11. Does nothing when the stamp says that nothing has changed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "holdfast-setup"
PINS = ROOT / "constraints.txt"
INPUTS = (ROOT / "pyproject.toml", PINS, Path(__file__).resolve())


def main() -> int:
    wanted = fingerprint()
    found = STAMP.read_text(encoding="utf-8") if STAMP.is_file() else ""
    if found == wanted and runs(PYTHON):
        return 0

    started = time.monotonic()
    # Scripts in a venv hold its path: one that was moved or copied here has to be made again.
    moved = bool(found) and found.splitlines()[0] != wanted.splitlines()[0]
    if moved or not runs(PYTHON):
        make_venv()
    STAMP.unlink(missing_ok=True)
    install_uv()
    install_project()
    show_java()
    STAMP.write_text(wanted, encoding="utf-8")
    say(f"set up in {time.monotonic() - started:.0f} s")
    return 0


def fingerprint() -> str:
    digest = hashlib.sha256()
    for path in INPUTS:
        digest.update(path.read_bytes() + b"\0")
    return f"{ROOT}\n{digest.hexdigest()}\n"


def runs(python: Path) -> bool:
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    try:
        return subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def make_venv() -> None:
    say(f"making {VENV.name} with Python {sys.version.split()[0]} ({sys.executable})")
    if VENV.exists():
        shutil.rmtree(VENV)
    step(
        [sys.executable, "-m", "venv", VENV],
        f"is the disk full, or {ROOT} read-only? Another Python: make setup PYTHON=/path/to/python3.12",
    )


def install_uv() -> None:
    say("installing uv")
    step(
        [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", PINS, "uv"],
        "can pip reach a package index? Behind a mirror, set PIP_INDEX_URL and try again",
    )


def install_project() -> None:
    say("installing the pinned packages and holdfast (with a cold cache about a minute: pyspark is large)")
    # uv does not read pip's settings; where only those name a mirror or a certificate, pass them on.
    for theirs, ours in (("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), ("PIP_CERT", "SSL_CERT_FILE")):
        if theirs in os.environ:
            os.environ.setdefault(ours, os.environ[theirs])
    os.environ.setdefault("UV_HTTP_TIMEOUT", "180")
    step(
        [
            *(PYTHON, "-m", "uv", "pip", "install", "--python", PYTHON),
            *("-c", PINS, "--build-constraints", PINS),
            *("-e", ".[all]", "--group", "dev", "--group", "servers"),
        ],
        "can uv reach a package index? Behind a mirror, set UV_DEFAULT_INDEX and try again; "
        "if a pin cannot be met, `python tools/pin.py` makes new ones",
    )


def show_java() -> None:
    """A missing Java is said loudly and stops nothing: only Spark needs it, and asks for it again."""
    code = "import os; from holdfast.spark.java import find_java; print(find_java())"
    found = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
    if found.returncode == 0:
        say(found.stdout.strip())
    else:
        say(f"NO JAVA: {(found.stderr.strip() or 'unknown error').splitlines()[-1]}")
        say("the Spark tests and the demo need Java >= 17: install one and set JAVA_HOME")


def step(command: list[object], hint: str) -> None:
    done = subprocess.run([str(part) for part in command], cwd=ROOT, check=False)
    if done.returncode != 0:
        say(f"failed ({done.returncode}): {' '.join(str(part) for part in command)}")
        say(f"hint: {hint}")
        sys.exit(1)


def say(text: str) -> None:
    print(f"setup: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
