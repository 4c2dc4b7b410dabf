-- A store of format 9: event queries, one of which waits for a partner.
CREATE TABLE added_queries(qid BIGINT, "name" VARCHAR, "text" VARCHAR, occurrence BIGINT, "template" BIGINT[], window_us BIGINT, added_at BIGINT, since BIGINT, form VARCHAR, "identity" VARCHAR);
INSERT INTO "added_queries" VALUES
(0, 'pairs', 'FROM S//a->x[./k->p] JOIN {p = q, 1 min} S//b->y[./k->q] PUBLISH pairs', 0, [0], 60000000, 1795643216055862, -1, '9e0186d02ca5e99c1d8b7fc6234d673d', '["pairs", "FROM S//a->x[./k->p] JOIN {p = q, 1 min} S//b->y[./k->q] PUBLISH pairs", 0'),
(1, 'first_after', 'FROM A NEXT{k = l} B WITHIN 1 min PUBLISH first_after', 0, [], NULL, 1795643216055862, -4611686018427387905, 'events-fa8799b042c4915e1a07f7620dcb242b', '["first_after", "FROM A NEXT{k = l} B WITHIN 1 min PUBLISH first_after", 0');
CREATE TABLE answer_matches(answer BIGINT, "match" BIGINT);
INSERT INTO "answer_matches" VALUES
(0, 0);
CREATE TABLE answers(answer BIGINT, form VARCHAR, t0 BIGINT, t1 BIGINT, documents VARCHAR[], streams VARCHAR[], nodes VARCHAR, head VARCHAR, tail VARCHAR, choice VARCHAR, width BIGINT, appeared BIGINT, first_qid BIGINT, arrival BIGINT, batch BIGINT, first_seq BIGINT, last_seq BIGINT, place BIGINT, recipients BIGINT);
INSERT INTO "answers" VALUES
(0, '9e0186d02ca5e99c1d8b7fc6234d673d', 1767225601000000, 1767225603000000, ['a1', 'b3'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="', '" t0="1767225601000000" t1="1767225603000000"><a><k>v</k></a><b><k>v</k></b></match>', ', ["[\"S\", \"a1\"]", "[\"S\", \"b3\"]"], [0, 0]]', 2000000, 0, 0, 2, 4, 0, 0, 0, 1),
(1, 'events-fa8799b042c4915e1a07f7620dcb242b', 1767225601000000, 1767225603000000, ['a1', 'b3'], ['S', 'S'], '{"e1": 0, "e2": 0}', '<match query="', '" t0="1767225601000000" t1="1767225603000000"><k>v</k><l>v</l></match>', ', [1767225601000000, 1767225603000000, ["v", "v"], [["A", "S", "a1", [0, 0]], ["B", "S", "b3", [0, 0]]]]]', 0, 1767225601000000, 0, 3, 5, 1, 1, 0, 1);
CREATE TABLE batches(batch BIGINT, taken_at BIGINT, committed_at BIGINT, documents BIGINT, dead_letters BIGINT, outputs BIGINT);
INSERT INTO "batches" VALUES
(2, 1795643216155462, 1795643216333638, 1, 0, 0),
(3, 1795643216386814, 1795643216417017, 1, 0, 0),
(4, 1795643216445087, 1795643216476007, 1, 0, 1),
(5, 1795643216512658, 1795643216535275, 1, 0, 1);
CREATE TABLE bound(docid BIGINT, grp INTEGER, node1 BIGINT, node2 BIGINT);
INSERT INTO "bound" VALUES
(0, 2, 1, 1),
(1, 2, 1, 1),
(2, 5, 1, 1);
CREATE TABLE chains("chain" BIGINT, "functions" VARCHAR[]);
INSERT INTO "chains" VALUES
(1, ['of-events']);
CREATE TABLE commands(id VARCHAR, answer VARCHAR, noted_at BIGINT, batch BIGINT);
CREATE TABLE dead_letters(id VARCHAR, stream VARCHAR, "time" BIGINT, reason VARCHAR, raw BLOB, noted_at BIGINT);
CREATE TABLE definitions(id BIGINT, "name" VARCHAR, "text" VARCHAR, added_at BIGINT);
INSERT INTO "definitions" VALUES
(0, 'A', 'DEFINE EVENT A FROM S//a->a (k := a/k)', 1795643216125671),
(1, 'B', 'DEFINE EVENT B FROM S//b->b (l := b/k)', 1795643216125671);
CREATE TABLE documents(docid BIGINT, id VARCHAR, stream VARCHAR, t0 BIGINT, t1 BIGINT, "xml" VARCHAR, kind VARCHAR, parts BIGINT[], part_ids VARCHAR[], source_ids VARCHAR[], source_streams VARCHAR[], bound_docids BIGINT[], bound_nodes BIGINT[], arrival BIGINT, appeared BIGINT[]);
INSERT INTO "documents" VALUES
(0, 'a1', 'S', 1767225601000000, 1767225601000000, '<a><k>v</k></a>', 'external', NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL),
(1, 'a2', 'S', 1767225602000000, 1767225602000000, '<a><k>w</k></a>', 'external', NULL, NULL, NULL, NULL, NULL, NULL, 1, NULL),
(2, 'b3', 'S', 1767225603000000, 1767225603000000, '<b><k>v</k></b>', 'external', NULL, NULL, NULL, NULL, NULL, NULL, 2, NULL),
(3, 'c4', 'S', 1767225604000000, 1767225604000000, '<c/>', 'external', NULL, NULL, NULL, NULL, NULL, NULL, 3, NULL);
CREATE TABLE dropped_ids(id VARCHAR, stream VARCHAR, t1 BIGINT);
CREATE TABLE earlier_match_queries("match" BIGINT, query VARCHAR, qid BIGINT);
CREATE TABLE earlier_output_matches(seq BIGINT, "match" BIGINT);
CREATE TABLE earlier_outputs(query VARCHAR, t0 BIGINT, t1 BIGINT, documents VARCHAR[], streams VARCHAR[], nodes VARCHAR, "xml" VARCHAR, batch BIGINT, seq BIGINT, id VARCHAR);
CREATE TABLE events(number BIGINT, stream VARCHAR, docid BIGINT, nodes BIGINT[], t0 BIGINT, t1 BIGINT, attributes VARCHAR[], batch BIGINT);
INSERT INTO "events" VALUES
(0, 'A', 0, [0], 1767225601000000, 1767225601000000, ['v'], 2),
(1, 'A', 1, [0], 1767225602000000, 1767225602000000, ['w'], 3),
(2, 'B', 2, [0], 1767225603000000, 1767225603000000, ['v'], 4);
CREATE TABLE gaps(sink VARCHAR, "first" BIGINT, "last" BIGINT, count BIGINT, reason VARCHAR, noted_at BIGINT);
CREATE TABLE "groups"(grp INTEGER, var1 INTEGER, var2 INTEGER);
INSERT INTO "groups" VALUES
(0, 4, 4),
(1, 0, 5),
(2, 1, 1),
(3, 6, 6),
(4, 2, 7),
(5, 3, 3);
CREATE TABLE inner_placements(qid BIGINT, stream VARCHAR, "template" BIGINT, variables BIGINT[], window_us BIGINT, place BIGINT, op VARCHAR, streams VARCHAR[]);
CREATE TABLE match_rows("match" BIGINT, "template" BIGINT, docid1 BIGINT, docid2 BIGINT, t0 BIGINT, t1 BIGINT, bindings BIGINT[]);
INSERT INTO "match_rows" VALUES
(0, 0, 0, 2, 1767225601000000, 1767225603000000, [1, 1]);
CREATE TABLE memberships(qid BIGINT, batch BIGINT, begins BIGINT, arrival BIGINT);
INSERT INTO "memberships" VALUES
(0, 1, 1, -1),
(1, 1, 1, -1);
CREATE TABLE offsets("source" VARCHAR, file VARCHAR, "position" BIGINT, batch BIGINT, mark VARCHAR);
CREATE TABLE pattern_state(batch BIGINT, "name" VARCHAR, state BLOB);
CREATE TABLE pauses(qid BIGINT, docid BIGINT, reason VARCHAR, noted_at BIGINT, batch BIGINT);
CREATE TABLE placements(qid BIGINT, "template" BIGINT, variables BIGINT[], window_us BIGINT, place BIGINT, op VARCHAR, streams VARCHAR[]);
INSERT INTO "placements" VALUES
(0, 0, [1, 3], 60000000, 0, 'JOIN', ['S', 'S']);
CREATE TABLE posting_runs("version" BIGINT, manifest VARCHAR);
CREATE TABLE r_doc(docid BIGINT, node BIGINT, strval VARCHAR, stream VARCHAR);
INSERT INTO "r_doc" VALUES
(0, 1, 'v', 'S'),
(1, 1, 'w', 'S'),
(2, 1, 'v', 'S');
CREATE TABLE r_docts(docid BIGINT, "timestamp" BIGINT, t0 BIGINT, t1 BIGINT);
INSERT INTO "r_docts" VALUES
(0, 1767225601000000, 1767225601000000, 1767225601000000),
(1, 1767225602000000, 1767225602000000, 1767225602000000),
(2, 1767225603000000, 1767225603000000, 1767225603000000),
(3, 1767225604000000, 1767225604000000, 1767225604000000);
CREATE TABLE removed_definitions(id BIGINT, removed_at BIGINT);
CREATE TABLE removed_queries(qid BIGINT, removed_at BIGINT);
CREATE TABLE settings("key" VARCHAR, "value" VARCHAR, batch BIGINT);
INSERT INTO "settings" VALUES
('schema_version', '9', 0),
('patterns', '{"horizon": 1767225601000000, "greatest": {"S": 1767225601000000}, "next": 1, "taken": {"A": [0, 0], "B": [1, 0]}}', 2),
('patterns', '{"horizon": 1767225602000000, "greatest": {"S": 1767225602000000}, "next": 2, "taken": {"A": [0, 0], "B": [1, 0]}}', 3),
('patterns', '{"horizon": 1767225603000000, "greatest": {"S": 1767225603000000}, "next": 3, "taken": {"A": [0, 0], "B": [1, 0]}}', 4),
('patterns', '{"horizon": 1767225604000000, "greatest": {"S": 1767225604000000}, "next": 3, "taken": {"A": [0, 0], "B": [1, 0]}}', 5),
('costs', '{"plan": "signature", "templates": {"0": {"seconds": 0.002578424000034829, "matches": 1, "templates": [0]}}}', 6);
CREATE TABLE spent("owner" VARCHAR, arrival BIGINT, outputs BIGINT, "work" BIGINT, batch BIGINT, width BIGINT, since BIGINT, first_qid BIGINT, begun BIGINT);
INSERT INTO "spent" VALUES
('9e0186d02ca5e99c1d8b7fc6234d673d', 2, 1, 12, 4, 60000000, -1, 0, 1);
CREATE TABLE templates("template" BIGINT, left_nodes BIGINT, parents BIGINT[], joins BIGINT[]);
INSERT INTO "templates" VALUES
(0, 1, [NULL, NULL], [0, 1]);
CREATE TABLE told(qid BIGINT, high BIGINT, low BIGINT, t1 BIGINT, "until" BIGINT);
CREATE TABLE undelivered(sink VARCHAR, seq BIGINT, id VARCHAR, tries BIGINT, reason VARCHAR, noted_at BIGINT);
CREATE TABLE untold("match" BIGINT, qid BIGINT);
CREATE TABLE variables(var BIGINT, parent BIGINT, stream VARCHAR, definition VARCHAR, node VARCHAR);
INSERT INTO "variables" VALUES
(0, NULL, 'S', '//a', '["//","element","","a",[],[],[]]'),
(1, 0, 'S', '/k', '["/","element","","k",[],[],[]]'),
(2, NULL, 'S', '//b', '["//","element","","b",[],[],[]]'),
(3, 2, 'S', '/k', '["/","element","","k",[],[],[]]'),
(4, 0, 'S', '.[of-events]', '[".","element","*","*",[],[],["of-events"]]'),
(5, 1, 'S', '.[of-events]', '[".","element","*","*",[],[],["of-events"]]'),
(6, 2, 'S', '.[of-events]', '[".","element","*","*",[],[],["of-events"]]'),
(7, 3, 'S', '.[of-events]', '[".","element","*","*",[],[],["of-events"]]');
CREATE TABLE withheld(answer BIGINT, qid BIGINT);
