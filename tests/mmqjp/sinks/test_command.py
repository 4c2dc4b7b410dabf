"""The kind `command`: what programs get, and what comes of how they end."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from mmqjp.sinks.definition import CommandOptions
from mmqjp.sinks.secrets import EnvSecret, Secrets
from mmqjp.sinks.sink import DeliveryResult, Message, payload
from mmqjp.sinks.webhook import CommandReceiver
from tests.support.messages import match, message

MESSAGE = message(match(1), match(2))


def sent(
    *command: str, message: Message = MESSAGE, secrets: Secrets | None = None, seconds: float = 60.0
) -> DeliveryResult:
    """What comes of one message."""

    async def run() -> DeliveryResult:
        receiver = CommandReceiver(CommandOptions(command), secrets or Secrets(), seconds)
        try:
            return await receiver.send(message)
        finally:
            await receiver.close()

    return asyncio.run(run())


def python(program: str, *arguments: object) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", program, *map(str, arguments))


def has_ended(pid: int) -> bool:
    """Waits until a process has ended, also one that its parent does not know of yet."""
    while True:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True


def test_the_program_gets_the_json_and_no_shell_reads_its_arguments(tmp_path):
    path = tmp_path / "got"
    program = "import sys; open(sys.argv[1], 'wb').write(sys.argv[2].encode() + b'\\n' + sys.stdin.buffer.read())"
    assert sent(*python(program, path, "$(id) ; `id` *")) == DeliveryResult("acknowledged")
    assert path.read_bytes() == b"$(id) ; `id` *\n" + payload(MESSAGE)


def test_a_program_need_not_read_what_it_gets():
    large = message(*(match(seq, "t" * 300) for seq in range(1_000)))
    assert len(payload(large)) > 300_000
    assert sent("true", message=large) == DeliveryResult("acknowledged")


@pytest.mark.parametrize(
    ("program", "kind", "reason"),
    [
        ("raise SystemExit(1)", "refused", "ended with status 1"),
        ("import sys; sys.exit('no such list\\nreally')", "refused", "ended with status 1: no such list really"),
        ("raise SystemExit(75)", "down", "ended with status 75"),
        ("import os; os.kill(os.getpid(), 9)", "down", "was killed by signal 9"),
        ("import sys; sys.stderr.buffer.write(b'\\xff\\x1b[2J' * 1000000); sys.exit(3)", "refused", "status 3: "),
    ],
)
def test_how_a_program_ends_decides(program, kind, reason):
    verdict = sent(*python(program))
    assert verdict.kind == kind and reason in verdict.reason and sys.executable in verdict.reason
    assert len(verdict.reason) < 1_200 and verdict.reason.isprintable()


@pytest.mark.parametrize("command", ["/nowhere/to/be/found", "/", "/etc/hostname"])
def test_a_program_that_cannot_be_started(command):
    verdict = sent(command)
    assert verdict.kind == "down" and verdict.reason.startswith(f"{command} cannot be started: ")


CHILD = "import subprocess, sys; c = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)'])"


def stopped(tmp_path: Path, seconds: float, *, cancelled: bool) -> DeliveryResult | None:
    """What comes of a program that never ends. It and its child must have ended by then."""
    path = tmp_path / "pids"
    os.mkfifo(path)
    program = f"import os; {CHILD}; open(sys.argv[1], 'w').write(f'{{os.getpid()}} {{c.pid}}'); c.wait()"

    async def run() -> tuple[list[int], DeliveryResult | None]:
        receiver = CommandReceiver(CommandOptions(python(program, path)), Secrets(), seconds)
        sending = asyncio.create_task(receiver.send(MESSAGE))
        pids = list(map(int, (await asyncio.to_thread(path.read_text)).split()))
        if not cancelled:
            return pids, await sending
        sending.cancel()  # as the deliverer does when the service stops
        with pytest.raises(asyncio.CancelledError):
            await sending
        return pids, None

    pids, verdict = asyncio.run(run())
    assert len(pids) == 2 and all(map(has_ended, pids))
    return verdict


def test_a_program_that_takes_too_long_is_killed_with_its_children(tmp_path):
    verdict = stopped(tmp_path, 3, cancelled=False)
    assert verdict == DeliveryResult("down", f"{sys.executable} took more than 3 s and was killed")


def test_a_program_is_killed_when_the_service_stops(tmp_path):
    assert stopped(tmp_path, 3600, cancelled=True) is None


def test_what_a_program_leaves_running_is_killed_and_does_not_hold_us_up(tmp_path):
    path = tmp_path / "pid"
    assert sent(*python(f"{CHILD}; open(sys.argv[1], 'w').write(str(c.pid))", path)) == DeliveryResult("acknowledged")
    assert has_ended(int(path.read_text()))


def test_a_program_has_no_secrets_in_its_environment_and_cannot_tell_one(tmp_path, monkeypatch):
    monkeypatch.setenv("HOOK", "hunter2")
    monkeypatch.setenv("OTHER", "seen")
    program = "import os, sys; sys.exit(repr((os.environ.get('HOOK'), os.environ.get('OTHER'), 'hunter' + '2')))"
    verdict = sent(*python(program), secrets=Secrets({"hook": EnvSecret("HOOK")}))
    assert verdict.reason.endswith("ended with status 1: (None, 'seen', '[secret hook]')")
    assert os.environ["HOOK"] == "hunter2"
