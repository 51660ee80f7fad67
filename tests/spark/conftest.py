"""Where the tables of ``make kills`` and ``make flips`` are: some of their rows are tests here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "crash"))
