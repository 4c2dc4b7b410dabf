"""What a step asks about the registered queries: of the registry, or of what executors have of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from mmqjp.queries.forms import Form
from mmqjp.queries.model import HiddenStream, Subscription, Target
from mmqjp.queries.row_targets import RowPart


class KnownQueries(Protocol):
    """The registered queries. `mmqjp.queries.registry.Registry` describes the methods."""

    @property
    def subscriptions(self) -> Mapping[int, Subscription]: ...

    def form(self, id: str) -> Form | None: ...

    def parts_of_row(self, row: int) -> Collection[RowPart]: ...

    def template_of(self, row: int) -> int: ...

    def read_of(self, form_id: str) -> list[Subscription]: ...

    def readers(self, stream: str) -> list[Subscription]: ...

    def named(self, name: str) -> list[Subscription]: ...

    def inner(self, target: Target) -> Iterator[HiddenStream]: ...
