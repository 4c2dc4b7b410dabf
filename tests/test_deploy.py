"""The files in deploy/: what they start works. So does a page behind nginx, with TLS and below a path."""

import json
import re
import shutil
import ssl
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from configparser import RawConfigParser
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

import httpx
import lxml.html
import pytest

from mmqjp.cli import main
from mmqjp.commands.configuration import configured
from mmqjp.commands.serve import serve
from tests.support.feed_server import closed_port
from tests.support.places import ROOT
from tests.support.served import Served, served
from tests.test_house import PACKAGES, PROJECT

pytestmark = pytest.mark.xdist_group("deploy")  # one service behind nginx serves all tests

DEPLOY = ROOT / "deploy"
INCLUDED = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
PREFIX = "/stories"
QUERIES = "FROM S//a->x[./t->t] JOIN UNORDERED {t = u AND x != y, 1 d} S//a->y[./t->u] PUBLISH pairs"
MOST_PAGES = 8  # maximum number of pages with one path that are read, which differ in their query strings
LARGE = 3 << 20  # bytes of a document, more than nginx takes without being told


@contextmanager
def nginx(directory: Path, port: int, upstream: int) -> Iterator[ssl.SSLContext]:
    """Runs nginx with the file of deploy/ at a port, until the end of the block."""
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-batch"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*made, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    site = (DEPLOY / "nginx.conf").read_text("utf-8")
    ours = {
        "127.0.0.1:8765": f"127.0.0.1:{upstream}", "listen 80;": f"listen 127.0.0.1:{closed_port()};",
        "listen 443 ": f"listen 127.0.0.1:{port} ", "server_name example.org": "server_name localhost",
        "/etc/letsencrypt/live/example.org/fullchain.pem": f"{certificate}",
        "/etc/letsencrypt/live/example.org/privkey.pem": f"{key}",
    }  # fmt: skip
    for theirs, own in ours.items():
        assert theirs in site
        site = site.replace(theirs, own)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {directory / kind};\n" for kind in kinds)
    whole = f"events {{}}\nhttp {{\naccess_log off;\n{paths}{site}}}\n"
    (directory / "nginx.conf").write_text(
        f"daemon off;\nmaster_process off;\npid {directory / 'pid'};\nerror_log {directory / 'log'};\n{whole}"
    )
    command = ["nginx", "-c", f"{directory}/nginx.conf", "-p", f"{directory}", "-e", f"{directory}/log"]
    subprocess.run([*command, "-t"], check=True, capture_output=True)
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield ssl.create_default_context(cafile=certificate)
        finally:
            process.terminate()


def instructions(name: str) -> list[str]:
    text = re.sub(r"\\\n\s*", "", (DEPLOY / name).read_text("utf-8"))
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def test_the_image_copies_what_exists_and_runs_as_somebody_without_rights():
    found = instructions("Dockerfile")
    copied = [
        part for line in found if line.startswith("COPY ") and "--from" not in line for part in line.split()[1:-1]
    ]
    assert all((ROOT / part).exists() for part in copied)
    assert {part.rstrip("/") for part in copied} >= {*PACKAGES, *INCLUDED, "pyproject.toml", "README.md", "LICENSE"}
    last = found[max(number for number, line in enumerate(found) if line.startswith("FROM ")) :]
    assert last[0].endswith("-slim") and not any("pip" in line or "apt" in line for line in last)
    said = dict(line.split(" ", 1) for line in last)
    assert said["USER"].split(":") == ["10001", "10001"] and said["STOPSIGNAL"] == "SIGTERM"
    assert "/healthz" in said["HEALTHCHECK"] and said["VOLUME"] == "/data"
    for name in ("ENTRYPOINT", "CMD"):
        assert all(isinstance(part, str) for part in json.loads(said[name])), "no shell that would keep the signal"
    check_serve(json.loads(said["CMD"])[1:])


def check_serve(arguments: list[str]) -> None:
    """Parses the arguments of `mmqjp serve`. Raises UsageError."""
    serve.make_context("serve", [*arguments])


def test_the_services_of_compose_have_a_read_only_root():
    yaml = pytest.importorskip("yaml")
    content = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    service = content["services"]["mmqjp"]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"] and service["healthcheck"]["test"]
    assert service["volumes"] == ["state:/data"] and "state" in content["volumes"]
    assert (DEPLOY / content["configs"]["mmqjp"]["file"]).is_file()
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    config, command, *options = service["command"]
    assert config.startswith("--config=") and command == "serve"
    check_serve(options)


def test_the_configuration_has_options_of_serve():
    found = configured(main, DEPLOY / "mmqjp.toml")["serve"]
    serve.make_context("serve", [], default_map=found)


def test_the_unit_is_verified_and_leaves_little_exposed(tmp_path):
    text = (DEPLOY / "mmqjp.service").read_text("utf-8")
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keeps the case of keys
    unit.read_string(text)
    start = unit["Service"]["ExecStart"].split()
    assert start == ["/opt/mmqjp/bin/mmqjp", "--config", "/etc/mmqjp/mmqjp.toml", "serve"]
    assert unit["Service"]["User"] == "mmqjp" and unit["Service"]["ProtectSystem"] == "strict"
    state = configured(main, DEPLOY / "mmqjp.toml")["serve"]["state"]
    assert Path(state).parent == Path("/var/lib", unit["Service"]["StateDirectory"])
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd is not installed")
    (tmp_path / "mmqjp.service").write_text(text.replace(start[0], sys.executable))
    for task in (["verify"], ["security", "--offline=true", "--threshold=25", "--no-pager"]):
        done = subprocess.run(["systemd-analyze", *task, tmp_path / "mmqjp.service"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout


class Proxied(NamedTuple):
    """A service behind nginx, a browser that is logged in there, and one that is not."""

    service: Served
    client: httpx.Client
    stranger: httpx.Client

    def push(self, kind: str, body: bytes) -> httpx.Response:
        token = (self.service.state / "secrets" / "push-token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        return self.stranger.post(f"{PREFIX}/api/v1/documents", content=body, headers=headers)


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    if not shutil.which("nginx") or not shutil.which("openssl"):
        pytest.skip("nginx or openssl is not installed")
    directory = tmp_path_factory.mktemp("nginx")
    queries, port, behind = directory / "queries.xscl", closed_port(), closed_port()
    queries.write_text(QUERIES)
    options = ("--address", f"127.0.0.1:{behind}", "--public-url", f"https://localhost:{port}{PREFIX}")
    with ExitStack() as stack:
        context = stack.enter_context(nginx(directory, port, behind))
        running = stack.enter_context(served(directory / "state", *options, "--queries", queries))
        client, stranger = (
            stack.enter_context(httpx.Client(base_url=f"https://localhost:{port}", verify=context, timeout=60))
            for _ in range(2)
        )
        found = client.get(running.link)
        assert (found.status_code, found.headers["location"]) == (303, f"{PREFIX}/")
        cookie = found.headers["set-cookie"]
        assert all(part in cookie for part in ("Secure", "HttpOnly", f"Path={PREFIX}", "SameSite=lax"))
        client.headers["Sec-Fetch-Site"] = "same-origin"
        yield Proxied(running, client, stranger)


def page_of(answer: httpx.Response) -> lxml.html.HtmlElement:
    page = lxml.html.document_fromstring(answer.content)
    assert isinstance(page, lxml.html.HtmlElement)
    return page


def documents(*ids: str) -> bytes:
    return "".join(json.dumps({"id": id, "xml": f"<a><t>same</t><n>{id}</n></a>"}) + "\n" for id in ids).encode()


def test_every_address_of_every_page_is_below_the_path(proxied):
    service, client, _ = proxied
    assert proxied.push("application/x-ndjson", documents("d1", "d2")).json()["accepted"] == 2
    waiting, seen, of_path = [f"{PREFIX}/"], dict[str, int](), Counter[str]()
    while waiting:
        address = waiting.pop(0)
        if address in seen or of_path[urlsplit(address).path] == MOST_PAGES:
            continue
        of_path[urlsplit(address).path] += 1
        found = client.get(address)
        seen[address] = found.status_code
        kind = found.headers.get("content-type", "")
        if kind.startswith("text/javascript") and "codemirror" not in address:
            assert not re.search(r"""["'`]/(?!["'`/ ])\w""", found.text), f"{address} has an address of the root"
        if not kind.startswith("text/html"):
            continue
        for _, attribute, target, _ in page_of(found).iterlinks():
            whole = urlsplit(urljoin(f"{client.base_url}{address}", target))
            if target.startswith("https://") and whole.hostname not in ("localhost", "127.0.0.1"):
                continue
            assert whole.netloc == urlsplit(service.url).netloc, (address, target)
            assert whole.path.startswith(f"{PREFIX}/"), (address, target)
            if attribute in ("href", "src"):
                waiting.append(whole._replace(scheme="", netloc="", fragment="").geturl())
    assert set(seen.values()) == {200}, {address: status for address, status in seen.items() if status != 200}
    paths = {address.removeprefix(PREFIX) for address in seen}
    assert {"/", "/live", "/feeds", "/sinks", "/engine", "/sql", "/sharing", "/new", "/q/pairs"} <= paths
    assert any(path.endswith("live.js") for path in paths) and any(path.startswith("/o/") for path in paths)
    assert client.get(f"{PREFIX}/api/v1/openapi.json").json()["servers"] == [{"url": PREFIX}]


def test_logging_in_forms_and_redirections_stay_below_the_path(proxied):
    service, client, stranger = proxied
    found = stranger.get(f"{PREFIX}/q/pairs?after=1")
    assert found.headers["location"] == f"{PREFIX}/login?next=%2Fq%2Fpairs%3Fafter%3D1"
    (form,) = page_of(stranger.get(found.headers["location"])).forms
    token = (service.state / "secrets" / "token").read_text().strip()
    origin = {"Origin": str(client.base_url).rstrip("/")}  # all that browsers without Sec-Fetch-Site tell
    found = stranger.post(form.action, data={**form.fields, "token": token}, headers=origin)
    assert (found.status_code, found.headers["location"]) == (303, f"{PREFIX}/q/pairs?after=1")
    paused = stranger.post(f"{PREFIX}/q/pairs/pause", headers=origin)
    assert paused.headers["location"].startswith(f"{PREFIX}/?told=")
    assert "pairs: paused" in stranger.get(paused.headers["location"]).text
    assert stranger.post(f"{PREFIX}/q/pairs/resume", headers=origin).status_code == 303
    assert stranger.post(f"{PREFIX}/q/pairs/pause", headers={"Origin": "https://evil.example"}).status_code == 403
    assert stranger.post(f"{PREFIX}/logout", headers=origin).headers["location"] == f"{PREFIX}/login"
    assert stranger.get(f"{PREFIX}/").status_code == 303
    assert client.get(f"{PREFIX}/feeds/").headers["location"] == f"{PREFIX}/feeds"
    assert client.get(PREFIX).headers["location"].endswith(f"{PREFIX}/")
    assert client.get(f"{PREFIX}/", headers={"Host": "evil.example"}).status_code == 421
    assert stranger.get(f"{PREFIX}/healthz").text == "ok\n"


def test_outputs_come_through_nginx_at_once_and_documents_of_any_size(proxied):
    with proxied.client.stream("GET", f"{PREFIX}/events") as events:
        lines = events.iter_lines()
        assert next(lines).startswith("retry:")
        assert proxied.push("application/x-ndjson", documents("e1", "e2")).json()["accepted"] == 2
        # The stream stays open: an output that nginx kept back would never be read here.
        assert any(line.startswith("event: output") for line in lines)
    large = b"<b>" + b"x" * LARGE + b"</b>"
    assert proxied.push("application/xml", large).json()["accepted"] == 1
    assert proxied.push("application/xml", b"<b>" + b"x" * (17 << 20) + b"</b>").status_code == 413


def test_feeds_of_matches_have_the_public_address(proxied):
    service, client, stranger = proxied
    address = client.get(f"{PREFIX}/api/v1/queries/pairs/feed").json()["url"]
    assert address.startswith(f"{service.url}/f/")
    found = stranger.get(address)
    assert found.status_code == 200 and f'href="{address}"' in found.text
