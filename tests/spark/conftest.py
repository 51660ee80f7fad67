"""Makes helpers importable: ``runs`` beside this file, and the tables of ``make kills`` and ``make flips``,
some of whose rows are tests here."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parent / "crash")]
