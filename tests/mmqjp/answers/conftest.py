import pytest

from mmqjp.answers.events import Patterns


@pytest.fixture(autouse=True)
def few_batches_to_a_snapshot(monkeypatch):
    """Event state is stored whole every four batches."""
    defaults = Patterns.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "snapshot_every", 4)
