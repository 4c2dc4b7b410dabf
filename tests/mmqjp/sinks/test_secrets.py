"""Secrets: read from files and the environment, made in a state, and never shown."""

import base64
import os
import stat
import tomllib
import traceback
from pathlib import Path

import pytest

from mmqjp.sinks.secrets import (
    BadSink,
    EnvSecret,
    FileSecret,
    SecretError,
    SecretName,
    Secrets,
    make_secret,
    read_sources,
)

VALUE = "hunter2-Correct/Horse"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "hook.key"
    path.write_text(f"{VALUE}\n")
    path.chmod(0o600)
    return path


def sources(toml: str, base: Path = Path("/etc/mmqjp")):
    return read_sources(tomllib.loads(toml), base, file="x.toml")


def refusal(secrets: Secrets, name: str = "hook") -> str:
    with pytest.raises(SecretError) as caught:
        secrets.value(name)
    shown = "".join(traceback.format_exception(caught.value))
    assert VALUE not in shown
    return str(caught.value)


def test_secrets_are_in_files_beside_the_configuration_or_in_the_environment(path, monkeypatch):
    found = sources('a = { file = "hook.key" }\nb = { file = "/x/y" }\nc = { env = "HOOK" }', path.parent)
    assert found == {"a": FileSecret(path), "b": FileSecret(Path("/x/y")), "c": EnvSecret("HOOK")}
    monkeypatch.setenv("HOOK", f" {VALUE}x ")
    secrets = Secrets(found)
    assert secrets.value("a") == secrets.value(SecretName("a")) == VALUE and secrets.value("c") == VALUE + "x"
    assert secrets.names() == ["a", "b", "c"] and secrets.variables() == {"HOOK"}


@pytest.mark.parametrize(
    "given", [f'"{VALUE}"', f'{{ value = "{VALUE}" }}', f'["{VALUE}"]', "{}", f'{{ file = "a", {VALUE[:7]} = 1 }}',
              '{ file = "a", env = "b" }', '{ file = "" }', f'{{ inline = {{ file = "{VALUE}" }} }}']
)  # fmt: skip
def test_a_secret_that_is_written_down_is_refused_and_not_shown(given):
    with pytest.raises(BadSink) as caught:
        sources(f"hook = {given}")
    assert str(caught.value).startswith("the configuration x.toml: secrets.hook: write { file")
    assert VALUE[:7] not in "".join(traceback.format_exception(caught.value))


def test_names_of_secrets():
    with pytest.raises(BadSink, match=r"^the configuration x.toml: secrets: a secret's name is made of") as caught:
        sources(f'"{VALUE}" = {{ env = "X" }}')
    assert VALUE not in str(caught.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o777])
def test_a_file_that_others_can_read_is_refused(path, mode):
    path.chmod(mode)
    assert refusal(Secrets({"hook": FileSecret(path)})) == (
        f"the secret hook is refused: others can read {path}; chmod 600 {path}"
    )


def test_secrets_that_cannot_be_read(path, monkeypatch, tmp_path):
    secrets = Secrets({"hook": FileSecret(path), "env": EnvSecret("MISSING")})
    for content, cause in ((b" \n", "is empty"), (b"a\nb", "several lines"), (b"\xff", "not UTF-8"),
                           (b"a" * 65_537, "more than 65,536 bytes")):  # fmt: skip
        path.write_bytes(content)
        assert cause in refusal(secrets)
    path.unlink()
    assert "No such file" in refusal(secrets)
    path.mkdir()
    assert "Is a directory" in refusal(secrets)
    path.rmdir()
    os.mkfifo(path, 0o600)
    assert "is no file" in refusal(secrets)
    monkeypatch.delenv("MISSING", raising=False)
    assert refusal(secrets, "env") == "the secret env is not there: the environment has no MISSING"


def test_an_unknown_name_is_not_shown_since_it_may_be_the_secret(path):
    assert refusal(Secrets({"hook": FileSecret(path)}), VALUE).startswith(
        "a secret is named that is not known (known: hook)"
    )


def test_a_secret_is_made_in_the_state_for_its_owner_alone(tmp_path):
    state = tmp_path / "state"
    value = make_secret(state, "hook")
    assert len(base64.b64decode(value.removeprefix("whsec_"))) == 32 and value.startswith("whsec_")
    made = state / "secrets" / "hook"
    assert stat.S_IMODE(made.stat().st_mode) == 0o600 and stat.S_IMODE(made.parent.stat().st_mode) == 0o700
    assert Secrets({}, state).value("hook") == value
    assert make_secret(state, "other") != value
    assert Secrets({}, state).names() == ["hook", "other"]
    with pytest.raises(SecretError, match="the secret hook exists") as caught:
        make_secret(state, "hook")
    assert value not in str(caught.value)
    with pytest.raises(BadSink):
        make_secret(state, "../x")


def test_the_token_of_the_page_is_no_secret_of_sinks(tmp_path):
    make_secret(tmp_path, "hook")
    for name in ("token", ".links"):
        (tmp_path / "secrets" / name).write_text(VALUE)
        with pytest.raises(BadSink):
            make_secret(tmp_path, name)
    assert Secrets({}, tmp_path).names() == ["hook"]
    assert "is not known (known: hook)" in refusal(Secrets({}, tmp_path), "token")


def test_the_configuration_comes_before_what_was_made(path, tmp_path):
    make_secret(tmp_path / "state", "hook")
    assert Secrets({"hook": FileSecret(path)}, tmp_path / "state").value("hook") == VALUE


def test_nothing_shows_a_secret(path):
    secrets = Secrets({"hook": FileSecret(path)})
    secrets.value("hook")
    assert VALUE not in repr(secrets) and VALUE not in str(secrets) and repr(secrets) == "Secrets(hook)"


def test_of_a_secret_address_only_the_host_is_shown(path):
    address = "https://user:pass@hooks.example.org:8443/services/T0/B0/abcdef?x=1"
    path.write_text(address)
    secrets, name = Secrets({"slack": FileSecret(path)}), SecretName("slack")
    assert secrets.address(name) == address and secrets.shown_address(name) == "hooks.example.org"
    assert secrets.address("http://x/") == secrets.shown_address("http://x/") == "http://x/"
    path.write_text(VALUE)
    assert secrets.shown_address(name) == "secret slack"
    with pytest.raises(SecretError, match=r"^the secret slack is no http or https address$"):
        secrets.address(name)
    path.unlink()
    assert secrets.shown_address(name) == "secret slack"


def test_texts_of_others_lose_the_secrets_that_they_repeat(path, tmp_path):
    address = tmp_path / "address"
    address.write_text("https://hooks.example.org/T0/abcdef?x=1")
    address.chmod(0o600)
    secrets = Secrets({"hook": FileSecret(path), "slack": FileSecret(address), "gone": FileSecret(tmp_path / "no")})
    encoded = base64.b64encode(VALUE.encode()).decode()
    told = secrets.redacted(f"bad {VALUE}, {encoded}; POST /T0/abcdef?x=1 at hooks.example.org")
    assert told == "bad [secret hook], [secret hook]; POST [secret slack] at hooks.example.org"


def test_texts_of_others_lose_the_parts_of_an_address_that_are_secret_alone(path):
    path.write_text(
        "https://ann:p%40ssword@hooks.example.org/services/T0/0123456789abcdefXYZ?token=key%2Fof-sixteen-and"
    )
    secrets = Secrets({"slack": FileSecret(path)})
    login = base64.b64encode(b"ann:p@ssword").decode()
    told = secrets.redacted(f"Basic {login} p@ssword; no 0123456789abcdefXYZ of T0 in services; key/of-sixteen-and")
    assert told == "Basic [secret slack] [secret slack]; no [secret slack] of T0 in services; [secret slack]"
