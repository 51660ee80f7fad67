"""The demo is the front page's claim, so it is a test: real processes, killed and damaged, and the proof."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.spark.demo import main

pytestmark = [pytest.mark.spark, pytest.mark.kills, pytest.mark.timeout(900)]


def test_the_demo_proves_what_the_front_page_says(tmp_path: Path) -> None:
    told: list[str] = []

    code = main(str(tmp_path / "demo"), say=told.append)

    text = "\n".join(told)
    assert code == 0, text
    assert "PROVED: rows lost 0, rows doubled 0" in text
    assert text.count("flipped bit") >= 2
    assert text.count("  killed") == 2
    assert "replayed epoch 3 from its recorded offsets, sinks closed" in text
    assert "replayed epoch 6 from its recorded offsets, sinks closed" in text
