import pytest


@pytest.fixture(autouse=True)
def few_batches_to_a_snapshot(monkeypatch):
    """Event state is stored whole every four batches."""
    monkeypatch.setattr("mmqjp.answers.events.SNAPSHOT_EVERY", 4)
