"""Keys of links: each opens one feed, until it is revoked, and nobody else can make one."""

import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from join_stage.store.protocol import StoreError
from mmqjp.syndication.atom import Links, archive_path, feed_path, load_feed_links

LINKS = Links(b"s" * 32)
NAMES = st.text(max_size=20)


@given(NAMES, st.integers(0, 10**6))
def test_a_key_says_how_often_its_link_was_revoked(name, revoked):
    key = LINKS.key(name, revoked)
    assert LINKS.revoked_before(name, key) == revoked
    assert Links(b"t" * 32).revoked_before(name, key) is None


@given(st.lists(st.tuples(NAMES, st.integers(0, 9)), unique=True, min_size=2, max_size=6))
def test_each_feed_and_each_revocation_has_a_key_of_its_own(feeds):
    keys = [LINKS.key(*feed) for feed in feeds]
    assert len({key.partition(".")[0] for key in keys}) == len(feeds)
    for name, _ in feeds:
        own = {LINKS.key(name, revoked) for revoked in range(10)}
        assert [LINKS.revoked_before(name, key) is not None for key in keys] == [key in own for key in keys]


@given(st.text(max_size=40))
def test_no_other_text_is_a_key(text):
    assert LINKS.revoked_before("a", text) is None


def test_a_key_has_one_spelling_and_the_id_of_a_feed_is_its_own():
    for change in (".0", ".1", ".01", ".-1", ".1e3", ".99999999999", "\n", ".1\n", ".١"):
        assert LINKS.revoked_before("a", LINKS.key("a", 0) + change) is None
    assert LINKS.feed_id("a") == LINKS.feed_id("a") != LINKS.feed_id("b")


@given(NAMES)
def test_names_of_any_characters_are_parts_of_a_path(name):
    encodable = name.encode("utf-8", "ignore").decode()
    for path in (feed_path("KEY", encodable), archive_path("KEY", encodable, 7)):
        assert path.isascii() and path.startswith("/f/KEY/") and path.endswith(".atom") and " " not in path
    assert feed_path("KEY", encodable).count("/") == 3 and archive_path("KEY", encodable, 7).count("/") == 4


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_the_secret_is_made_once_and_is_its_owners_alone(tmp_path, mode):
    state = tmp_path / "state"
    state.mkdir()
    state.chmod(mode)
    links = load_feed_links(state)
    assert load_feed_links(state) == links and len(links.secret) == 32 and "secret" not in repr(links)
    (path,) = (state / "secrets").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"short")
    with pytest.raises(StoreError, match="no secret of links"):
        load_feed_links(state)
    path.unlink()
    assert load_feed_links(state) != links
