import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from lxml import etree

from bench import peer_protocol, peers
from bench.workload import HOUR, items
from feeds.documents import Document

SMALL = peers.PeersCase(3, items=600, batch=300, last=100, rounds=1)
ROWS: set[peer_protocol.WishRow] = {("q1", 3, 8), ("q2", 3, 9), (peers.ADDED, 2, 7), (peers.ADDED, 3, 9)}


def installed():
    """The peers with this interpreter. Spark is always there."""
    marks = {"spark": [pytest.mark.spark, pytest.mark.soak]}
    return [
        pytest.param(name, marks=marks.get(name, []))
        for name, system in peers.SYSTEMS.items()
        if name != "mmqjp" and not system.lacking(sys.executable)
    ]


@pytest.mark.parametrize("queries", [1, pytest.param(30, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", installed())
def test_a_peer_finds_our_rows(name, queries, monkeypatch):
    monkeypatch.setattr(peers, "EACH", 0)
    case = replace(SMALL, queries=queries)
    ours, theirs = peers.measure_peers(case, dict.fromkeys(("mmqjp", name), sys.executable))
    assert ours.rows > 0 and ours.engine == "mmqjp" and theirs.engine == name
    for line in (ours, theirs):
        assert {"start", "items_a_second", "resident_mib", "added"} <= line.details.keys()


@pytest.mark.soak
def test_our_rows_are_those_of_a_program_without_joins(tmp_path):
    work = peers.prepare_peers(replace(SMALL, queries=30), tmp_path)
    found = peers.run_peer(peers.SYSTEMS["mmqjp"], work, tmp_path).rows
    assert work.added is not None
    asked = [*work.wishes, work.added]
    assert found == set(by_hand(list(items(SMALL.items + SMALL.last)), asked))
    assert any(row[0] == peers.ADDED and row[2] >= SMALL.items for row in found)


def by_hand(documents, asked):
    """The rows, by comparing each two items."""
    fields = [described(document) for document in documents]
    met = {"title": ("title", "title"), "author": ("author", "author"), "mention": ("item_url", "href")}
    for right, later in enumerate(fields):
        for left, earlier in enumerate(fields[:right]):
            for wish in asked:
                one, other = met[wish.kind]
                near = 0 < documents[right].t0 - documents[left].t0 <= wish.width
                if near and wish.channel in earlier["channel_url"] and earlier[one] & later[other]:
                    yield wish.name, left, right


def described(document):
    root = etree.fromstring(document.xml_bytes())
    names = ("channel_url", "title", "author", "item_url")
    found = {name: {node.text for node in root.findall(name)} for name in names}
    return {**found, "href": {node.get("href") for node in root.findall("link")}}


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (ROWS - {("q1", 3, 8)}, r"spark and mmqjp find different rows: 1 of 3 are missing, 0 are too many.*'q1', 3, 8"),
        (ROWS | {("q2", 1, 2)}, r"0 of 3 are missing, 1 are too many, such as \('q2', 1, 2\)"),
        (ROWS - {(peers.ADDED, 3, 9)}, "1 of 3 are missing"),
    ],
)
def test_a_wrong_row_is_an_error(found, message, monkeypatch):
    peers.compare_rows(ROWS, ROWS - {(peers.ADDED, 2, 7)}, "spark", 8)  # an earlier row of an added query
    with pytest.raises(peers.OtherRows, match=message):
        peers.compare_rows(ROWS, found, "spark", 8)

    def lying(system, work, batches, python):
        rows = ROWS if system.name == "mmqjp" else found
        return peers.PeerRun(frozenset(rows), peer_protocol.PeerReport(), 0)

    monkeypatch.setattr(peers, "run_peer", lying)
    with pytest.raises(peers.OtherRows, match="pathway and mmqjp find different rows"):
        peers.measure_peers(replace(SMALL, items=8), dict.fromkeys(("mmqjp", "pathway"), sys.executable))


def test_what_is_not_installed_is_left_out_and_said(monkeypatch, capsys):
    monkeypatch.setitem(peers.SYSTEMS, "pathway", replace(peers.SYSTEMS["pathway"], needs="no_such_package"))
    given = {"mmqjp": sys.executable, "pathway": sys.executable, "flink": "/nowhere/python"}
    assert peers.installed_peers(given) == {"mmqjp": sys.executable}
    said = capsys.readouterr().err
    assert f"pathway is left out: no_such_package is not installed for {sys.executable}\n" in said
    assert "flink is left out: /nowhere/python cannot be run: No such file" in said


def test_a_peer_that_fails_or_takes_too_long_is_an_error(tmp_path):
    work = peers.prepare_peers(SMALL, tmp_path)
    with pytest.raises(peers.PeerFailed, match=r"(?s)broken ended with status 1: .*no_such_peer"):
        peers.run_peer(peers.PeerSystem("broken", "no_such_peer", "sys", uses_ours=True), work, tmp_path)
    with pytest.raises(peers.PeerFailed, match="mmqjp ended with more than 0 s"):
        peers.run_peer(peers.SYSTEMS["mmqjp"], work, tmp_path, seconds=0.0)


def test_a_query_that_gets_rows_must_be_found_and_few_are_also_tried_with_a_join_each():
    found = [f"{one.name}, {one.form}" for one in peers.contenders(1, ["mmqjp", "spark"])]
    assert found == ["mmqjp, joined", "spark, joined", "spark, each"]
    assert len(peers.contenders(11, ["mmqjp", "spark"])) == 2
    with pytest.raises(peers.NothingToAdd, match="take more"):
        peers._channel_to_add(list(items(5)), 4)


def test_work_is_read_as_it_was_written_and_shredded_rows_do_not_repeat(tmp_path):
    wish = peer_protocol.Wish("q1", "title", "https://a.example/", HOUR)
    work = peer_protocol.PeerWork([wish, replace(wish, kind="mention")], {"title": 96}, 7, ["b0"], "each", wish, 1.5)
    work.write(tmp_path)
    assert peer_protocol.read_work(tmp_path) == work and work.kinds == ["title", "mention"]
    xml = "<item><channel_url>c</channel_url><author>x</author><author>x</author><link href='u'/></item>"
    peers.shred_items([Document("item-4", xml, time=9)], 4, tmp_path)
    assert (tmp_path / "authors.csv").read_text("utf-8") == "doc,t,channel,author\n4,9,c,x\n"
    assert (tmp_path / "links.csv").read_text("utf-8") == "doc,t,href\n4,9,u\n"


@pytest.mark.parametrize("header", [True, False])
def test_marks_come_after_the_rows_of_a_batch(tmp_path, header):
    peers.prepare_peers(SMALL, tmp_path)
    watched = peer_protocol.WatchedDirectories(tmp_path / "in", header=header)
    watched.prepare(tmp_path / "batch0000", ["title", "mention"], 0)
    assert watched.publish() == [str(peer_protocol.MARK), str(peer_protocol.MARK + 2)]
    watched.put_wishes("first", peer_protocol.mark_wishes(["title"]))
    lines = (watched.path("items") / "0001.csv").read_text("utf-8").splitlines()
    assert lines[0].startswith("doc,t" if header else "0,")
    numbers = [int(line.split(",")[0]) for line in lines[header:]]
    # A link is the second mark of a mention.
    assert numbers == [*range(SMALL.batch), *(peer_protocol.MARK + n for n in range(3))]
    assert (watched.path("wishes") / "first.csv").read_text("utf-8").endswith("mark-title,title,mark,1000000\n")
    out = tmp_path / "rows"
    growing = peer_protocol.GrowingRows(out)
    out.write_bytes(b"q1,3,8\nmark,9000000000,9000000001\n")
    before = growing.wait("9000000000")
    out.open("ab").write(b"q1,4,8\n")
    assert growing.wait("q1,4") >= before


def test_memory_and_time_are_those_of_all_descendants():
    if not Path("/proc/self/stat").exists():
        pytest.skip("the system does not say")
    text = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        both = peer_protocol.resident_bytes(process.pid)
        alone = int(Path(f"/proc/{process.pid}/statm").read_text("utf-8").split()[1]) * 4096
        assert both > 1.5 * alone > 0
        process.communicate(b"\n")
    assert peer_protocol.resident_bytes(process.pid) == 0
    assert peer_protocol.processor_seconds(1 << 30) == 0


def test_a_peer_ends_when_the_benchmark_does():
    text = "from bench import peer_protocol as p; import threading; p.end_with_parent(); threading.Event().wait()"
    with subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == -signal.SIGKILL


@pytest.mark.soak
def test_the_command_prints_a_table_and_writes_lines(tmp_path):
    out = tmp_path / "lines.json"
    nowhere = ["--peer", "flink", "--flink-python", "/nowhere", "--peer", "pathway", "--pathway-python", "/nowhere"]
    arguments = ["-m", "mmqjp", "bench", "peers", "--quick", "--items", "600", "--queries", "3", "--json", str(out)]
    command = [sys.executable, *arguments, *nowhere]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "adding a query" in done.stdout and done.stderr.count("is left out") == 2
    assert json.loads(out.read_text("utf-8"))["case"]["queries"] == 3
