"""What the tables and views of a store and their columns mean, for docs/tables.md."""

from __future__ import annotations

TIMES = {"t0": "the beginning of its time", "t1": "the end of its time; the same for a document from outside"}

MEANINGS: dict[str, tuple[str, dict[str, str]]] = {
    "documents": (
        "A row for each document that is kept. Documents from outside have the kind `external`.",
        {
            "docid": "its number",
            "id": "its id",
            "stream": "its stream",
            **TIMES,
            "xml": "its text, without comments and processing instructions",
            "kind": "`external`, `published` (an output that other queries read) or `hidden` (a part of a chain)",
            "parts": "of a chain: the docids behind it",
            "part_ids": "of a chain: the ids behind it, with their streams",
            "source_ids": "the ids of the documents from outside that it was made of",
            "source_streams": "their streams",
            "bound_docids": "of a part of a chain: the document of each variable",
            "bound_nodes": "of a part of a chain: the node of each variable",
            "arrival": "documents from outside are numbered as they arrive",
            "appeared": "the docid of the document that completed each part",
        },
    ),
    "queries": (
        "A row for each query that was ever registered.",
        {
            "qid": "its number",
            "name": "the name that it PUBLISHes, or `q1`, `q2`, ...",
            "text": "its text",
            "template": "the numbers of its templates: queries with joins of one shape share one",
            "window_us": "its longest window, in microseconds; NULL for `INF`",
            "added_at": "when it was registered",
            "removed_at": "when it ended; NULL while it is registered",
        },
    ),
    "outputs": (
        "A row for each output line.",
        {
            "query": "the name of the query",
            "t0": "the least time of its documents",
            "t1": "the greatest time of its documents",
            "documents": "the ids of its documents, in the order of the query",
            "streams": "their streams",
            "nodes": "the matched elements: JSON, by variable",
            "xml": "the output as a document",
            "batch": "the number of the batch that found it",
            "seq": "numbers the outputs of a store in the order in which they were committed",
            "id": "the same for the same output in every store",
        },
    ),
    "matches": (
        "A row for each pair of documents that joined, for each query that asked for it.",
        {
            "query": "the name of the query",
            "docid1": "the document on the left",
            "docid2": "the document on the right",
            "t0": "the least time of the two",
            "t1": "the greatest time of the two",
            "bindings": "the joined nodes, in the order of the template's variables",
            "match": "its number",
        },
    ),
    "output_matches": (
        "Which matches an output was made of.",
        {"seq": "the number of the output", "match": "the number of the match"},
    ),
    "dead_letters": (
        "A row for each document that was refused.",
        {
            "id": "its id, as far as it is known",
            "stream": "its stream",
            "time": "its time",
            "reason": "why it was refused",
            "raw": "the document as it came",
            "noted_at": "when it was refused",
        },
    ),
    "events": (
        "A row for each event of a document that event statements may still need.",
        {
            "number": "its number",
            "stream": "the name of its definition",
            "docid": "the document",
            "nodes": "its nodes there: the block's root, the variables, and those taken by IN",
            "t0": "the beginning of its time",
            "t1": "the end of its time",
            "attributes": "its attributes, in the order of the definition",
            "batch": "the batch that found it",
        },
    ),
    "batches": (
        "A row for each batch that added something.",
        {
            "batch": "its number",
            "taken_at": "when its last document was taken in",
            "committed_at": "when it was committed",
            "documents": "how many documents it added",
            "dead_letters": "how many it refused",
            "outputs": "how many outputs it found",
        },
    ),
    "gaps": (
        "A row for outputs that were given up because the backlog of a sink has a bound ([Sinks](sinks.md#bounds)).",
        {
            "sink": "the name of the sink",
            "first": "the first number that is given up",
            "last": "the last number that is given up",
            "count": "how many outputs between them the sink wanted",
            "reason": "why they were given up",
            "noted_at": "when that was stored",
        },
    ),
    "undelivered": (
        "A row for each output that the receiver of a sink refused for good.",
        {
            "sink": "the name of the sink",
            "seq": "the number of the output",
            "id": "the id of the output",
            "tries": "how often it was refused",
            "reason": "what the receiver answered last",
            "noted_at": "when it was given up",
        },
    ),
    "costs": (
        "The cost of each template in the last batch of each run. Only Spark SQL has this view.",
        {
            "batch": "the batch that was committed last",
            "plan": "the plan of the run",
            "template": "the number of the template",
            "seconds": "how long its matches took",
            "matches": "how many there were",
        },
    ),
    "r_bin": (
        "R_bin of the thesis: pairs of nodes of a document, bound by the ends of an edge of a pattern.",
        {
            "docid": "the document",
            "var1": "the number of the upper variable",
            "var2": "the number of the lower variable",
            "node1": "the node of the upper variable",
            "node2": "the node of the lower variable",
        },
    ),
    "r_doc": (
        "R_doc of the thesis: the values of the nodes that some join reads.",
        {
            "docid": "the document",
            "node": "the node",
            "strval": "its string value; where `near` joins texts, the threshold and the numbers of the words",
            "stream": "the document's stream",
        },
    ),
    "r_docts": (
        "R_docTS of the thesis: the times of the documents that can still be joined.",
        {"docid": "the document", "timestamp": "the thesis' name for t0", "t0": "the beginning", "t1": "the end"},
    ),
    "r_t_N": (
        "R_T of the thesis: a view for each template, `r_t_0`, `r_t_1` and so on, with a row for each of its queries.",
        {
            "qid": "the number of the query",
            "var1": "the query's variable in the first place of the template; `var2` and further ones follow",
            "var2": "the one in the second place",
            "wl": "the window, in microseconds; NULL for `INF`",
        },
    ),
}
"""What users may rely on: the meaning of each table or view, and of its columns."""

MEANT = {"costs": dict(zip(MEANINGS["costs"][1], ("integer", "text", "integer", "number", "integer"), strict=True))}
"""The types of the columns of views that a DuckDB store does not have."""

BEHIND = {
    "answers": "outputs, once for all queries that get them",
    "recipients": "which query gets which answer",
    "withheld": "answers that a query does not get, because it was paused, or told them before",
    "told": "what queries with `ONCE PER` have told: digests, and how long they count",
    "untold": "matches of which a query told nothing, because it had told that before",
    "match_rows": "matches, once for all queries",
    "answer_matches": "the matches behind each answer",
    "earlier_outputs": "outputs of stores of older formats",
    "earlier_match_queries": "matches of stores of older formats",
    "earlier_output_matches": "the matches behind the outputs of stores of older formats",
    "added_queries": "what was registered",
    "removed_queries": "what was removed",
    "memberships": "from which batch until which a query got answers",
    "members": "the same, as a view",
    "placements": "the variables of each query in its templates",
    "inner_placements": "the same for the inner joins of chains",
    "variables": "the definition of each variable: its path and filters",
    "chains": "the chains of functions, by number",
    "templates": "the shape of each template",
    "pauses": "which query was paused after which document, and why",
    "definitions": "the definitions of events that were registered",
    "removed_definitions": "those that were removed",
    "pattern_state": "what event statements wait with, as of a batch",
    "spent": "what each query has used of its bounds",
    "settings": "texts by key, such as the format of the store",
    "offsets": "how far each source was read",
    "commands": "answers to commands of other processes",
    "dropped_ids": "the ids of documents that were dropped",
    "bound": "R_bin, with edges that bind together in one row; Spark's stores keep `r_bin` itself",
    "groups": "the edges of each such row",
    "posting_runs": "the files of the index of joined values",
    "word_order": "which words are frequent, for joins by `near`",
}
"""What else a store has."""
