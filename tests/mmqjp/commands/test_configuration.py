"""Configuration files and the environment: what they may say, and what the command line says before them."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mmqjp.cli import main
from mmqjp.commands import formats as opening
from mmqjp.commands import run as run_module
from mmqjp.commands.console import Failure
from mmqjp.commands.options import configured
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('lateness = { T = "soon" }', "has lateness = 'T=soon': 'soon' is not a duration"),
        ("lateness = { T = [1] }", "is not a duration"),
        ('lateness = ["1s", "2s"]', "a stream is named twice"),
        ('engine = { T = "1s" }', "write a string"),
    ],
)
def test_a_configured_lateness_that_is_none(files, tmp_path, text, message):
    (tmp_path / "mmqjp.toml").write_text(text)
    result = call(*files, "--engine", "duckdb")
    assert result.exit_code == 2 and message in result.stderr and len(result.stderr.splitlines()) <= 3


@pytest.fixture
def engine(files, monkeypatch):
    """Which engine a run would use, given further options; the engine itself does not start."""
    started = []

    def start(engine, *rest, **more):
        started.append(engine)
        raise Failure("not started")

    monkeypatch.setattr(run_module, "open_engine", start)

    def chosen(*options):
        assert call(*files, *options).stderr == "mmqjp: error: not started\n"
        return started[-1]

    return chosen


def test_auto_is_the_default(engine, monkeypatch):
    monkeypatch.setattr(opening, "choose_engine", lambda name, *given: EngineChoice(f"chosen for {name}"))
    assert engine() == "chosen for auto"


def test_configuration_in_the_current_directory(engine, tmp_path):
    (tmp_path / "mmqjp.toml").write_text('engine = "duckdb"')
    assert engine() == "duckdb"
    assert engine("--engine", "spark") == "spark"


def test_configuration_of_the_user(engine, tmp_path):
    (tmp_path / "config" / "mmqjp").mkdir(parents=True)
    (tmp_path / "config" / "mmqjp" / "mmqjp.toml").write_text('engine = "duckdb"')
    assert engine() == "duckdb"
    (tmp_path / "mmqjp.toml").write_text("# says nothing of engines")
    assert engine() == "duckdb"
    (tmp_path / "mmqjp.toml").write_text('engine = "spark"')
    assert engine() == "spark"


def test_environment_goes_before_configuration(engine, tmp_path, monkeypatch):
    (tmp_path / "mmqjp.toml").write_text('engine = "spark"')
    monkeypatch.setenv("MMQJP_ENGINE", "duckdb")
    assert engine() == "duckdb"
    assert engine("--engine", "spark") == "spark"


def test_environment_with_an_unknown_engine(files, monkeypatch):
    monkeypatch.setenv("MMQJP_ENGINE", "mysql")
    result = call(*files)
    assert result.exit_code == 2
    assert "MMQJP_ENGINE" in result.stderr or "'--engine'" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"engine = duckdb", "cannot be read"),
        (b"\xff", "cannot be read"),
        (b'engine = "mysql"', "has engine = 'mysql': 'mysql' is not one of"),
        (b"engine = 1", "has engine = 1"),
        (b'motor = "duckdb"', 'unknown setting "motor"; the known ones are "'),
        (b'enigne = "duckdb"', 'unknown setting "enigne"; did you mean "engine"?'),
        (b"[stream]\nkep = '1d'", 'unknown setting "stream.kep"; did you mean "stream.keep"?'),
        (b"[strem]\nkeep = '1d'", 'unknown setting "strem"; did you mean "stream"?'),
    ],
)
def test_a_bad_configuration_is_named(files, tmp_path, text, message):
    (tmp_path / "mmqjp.toml").write_bytes(text)
    result = call(*files)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "mmqjp.toml" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_no_configuration_at_all(files):
    assert configured(main, None) == {}


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
    path.write_text('feeds = "entries"')
    assert "has feeds = 'entries': 'entries' is not one of" in call(*files).stderr


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


OPTIONS = [one for one in options_of(main) if one[0][0] != "sinks"]
"""Below `sinks` a configuration has sinks, not options of commands."""

VALUES = ["2h", "7", "spark", "basic", "cse", "driver", "raw", "ignore", "json", "stories.xml", "T=1h", "a=b"]


@pytest.mark.parametrize(("names", "key", "valued"), OPTIONS, ids=str)
def test_each_option_of_each_command_stands_in_a_configuration(tmp_path, names, key, valued):
    """What a configuration says is what the command line would."""
    path, command = tmp_path / "mmqjp.toml", command_of(names)
    (option,) = (o for o in command.params if f"--{key}" in (*o.opts, *o.secondary_opts))
    context = click.Context(command)
    path.touch()
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
        assert option.type_cast_value(context, found[option.name]) == expected
        agreed += 1
    assert agreed


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[run]\ncheckpoint = 'x'", 'has an unknown setting "run.checkpoint"; the known ones are "run.allow-private"'),
        ("[walk]\nengine = 'duckdb'", 'has an unknown setting "walk"'),
        ("[stream]\nsource = 'drops'", "has stream.source = 'drops'; write a list of strings"),
        ("[stream]\nstate = ['drops']", "has stream.state = ['drops']; write a string, a number, or true or false"),
        ("add = 'yes'", "has add = 'yes'; write true or false"),
        ("[stream]\nbatch-size = 0", "has stream.batch-size = 0: 0 is not in the range x>=1."),
    ],
)
def test_what_cannot_be_configured_is_said(files, tmp_path, text, message):
    (tmp_path / "mmqjp.toml").write_text(text)
    result = call(*files)
    assert result.exit_code == 2 and message in result.stderr and len(result.stderr.splitlines()) == 1


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SINKS.replace("url =", "ulr ="), "mmqjp.toml: sinks.alerts.url: this key is missing"),
        (SINKS.replace('{ file = "hook.key" }', '"s3cr3t"'), "mmqjp.toml: secrets.hook: write { file"),
        ('sinks = "a"', "the configuration mmqjp.toml: sinks: write tables"),
        (SINKS.replace("[sinks.", "[sink."), 'the configuration mmqjp.toml has an unknown setting "sink"'),
    ],
)
def test_mistakes_in_sinks_are_usage_errors_of_every_command(files, tmp_path, text, message):
    (tmp_path / "mmqjp.toml").write_text(text)
    result = call("status", "--state", "state")
    assert result.exit_code == 2 and message in result.stderr and "s3cr3t" not in result.stderr
    assert len(result.stderr.splitlines()) == 1
