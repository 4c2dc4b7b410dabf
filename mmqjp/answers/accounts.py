"""Quota usage of queries: accounts within a step, of forms, groups of literals, and readers of hidden streams, and
stored usage, which carries over between batches. From these follow the queries that exceeded their quota."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from common import limits
from common.bounds import DocId, Micros
from common.limits import Excess, LimitName, Quota, excess_text
from join_stage.plans import JoinEngine
from mmqjp.answers.quota import (
    NEVER,
    Account,
    Book,
    ChargeKey,
    Charges,
    EqualTimeBudget,
    Share,
    SharedAccount,
    TieCounts,
    Usage,
    charged_in_block,
)
from mmqjp.documents.record import Inputs, Record
from mmqjp.queries.forms import PREFIX, Form, LiteralGroup, RowPart, TargetGroup
from mmqjp.queries.model import EventSubscription, HiddenStream, JoinSubscription, Members, QuerySet, Subscription
from mmqjp.queries.registry import KnownQueries, behind
from mmqjp.tables.schema import NO_FORM, BelatedKey, Ledger, UsageKey, save_spent, spent

USAGE_COMPACTED_AFTER = 1_000  # number of superseded rows at which the table is compacted

_NOTHING = Usage()


@dataclass(slots=True)
class EarlierUsage:
    """A block's usage before a step: of forms, literal groups and reader groups, with `totals`; and of single queries,
    added to that, by qid and the batch in which they began. `most_work` is the maximum over forms, `literal_work` that
    of all literal groups."""

    shared: defaultdict[str, dict[ChargeKey, Usage]] = field(default_factory=lambda: defaultdict(dict))
    totals: defaultdict[str, Usage] = field(default_factory=lambda: defaultdict(Usage))
    own: dict[tuple[int, int], Usage] = field(default_factory=dict)
    most_work: int = 0
    literal_work: int = 0

    def update(self, rows: Mapping[UsageKey, Usage]) -> None:
        for (owner, *key), usage in rows.items():
            charge = ChargeKey(*key)
            if charge.width < 0 and owner.isdecimal():
                self.own[int(owner), charge.begun] = usage
                continue
            known, total = self.shared[owner], self.totals[owner]
            before = known.get(charge, _NOTHING)
            total.add(usage)
            total.add(before, -1)
            known[charge] = usage
            if owner.startswith(PREFIX):
                self.literal_work += usage.work - before.work
            elif charge.width >= 0:
                self.most_work = max(self.most_work, total.work)


class StoredUsage:
    def __init__(self, store: JoinEngine, ledger: Ledger) -> None:
        self._store, self._ledger = store, ledger
        self._forget()

    def _forget(self) -> None:
        self._is_read = self._is_saved = False
        self._known: dict[UsageKey, Usage] = {}
        self._written = 0
        self._before = EarlierUsage()

    def _rows(self) -> dict[UsageKey, Usage]:
        if not self._is_read:
            self._is_read, self._block = True, max(self._ledger.next_arrival - 1, 0) // limits.BLOCK
            for key, arrival, outputs, work in spent(self._store):
                self._written += 1
                if arrival // limits.BLOCK == self._block:
                    self._known.setdefault(key, Usage()).add(Usage(outputs, work))
            self._before.update(self._known)
        return self._known

    @property
    def block(self) -> int:
        self._rows()
        return self._block

    def before(self) -> EarlierUsage:
        self._rows()
        return self._before

    def save(self, accounts: Accounts, arrival: int, batch: int) -> None:
        """Writes a step's usage, within the batch."""
        block = arrival // limits.BLOCK
        before = self._rows() if block == self._block else {}
        changed = {key: one for key, one in accounts.spent(block).items() if one != before.get(key)}
        written, rewritten = self._written + len(changed), block != self._block
        if not rewritten and written > USAGE_COMPACTED_AFTER:
            rewritten = written > USAGE_COMPACTED_AFTER + 2 * (len(before) + len(changed))
        if rewritten:
            self._store.drop_before("spent", "batch", batch)
            changed = {key: one for key, one in {**before, **changed}.items() if one != _NOTHING}
            before, written = {}, len(changed)
            self._known, self._before = {}, EarlierUsage()
        both = [(key, one, before.get(key, _NOTHING)) for key, one in changed.items()]
        rows = [(key, arrival, one.outputs - known.outputs, one.work - known.work) for key, one, known in both]
        save_spent(self._store, rows, batch)
        self._block, self._written, self._is_saved = block, written, True
        self._known.update(changed)
        self._before.update(changed)

    def finish_batch(self, *, committed: bool) -> None:
        """A rollback makes what was saved be read again."""
        if self._is_saved and not committed:
            self._forget()
        self._is_saved = False


class Cutoff(NamedTuple):
    """Arrival from which a query gets nothing, and the bound exceeded. `hidden`: tuples of a hidden stream counted."""

    at: int
    bound: LimitName
    hidden: bool

    def reason(self, quota: Quota, document: str) -> str:
        """Returns the reason shown to users. `document` is the arriving document's id."""
        is_work = self.bound.startswith("work")
        where = "for" if is_work else "in" if self.bound == "outputs" else "of"
        if self.bound in ("outputs", "work_of_block"):
            where += f" {limits.BLOCK:,} documents, with {document!r}"
        else:
            where += f" the document {document!r}"
        return excess_text(quota, self.bound, f"of an inner join {where}" if self.hidden and not is_work else where)


Cutoffs = Mapping[int, Cutoff]

ALL_READERS = Share(ChargeKey(*NO_FORM), -1, 0, 0)


class ReaderGroup(Account):
    """The account of readers of a hidden stream that see the same documents."""

    def __init__(
        self, key: str, quota: Quota, block: int, book: Book, queries: list[JoinSubscription], cutoff: int, is_new: bool
    ) -> None:
        """`cutoff` is the arrival from which they get nothing, for reasons other than this account."""
        super().__init__(quota, block, book)
        self.key, self.is_new, self.queries = key, is_new, queries
        self._cutoff, self._own_cutoff = cutoff, NEVER

    @property
    def is_limited(self) -> bool:
        return self._own_cutoff < NEVER

    @property
    def cutoff(self) -> int:
        return min(self._cutoff, self._own_cutoff)

    def want(self, inputs: Inputs) -> bool:
        """Whether any reader gets a tuple of these documents."""
        return inputs.arrival < self.cutoff and inputs.are_seen_by(self.queries[0].sees)

    def _exceed(self, charges: Charges, excess: Excess) -> None:
        self._own_cutoff, self._over = excess.at, dict.fromkeys(self.queries, excess)


Payers = Sequence[tuple[Account, Share]]


def charge(payers: Payers, arrival: int, outputs: int, work: int) -> None:
    for account, share in payers:
        account.charge(arrival, share, outputs, work)


class Accounts:
    """A step's accounts, of forms, groups of literals, and groups of readers of a hidden stream."""

    def __init__(
        self,
        registry: KnownQueries,
        quota: Quota,
        cutoffs: Cutoffs,
        before: EarlierUsage,
        block: int,
        first_new: int = 0,
        looked: Mapping[str, int] | None = None,
    ) -> None:
        """`cutoffs` come from earlier attempts at the step; `before` is the block's usage so far. With `first_new`, the
        step is a backfill: only queries from this qid on are served, unless it `serves_all`. `looked` counts equal-time
        pairs examined before, by owner."""
        self._registry, self._quota, self._cutoffs = registry, quota, cutoffs
        self._before, self._block, self._first_new, self._looked = before, block, first_new, looked or {}
        self.serves_all = first_new == 0
        self._books, self._forms = dict[str, Book](), dict[str, SharedAccount]()
        self._literals: dict[LiteralGroup, SharedAccount] = {}
        self._readers: dict[HiddenStream, list[ReaderGroup]] = {}
        self._form_cutoffs: dict[str, dict[int, int]] = {}
        self.belated: Counter[BelatedKey] = Counter()
        """Documents that came too late in the step."""
        self._late: set[tuple[str, DocId]] = set()
        for qid, cutoff in cutoffs.items():
            self._form_cutoffs.setdefault(registry.subscriptions[qid].form_id, {})[qid] = cutoff.at

    def of(self, form: Form) -> SharedAccount:
        if (found := self._forms.get(form.id)) is None:
            others = [(self._book(id), times) for id, times in form.shared.items()]
            found = self._forms[form.id] = self._shared(form, others, self._form_cutoffs.get(form.id, {}))
        return found

    def of_part(self, part: RowPart) -> SharedAccount:
        return self.of_literals(part) if isinstance(part, LiteralGroup) else self.of(part.form_of_queries)

    def of_literals(self, group: LiteralGroup) -> SharedAccount:
        """Returns the account of a literal group, charged for bindings tried; forms are charged for the results."""
        if (found := self._literals.get(group)) is None:
            cutoffs = {qid: cutoff.at for qid, cutoff in self._cutoffs.items()}
            found = self._literals[group] = self._shared(group.queries, (), cutoffs)
        return found

    def _shared(
        self, queries: QuerySet, others: Sequence[tuple[Book, int]], cutoffs: Mapping[int, int]
    ) -> SharedAccount:
        own, known, audience = self._before.own, self._registry.subscriptions, queries.audience
        members = audience.queries
        if len(own) < len(members):
            members = [known[qid] for qid, _ in own if qid in known and known[qid] in queries]
        used = {one.qid: own[one.qid, one.begun] for one in members if (one.qid, one.begun) in own} if own else {}
        return SharedAccount(self._quota, audience, self._block, self._book(queries.id), others, used, cutoffs)

    def _book(self, id: str) -> Book:
        if id not in self._books:
            self._books[id] = self._new_book(id)
        return self._books[id]

    def _new_book(self, id: str) -> Book:
        before, looking = self._before, EqualTimeBudget(self._looked.get(id, 0))
        return Book(before.shared.get(id, {}), before.totals.get(id, _NOTHING), looking)

    def members(self, forms: Iterable[str], batch: int) -> dict[str, Members]:
        """Returns the members of forms, by id, as the batch answers them; omits forms without queries."""
        found = {id: self._registry.form(id) for id in forms}
        return {id: self.of(form).members(batch) for id, form in found.items() if form is not None}

    def note_belated(self, part: TargetGroup, payers: Payers, inputs: Inputs) -> None:
        """Counts a document that came too late for those that would get it, once however often it matches."""
        owner, docid = part.first.owner, inputs[0].docid
        if isinstance(owner, HiddenStream):
            name, first_qid, groups = owner.stream, self.first_qid, self.readers(owner)
            getting = [group for group in groups if group.want(inputs)]
            since: int = max(group.queries[0].since for group in getting)
            withheld = [query.qid for group in groups if group not in getting for query in group.queries]
        else:
            ((_, share),), name = payers, part.form_of_queries.id
            _, since, first_qid, _ = share.key
            withheld = self.of(part.form_of_queries).withheld(share, inputs.arrival)
        self._note(name, docid, since, first_qid, withheld)

    def note_missed(self, queries: Sequence[EventSubscription], documents: Iterable[Record]) -> None:
        """Counts documents whose events came too late for active event queries of a form."""
        sinces, gapped = sorted(query.since for query in queries), [query for query in queries if query.gaps]
        for record in documents:
            if place := bisect_left(sinces, record.t1):
                withheld = [query.qid for query in gapped if not query.sees((Micros(record.t1),))]
                self._note(queries[0].form_id, record.docid, sinces[place - 1], 0, withheld)

    def _note(self, owner: str, docid: DocId, since: int, first_qid: int, withheld: Iterable[int]) -> None:
        if (owner, docid) not in self._late:
            self._late.add((owner, docid))
            self.belated[owner, since, first_qid, None] += 1
            self.belated.update(dict.fromkeys([(owner, since, first_qid, qid) for qid in withheld], -1))

    def charges(self) -> Iterator[tuple[str, Book]]:
        return ((id, book) for id, book in self._books.items() if book.step or book.ties or book.looking.is_used)

    def ties(self) -> dict[str, TieCounts]:
        found: dict[str, TieCounts] = {}
        if not any(book.ties or book.looking.is_used for book in self._books.values()):
            return found
        for id, book in list(self._books.items()):
            form = self._registry.form(id)
            bounds = [book.looking, *(self._book(shared).looking for shared in (form.shared if form else ()))]
            if book.ties or book.looking.is_used or any(one.is_used for one in bounds):
                found[id] = TieCounts.of_step(book, bounds)
        return found

    def charged_literals(self) -> Iterator[LiteralGroup]:
        return iter(self._literals)

    def add_charges(self, charged: Iterable[tuple[str, Book]], literals: Iterable[LiteralGroup]) -> None:
        """Merges charges made elsewhere to forms and literal groups."""
        for group in literals:
            self.of_literals(group)
        for id, book in charged:
            if (form := self._registry.form(id)) is not None:
                self.of(form)
            self._book(id).add(book)

    def readers(self, stream: HiddenStream) -> list[ReaderGroup]:
        """Returns the groups that read a hidden stream, directly or through others."""
        if (found := self._readers.get(stream)) is None:
            alike: defaultdict[tuple[str, bool], list[JoinSubscription]] = defaultdict(list)
            readers = (one for one in self._registry.readers(stream.stream) if isinstance(one, JoinSubscription))
            for query in (query for query in readers if query.active):
                alike[f"{stream.stream} {query.since} {query.gaps}", 0 < self._first_new <= query.qid].append(query)
            found = self._readers[stream] = []
            for (key, is_new), queries in alike.items():
                until = max(self._cutoffs[one.qid].at if one.qid in self._cutoffs else NEVER for one in queries)
                book = self._new_book(key)
                found.append(ReaderGroup(key, self._quota, self._block, book, queries, until, is_new=is_new))
        return found if self.serves_all else [readers for readers in found if readers.is_new]

    @property
    def first_qid(self) -> int:
        return 0 if self.serves_all else self._first_new

    def cutoff(self, part: RowPart) -> int:
        """Returns the arrival from which a part's plan nodes get nothing, or NEVER."""
        if isinstance(part, TargetGroup) and part.form is None:
            return max((readers.cutoff for readers in self.readers(part.hidden_stream)), default=NEVER)
        return self.of_part(part).cutoff

    def looking(self, part: RowPart) -> EqualTimeBudget | None:
        """Returns the budget for examining pairs with equal times; None if the part does not examine them."""
        return None if isinstance(part, TargetGroup) and part.form is None else self.of_part(part).looking

    def is_limited(self) -> bool:
        return bool(self._cutoffs) or any(account.is_limited for _, account in self._accounts())

    def cutoffs(self) -> dict[Subscription, Cutoff]:
        """Returns the queries over their quota in the step, with cutoffs. Omits a query that reads one whose cutoff
        comes first: without those outputs it may stay within its quota."""
        found: dict[Subscription, Cutoff] = {}
        for form in self._in_doubt():
            self.of(form)
        for _, account in self._accounts():
            for query, excess in account.over_quota().items():
                known = found.get(query, self._cutoffs.get(query.qid))
                if known is None or excess.at < known.at:
                    found[query] = Cutoff(*excess, hidden=isinstance(account, ReaderGroup))
        return {
            query: own
            for query, own in found.items()
            if not any(p in found and found[p].at <= own.at for p in behind(self._registry, query)[0])
        }

    def _accounts(self) -> Iterator[tuple[str, Account]]:
        yield from self._forms.items()
        yield from ((group.queries.id, account) for group, account in self._literals.items())
        yield from ((readers.key, readers) for found in self._readers.values() for readers in found)

    def _in_doubt(self) -> list[Form]:
        """Returns forms without an account whose members may exceed their quota by charges to literal groups alone."""
        step = sum(self._book(group.queries.id).used.work for group in self._literals)
        in_block = self._before.literal_work + step
        most_own = max((used.work for used in self._before.own.values()), default=0)
        found: list[Form] = []
        for group in self._literals:
            most = self._before.most_work + most_own + group.most_times * in_block
            for form in group.forms() if self._is_over(group.most_times * step, most) else ():
                # The most work of a member.
                books = [(self._book(id), times) for id, times in form.shared.items()]
                of_step = sum(times * book.used.work for book, times in books)
                before = self._book(form.id).total.work + sum(times * book.total.work for book, times in books)
                if self._is_over(of_step, before + of_step + most_own):
                    found.append(form)
        return found

    def _is_over(self, step: int, in_block: int) -> bool:
        return step > self._quota.work or in_block > self._quota.work_of_block

    def spent(self, block: int) -> dict[UsageKey, Usage]:
        """Returns a block's usage by key; in a backfill, only the new queries'."""
        found: defaultdict[UsageKey, Usage] = defaultdict(Usage)
        accounts = [
            (id, account)
            for id, account in self._accounts()
            if not (isinstance(account, ReaderGroup) and self._first_new and not account.is_new)
        ]
        for place, key, usage in charged_in_block([account.book for _, account in accounts], block):
            id, account = accounts[place]
            usage.add(account.before(key, block))
            width, since, first_qid, begun = key
            if self._first_new and width >= 0:
                first_qid = max(first_qid, self._first_new)
            found[id, width, since, first_qid, begun].add(usage)
        for id, book in self._books.items():
            for (arrival, qid), used in book.less.items():
                if arrival // limits.BLOCK == block and (not self._first_new or qid >= self._first_new):
                    query = self._registry.subscriptions[qid]
                    key_of_query: UsageKey = str(qid), *NO_FORM[:-1], query.begun
                    if key_of_query not in found and block == self._block:
                        found[key_of_query].add(self._before.own.get((qid, query.begun), _NOTHING))
                    form = self._registry.form(query.form_id)
                    found[key_of_query].add(used, -1 if form is None or form.id == id else -form.shared[id])
        return {key: one for key, one in found.items() if one != _NOTHING}
