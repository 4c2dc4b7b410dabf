"""Configuration files and the environment: what they may say, and what the command line says before them."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mmqjp.cli import main
from mmqjp.commands.command_line import Failure
from mmqjp.commands.configuration import configured
from mmqjp.commands.sinks import sinks_of
from mmqjp.documents.watermarks import Timing
from mmqjp.sinks.secrets import FileSecret
from mmqjp.state.choice import EngineChoice
from tests.support.cli import mmqjp as call


@pytest.mark.parametrize(
    ("arguments", "configured", "lateness"),
    [
        ([], "", None),
        (["1s"], "", 1_000_000),
        (["T=2s"], "", {"*": None, "T": 2_000_000}),
        (["T=INF", "1s", "news=of=1ms"], "", {"*": 1_000_000, "T": None, "news=of": 1_000}),
        ([], 'lateness = "1s"', 1_000_000),
        ([], 'lateness = ["1s", "T=2s"]', {"*": 1_000_000, "T": 2_000_000}),
        ([], 'lateness = { "*" = "1s", T = 2 }', {"*": 1_000_000, "T": 2_000_000}),
        ([], '[run.lateness]\nT = "2s"', {"*": None, "T": 2_000_000}),
        (["3s"], 'lateness = { T = "2s" }', 3_000_000),
    ],
)
def test_a_stream_may_have_a_lateness_of_its_own(files, tmp_path, monkeypatch, arguments, configured, lateness):
    (tmp_path / "mmqjp.toml").write_text(configured)
    seen = []

    def opened(engine: str, master: object, plan: str, state: object, timing: Timing, **more: object) -> None:
        seen.append(timing)
        raise ZeroDivisionError

    monkeypatch.setattr("mmqjp.commands.run.open_engine", opened)
    call(*files, "--engine", "duckdb", *(part for one in arguments for part in ("--lateness", one)))
    assert [timing.lateness for timing in seen] == [lateness]


@pytest.fixture
def engine(files, monkeypatch):
    """Which engine a run would use, given further options; the engine itself does not start."""
    started = []

    def start(engine, *rest, **more):
        started.append(engine)
        raise Failure("not started")

    monkeypatch.setattr("mmqjp.commands.run.open_engine", start)

    def chosen(*options):
        assert call(*files, *options).stderr == "mmqjp: error: not started\n"
        return started[-1]

    return chosen


def test_which_engine_is_used(engine, tmp_path, monkeypatch):
    """The command line goes before the environment, then comes the file here, then that of the user."""
    with monkeypatch.context() as patched:
        patched.setattr("mmqjp.commands.formats.choose_engine", lambda name, *given: EngineChoice(f"chosen for {name}"))
        assert engine() == "chosen for auto" and configured(main, None) == {}
    here, user = tmp_path / "mmqjp.toml", tmp_path / "config" / "mmqjp" / "mmqjp.toml"
    user.parent.mkdir(parents=True)
    user.write_text('engine = "duckdb"')
    assert engine() == "duckdb"
    here.write_text("# says nothing of engines")
    assert engine() == "duckdb"
    here.write_text('engine = "spark"')
    assert engine() == "spark"
    monkeypatch.setenv("MMQJP_ENGINE", "duckdb")
    assert engine() == "duckdb"
    assert engine("--engine", "spark") == "spark"


def test_environment_with_an_unknown_engine(files, monkeypatch):
    monkeypatch.setenv("MMQJP_ENGINE", "mysql")
    result = call(*files)
    assert result.exit_code == 2 and ("MMQJP_ENGINE" in result.stderr or "'--engine'" in result.stderr)


SINKS = """
[secrets]
hook = { file = "hook.key" }
[sinks.alerts]
kind = "webhook"
url = "https://example.org/hook"
secret = "hook"
[sinks.list]
kind = "jsonl"
path = "out.jsonl"
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine = duckdb", "cannot be read"),
        ("\udcff", "cannot be read"),
        ('engine = "mysql"', "has engine = 'mysql': 'mysql' is not one of"),
        ("engine = 1", "has engine = 1"),
        ('engine = { T = "1s" }', "write a string"),
        ('motor = "duckdb"', 'unknown setting "motor"; the known ones are "'),
        ('enigne = "duckdb"', 'unknown setting "enigne"; did you mean "engine"?'),
        ("[stream]\nkep = '1d'", 'unknown setting "stream.kep"; did you mean "stream.keep"?'),
        ("[strem]\nkeep = '1d'", 'unknown setting "strem"; did you mean "stream"?'),
        ("[run]\ncheckpoint = 'x'", 'has an unknown setting "run.checkpoint"; the known ones are "run.allow-private"'),
        ("[walk]\nengine = 'duckdb'", 'has an unknown setting "walk"'),
        ("[stream]\nsource = 'drops'", "has stream.source = 'drops'; write a list of strings"),
        ("[stream]\nstate = ['drops']", "has stream.state = ['drops']; write a string, a number, or true or false"),
        ("add = 'yes'", "has add = 'yes'; write true or false"),
        ("feeds = 'entries'", "has feeds = 'entries': 'entries' is not one of"),
        ("[stream]\nbatch-size = 0", "has stream.batch-size = 0: 0 is not in the range x>=1."),
        ('lateness = { T = "soon" }', "has lateness = 'T=soon': 'soon' is not a duration"),
        ("lateness = { T = [1] }", "is not a duration"),
        ('lateness = ["1s", "2s"]', "a stream is named twice"),
        (SINKS.replace("url =", "ulr ="), "mmqjp.toml: sinks.alerts.url: this key is missing"),
        (SINKS.replace('{ file = "hook.key" }', '"s3cr3t"'), "mmqjp.toml: secrets.hook: write { file"),
        ('sinks = "a"', "the configuration mmqjp.toml: sinks: write tables"),
        (SINKS.replace("[sinks.", "[sink."), 'the configuration mmqjp.toml has an unknown setting "sink"'),
    ],
)
def test_a_bad_configuration_is_named_in_one_line(files, tmp_path, text, message):
    (tmp_path / "mmqjp.toml").write_text(text, errors="surrogateescape")
    result = call("status", "--state", "state") if "sink" in text else call(*files)
    assert result.exit_code == 2 and message in result.stderr and "s3cr3t" not in result.stderr
    assert "mmqjp.toml" in result.stderr or "--lateness" in result.stderr
    assert len(result.stderr.splitlines()) == 1


CONFIGURATION = """
engine = "duckdb"
lateness = "1h"

[run]
documents = ["one.jsonl", "two.jsonl"]
batch-size = 7
lateness = "2h"

[subscribe]
add = true
"""


def test_every_option_may_be_configured(tmp_path, monkeypatch):
    path = tmp_path / "other.toml"
    path.write_text(CONFIGURATION)
    found = configured(main, path)
    assert found["run"] == {
        "engine": "duckdb", "lateness": ["2h"], "paths": ["one.jsonl", "two.jsonl"], "batch_size": "7"
    }  # fmt: skip
    assert found["stream"] == {"engine": "duckdb", "lateness": ["1h"]}
    assert found["subscribe"] == {"engine": "duckdb", "add": True} and found["list"] == {}


def test_a_setting_for_all_is_for_the_commands_that_take_it(files, tmp_path):
    path = tmp_path / "mmqjp.toml"
    path.write_text('feeds = "raw"\nengine = "duckdb"')
    found = configured(main, path)
    assert found["run"]["feeds"] == found["stream"]["feeds"] == "raw" and "lists" not in found["fetch"]
    assert call(*files).exit_code == 0
    path.write_text('[run]\nfeeds = "item"\n[fetch]\nlists = ["list.opml"]\nwatch = true')
    found = configured(main, path)
    assert found["fetch"] == {"lists": ["list.opml"], "once": False} and "feeds" not in found["stream"]
    assert found["run"] == {"feeds": "item"}


def test_a_group_has_a_table_with_tables(tmp_path):
    path = tmp_path / "mmqjp.toml"
    path.write_text('[feeds]\nstate = "crawl/"\n[feeds.export]\noutput = "feeds.opml"\n[feeds.list]\nstate = "other/"')
    found = configured(main, path)
    assert found["feeds"]["list"] == {"state": "other/"} and found["feeds"]["retry"] == {"state": "crawl/"}
    assert found["feeds"]["export"] == {"state": "crawl/", "output": "feeds.opml"} and found["run"] == {}
    path.write_text('[feeds.list]\noutput = "x"')
    with pytest.raises(
        click.UsageError, match=r'unknown setting "feeds\.list\.output"; the known ones are "feeds\.list\.debug"'
    ):
        configured(main, path)


def options_of(group: click.Group, names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, bool]]:
    """All options of all commands: the command, the option's name, and whether it takes a value."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from options_of(command, (*names, name))
        for option in command.params if not isinstance(command, click.Group) else ():
            if isinstance(option, click.Option):
                for text in (*option.opts, *option.secondary_opts):
                    yield (*names, name), text.removeprefix("--"), not option.is_flag


def command_of(names: tuple[str, ...]) -> click.Command:
    command: click.Command = main
    for name in names:
        assert isinstance(command, click.Group)
        command = command.commands[name]
    return command


OPTIONS: dict[tuple[str, ...], list[tuple[str, bool]]] = {}
for names, key, valued in options_of(main):
    if names[0] != "sinks":  # below `sinks` a configuration has sinks, not options of commands
        OPTIONS.setdefault(names, []).append((key, valued))

VALUES = ["2h", "7", "spark", "basic", "cse", "driver", "raw", "ignore", "json", "stories.xml", "T=1h", "a=b"]


@pytest.mark.parametrize("names", OPTIONS, ids=" ".join)
def test_each_option_of_each_command_stands_in_a_configuration(tmp_path, names):
    path, command = tmp_path / "mmqjp.toml", command_of(names)
    context = click.Context(command)
    path.touch()
    for key, valued in OPTIONS[names]:
        (option,) = (o for o in command.params if f"--{key}" in (*o.opts, *o.secondary_opts))
        agreed = 0
        for value in [*VALUES, str(path), str(tmp_path)] if valued else [None]:
            arguments = [f"--{key}"] if value is None else [f"--{key}", value]
            given, _, _ = command.make_parser(context).parse_args(args=[*arguments])
            try:
                expected = option.type_cast_value(context, given[option.name])
            except click.BadParameter:
                continue
            written = "true" if value is None else f'["{value}"]' if option.multiple else f'"{value}"'
            path.write_text(f"[{'.'.join(names)}]\n{key} = {written}")
            found = configured(main, path)
            for name in names:
                found = found[name]
            assert option.type_cast_value(context, found[option.name]) == expected, key
            agreed += 1
        assert agreed, key


def test_the_configuration_is_chosen_on_the_command_line_or_in_the_environment(files, tmp_path, monkeypatch):
    # `files` gives queries and documents; how they are processed is configured.
    chosen = tmp_path / "chosen.toml"
    chosen.write_text('[run]\nengine = "duckdb"\nlateness = "soon"')
    (tmp_path / "mmqjp.toml").write_text('engine = "nonsense"')
    for arguments in (["--config", chosen, *files], files):
        result = call(*arguments)
        assert result.exit_code == 2 and "soon" in result.stderr, result.stderr
        monkeypatch.setenv("MMQJP_CONFIG", str(chosen))
    chosen.write_text('[run]\nengine = "duckdb"')
    assert call(*files).exit_code == 0
    assert "none.toml cannot be read" in call("--config", tmp_path / "none.toml", *files).stderr


def test_sinks_and_secrets_stand_beside_options(files, tmp_path):
    (tmp_path / "mmqjp.toml").write_text('engine = "duckdb"\n' + SINKS)
    assert configured(main, None)["run"]["engine"] == "duckdb"
    found = sinks_of(None)
    assert sorted(found.sinks) == ["alerts", "list"] and found.secrets == {"hook": FileSecret(Path("hook.key"))}
    assert found.sinks["alerts"].file == "mmqjp.toml"


def test_an_earlier_file_takes_precedence_for_a_sink_too(files, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "home" / "mmqjp").mkdir(parents=True)
    (tmp_path / "home" / "mmqjp" / "mmqjp.toml").write_text(SINKS.replace("alerts", "more").replace("hook.key", "b"))
    (tmp_path / "mmqjp.toml").write_text(SINKS)
    found = sinks_of(None)
    assert sorted(found.sinks) == ["alerts", "list", "more"]
    assert found.sinks["list"].file == "mmqjp.toml" and found.secrets == {"hook": FileSecret(Path("hook.key"))}
