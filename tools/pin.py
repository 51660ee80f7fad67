"""Writes constraints.txt anew: every package that the extras and the dev group lead to, on every platform.

Run `.venv/bin/python tools/pin.py` after a change to the dependencies in pyproject.toml, then `make test`.
Names and versions only: no addresses, no hashes, not this project.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Written by tools/pin.py; do not edit. What every test of this project ran with.\n"


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        # A copy, so that uv's own lock file, which is full of addresses, never lies in the checkout.
        copy = Path(name)
        shutil.copy(ROOT / "pyproject.toml", copy)
        shutil.copy(ROOT / "README.md", copy)
        told = subprocess.run(
            [
                *(sys.executable, "-m", "uv", "export", "--quiet"),
                *("--all-extras", "--all-groups", "--no-emit-project"),
                *("--no-hashes", "--no-header", "--no-annotate"),
            ],
            cwd=copy,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    if told.returncode != 0:
        print("pin: uv could not resolve the dependencies (see above)", file=sys.stderr)
        return 1
    pins = ROOT / "constraints.txt"
    pins.write_text(HEADER + told.stdout.rstrip() + "\n", encoding="utf-8")
    print(f"pin: {len(told.stdout.splitlines())} packages in {pins.name}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
