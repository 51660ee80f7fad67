"""How Spark logs in a session of ours: quietly, unless somebody has said otherwise. No session is started."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from holdfast.spark.session import JAVA_OPTIONS, quieted


def test_a_session_logs_by_the_file_we_ship_and_keeps_its_other_options() -> None:
    options = quieted({JAVA_OPTIONS: "-Xss8m", "spark.master": "local"}, {})[JAVA_OPTIONS]

    stack, log4j = options.split(" ")
    assert stack == "-Xss8m"
    shipped = Path(unquote(urlsplit(log4j.removeprefix("-Dlog4j2.configurationFile=")).path))
    assert "rootLogger.level = error" in shipped.read_text(encoding="utf-8").splitlines()


def test_a_user_who_configured_log4j_is_left_alone(tmp_path: Path) -> None:
    theirs = {JAVA_OPTIONS: "-Dlog4j2.configurationFile=mine.xml"}
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "log4j2.properties").write_text("")

    assert quieted(theirs, {}) == theirs
    assert quieted({}, {"SPARK_CONF_DIR": str(tmp_path / "conf")}) == {}
    assert quieted({}, {"SPARK_HOME": str(tmp_path)}) == {}


@pytest.mark.parametrize("variable", ["SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS"])
def test_options_for_java_in_the_environment_count_too(variable: str) -> None:
    assert quieted({}, {variable: "-Dlog4j2.level=debug"}) == {}
    assert JAVA_OPTIONS in quieted({}, {variable: "-Xmx1g"})
