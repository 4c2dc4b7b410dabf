-- A store of format 6: nothing was told once.
CREATE TABLE added_queries(qid BIGINT, "name" VARCHAR, "text" VARCHAR, occurrence BIGINT, "template" BIGINT[], window_us BIGINT, added_at BIGINT, since BIGINT, form VARCHAR, "identity" VARCHAR);
INSERT INTO "added_queries" VALUES
(0, 'pairs', 'FROM S//a->x[./k->p] JOIN {p = q, 1 min} S//b->y[./k->q] PUBLISH pairs', 0, [0], 60000000, 1795445218449468, -1, '9e0186d02ca5e99c1d8b7fc6234d673d', '["pairs", "FROM S//a->x[./k->p] JOIN {p = q, 1 min} S//b->y[./k->q] PUBLISH pairs", 0'),
(1, 'q2', 'FROM S//a->x[./k->p] FOLLOWED BY {p = q, INF} S//b->y[./k->q]', 0, [0], NULL, 1795445218449468, -1, '4870b8f1d0d1f9c4fc193bca9a0b7078', '["q2", "FROM S//a->x[./k->p] FOLLOWED BY {p = q, INF} S//b->y[./k->q]", 0'),
(2, 'readers', 'FROM pairs//match->m PUBLISH readers', 0, [1], NULL, 1795445218449468, -1, 'd4ba68774dacb7b00bc02ff2588dcde4', '["readers", "FROM pairs//match->m PUBLISH readers", 0');
CREATE TABLE answer_matches(answer BIGINT, "match" BIGINT);
INSERT INTO "answer_matches" VALUES
(0, 1),
(1, 0),
(2, 0),
(3, 2);
CREATE TABLE answers(answer BIGINT, form VARCHAR, t0 BIGINT, t1 BIGINT, documents VARCHAR[], streams VARCHAR[], nodes VARCHAR, head VARCHAR, tail VARCHAR, choice VARCHAR, width BIGINT, appeared BIGINT, first_qid BIGINT, arrival BIGINT, batch BIGINT, first_seq BIGINT, last_seq BIGINT, place BIGINT, recipients BIGINT);
INSERT INTO "answers" VALUES
(0, 'd4ba68774dacb7b00bc02ff2588dcde4', 1767225600000000, 1767225601000000, ['a1', 'b2'], ['S', 'S'], '{"m": 0}', '<match query="', '" t0="1767225600000000" t1="1767225601000000"><match query="pairs" t0="1767225600000000" t1="1767225601000000"><a><k>v</k></a><b><k>v</k></b></match></match>', ', ["[\"pairs\", \"e06f08cecf5ab0c38dfddd3eec88b3ae\"]"], [0]]', -1, 1, 0, 1, 2, 0, 2, 0, 1),
(1, '4870b8f1d0d1f9c4fc193bca9a0b7078', 1767225600000000, 1767225601000000, ['a1', 'b2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="', '" t0="1767225600000000" t1="1767225601000000"><a><k>v</k></a><b><k>v</k></b></match>', ', ["[\"S\", \"a1\"]", "[\"S\", \"b2\"]"], [0, 0]]', 1000000, 0, 0, 1, 2, 0, 2, 1, 1),
(2, '9e0186d02ca5e99c1d8b7fc6234d673d', 1767225600000000, 1767225601000000, ['a1', 'b2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="', '" t0="1767225600000000" t1="1767225601000000"><a><k>v</k></a><b><k>v</k></b></match>', ', ["[\"S\", \"a1\"]", "[\"S\", \"b2\"]"], [0, 0]]', 1000000, 0, 0, 1, 2, 0, 2, 2, 1),
(3, '9e0186d02ca5e99c1d8b7fc6234d673d', 1767225601000000, 1767225602000000, ['a3', 'b2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="', '" t0="1767225601000000" t1="1767225602000000"><a><k>v</k></a><b><k>v</k></b></match>', ', ["[\"S\", \"a3\"]", "[\"S\", \"b2\"]"], [0, 0]]', 1000000, 1, 0, 2, 4, 3, 3, 0, 1);
CREATE TABLE batches(batch BIGINT, taken_at BIGINT, committed_at BIGINT, documents BIGINT, dead_letters BIGINT, outputs BIGINT);
INSERT INTO "batches" VALUES
(2, 1795445218500140, 1795445218522855, 2, 0, 3),
(4, 1795445218536149, 1795445218541247, 2, 0, 1);
CREATE TABLE bound(docid BIGINT, grp INTEGER, node1 BIGINT, node2 BIGINT);
INSERT INTO "bound" VALUES
(0, 0, 1, 1),
(1, 1, 1, 1),
(2, 2, 0, 0),
(3, 0, 1, 1),
(4, 1, 1, 1),
(5, 2, 0, 0);
CREATE TABLE chains("chain" BIGINT, "functions" VARCHAR[]);
CREATE TABLE commands(id VARCHAR, answer VARCHAR, noted_at BIGINT, batch BIGINT);
CREATE TABLE dead_letters(id VARCHAR, stream VARCHAR, "time" BIGINT, reason VARCHAR, raw BLOB, noted_at BIGINT);
CREATE TABLE documents(docid BIGINT, id VARCHAR, stream VARCHAR, t0 BIGINT, t1 BIGINT, "xml" VARCHAR, kind VARCHAR, parts BIGINT[], part_ids VARCHAR[], source_ids VARCHAR[], source_streams VARCHAR[], bound_docids BIGINT[], bound_nodes BIGINT[], arrival BIGINT, appeared BIGINT[]);
INSERT INTO "documents" VALUES
(0, 'a1', 'S', 1767225600000000, 1767225600000000, '<a><k>v</k></a>', 'external', NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL),
(1, 'b2', 'S', 1767225601000000, 1767225601000000, '<b><k>v</k></b>', 'external', NULL, NULL, NULL, NULL, NULL, NULL, 1, NULL),
(2, 'e06f08cecf5ab0c38dfddd3eec88b3ae', 'pairs', 1767225600000000, 1767225601000000, '<match query="pairs" t0="1767225600000000" t1="1767225601000000"><a><k>v</k></a><b><k>v</k></b></match>', 'published', [2], ['["pairs", "e06f08cecf5ab0c38dfddd3eec88b3ae"]'], ['a1', 'b2'], ['S', 'S'], [], [], 1, [1]),
(3, 'a3', 'S', 1767225602000000, 1767225602000000, '<a><k>v</k></a>', 'external', NULL, NULL, NULL, NULL, NULL, NULL, 2, NULL),
(4, 'b4', 'S', 1767225603000000, 1767225603000000, '<b><k>w</k></b>', 'external', NULL, NULL, NULL, NULL, NULL, NULL, 3, NULL),
(5, 'c06085da3a972440d609b34fe55b3f33', 'pairs', 1767225601000000, 1767225602000000, '<match query="pairs" t0="1767225601000000" t1="1767225602000000"><a><k>v</k></a><b><k>v</k></b></match>', 'published', [5], ['["pairs", "c06085da3a972440d609b34fe55b3f33"]'], ['a3', 'b2'], ['S', 'S'], [], [], 2, [3]);
CREATE TABLE dropped_ids(id VARCHAR, stream VARCHAR, t1 BIGINT);
CREATE TABLE earlier_match_queries("match" BIGINT, query VARCHAR, qid BIGINT);
CREATE TABLE earlier_output_matches(seq BIGINT, "match" BIGINT);
CREATE TABLE earlier_outputs(query VARCHAR, t0 BIGINT, t1 BIGINT, documents VARCHAR[], streams VARCHAR[], nodes VARCHAR, "xml" VARCHAR, batch BIGINT, seq BIGINT, id VARCHAR);
CREATE TABLE "groups"(grp INTEGER, var1 INTEGER, var2 INTEGER);
INSERT INTO "groups" VALUES
(0, 1, 1),
(1, 3, 3),
(2, 4, 4);
CREATE TABLE inner_placements(qid BIGINT, stream VARCHAR, "template" BIGINT, variables BIGINT[], window_us BIGINT, place BIGINT, op VARCHAR, streams VARCHAR[]);
CREATE TABLE match_rows("match" BIGINT, "template" BIGINT, docid1 BIGINT, docid2 BIGINT, t0 BIGINT, t1 BIGINT, bindings BIGINT[]);
INSERT INTO "match_rows" VALUES
(0, 0, 0, 1, 1767225600000000, 1767225601000000, [1, 1]),
(1, 1, 2, NULL, 1767225600000000, 1767225601000000, [0]),
(2, 0, 3, 1, 1767225601000000, 1767225602000000, [1, 1]);
CREATE TABLE memberships(qid BIGINT, batch BIGINT, begins BIGINT, arrival BIGINT);
INSERT INTO "memberships" VALUES
(0, 1, 1, -1),
(1, 1, 1, -1),
(2, 1, 1, -1),
(2, 3, 0, -1),
(2, 5, 1, -1);
CREATE TABLE offsets("source" VARCHAR, file VARCHAR, "position" BIGINT, batch BIGINT, mark VARCHAR);
CREATE TABLE pauses(qid BIGINT, docid BIGINT, reason VARCHAR, noted_at BIGINT, batch BIGINT);
INSERT INTO "pauses" VALUES
(2, 2, 'asked to', 1795445218532203, 3),
(2, 5, NULL, 1795445218559322, 5);
CREATE TABLE placements(qid BIGINT, "template" BIGINT, variables BIGINT[], window_us BIGINT, place BIGINT, op VARCHAR, streams VARCHAR[]);
INSERT INTO "placements" VALUES
(0, 0, [1, 3], 60000000, 0, 'JOIN', ['S', 'S']),
(1, 0, [1, 3], NULL, 0, 'FOLLOWED BY', ['S', 'S']),
(2, 1, [4], NULL, 0, NULL, ['pairs']);
CREATE TABLE posting_runs("version" BIGINT, manifest VARCHAR);
INSERT INTO "posting_runs" VALUES
(0, '{"upto": -1, "next": 0, "runs": []}');
CREATE TABLE r_doc(docid BIGINT, node BIGINT, strval VARCHAR, stream VARCHAR);
INSERT INTO "r_doc" VALUES
(0, 1, 'v', 'S'),
(1, 1, 'v', 'S'),
(3, 1, 'v', 'S'),
(4, 1, 'w', 'S');
CREATE TABLE r_docts(docid BIGINT, "timestamp" BIGINT, t0 BIGINT, t1 BIGINT);
INSERT INTO "r_docts" VALUES
(0, 1767225600000000, 1767225600000000, 1767225600000000),
(1, 1767225601000000, 1767225601000000, 1767225601000000),
(2, 1767225600000000, 1767225600000000, 1767225601000000),
(3, 1767225602000000, 1767225602000000, 1767225602000000),
(4, 1767225603000000, 1767225603000000, 1767225603000000),
(5, 1767225601000000, 1767225601000000, 1767225602000000);
CREATE TABLE removed_queries(qid BIGINT, removed_at BIGINT);
CREATE TABLE settings("key" VARCHAR, "value" VARCHAR, batch BIGINT);
INSERT INTO "settings" VALUES
('schema_version', '6', 0),
('costs', '{"plan": "signature", "templates": {"0": {"seconds": 0.00021318799917935394, "matches": 1, "templates": [0]}}}', 6);
CREATE TABLE spent("owner" VARCHAR, arrival BIGINT, outputs BIGINT, "work" BIGINT, batch BIGINT, width BIGINT, since BIGINT, first_qid BIGINT, begun BIGINT);
INSERT INTO "spent" VALUES
('9e0186d02ca5e99c1d8b7fc6234d673d', 1, 1, 12, 2, 60000000, -1, 0, 1),
('4870b8f1d0d1f9c4fc193bca9a0b7078', 1, 1, 12, 2, 9223372036854775807, -1, 0, 1),
('d4ba68774dacb7b00bc02ff2588dcde4', 1, 1, 13, 2, 9223372036854775807, -1, 0, 1),
('9e0186d02ca5e99c1d8b7fc6234d673d', 3, 1, 12, 4, 60000000, -1, 0, 1);
CREATE TABLE templates("template" BIGINT, left_nodes BIGINT, parents BIGINT[], joins BIGINT[]);
INSERT INTO "templates" VALUES
(0, 1, [NULL, NULL], [0, 1]),
(1, 1, [NULL], []);
CREATE TABLE variables(var BIGINT, parent BIGINT, stream VARCHAR, definition VARCHAR, node VARCHAR);
INSERT INTO "variables" VALUES
(0, NULL, 'S', '//a', '["//","element","","a",[],[],[]]'),
(1, 0, 'S', '/k', '["/","element","","k",[],[],[]]'),
(2, NULL, 'S', '//b', '["//","element","","b",[],[],[]]'),
(3, 2, 'S', '/k', '["/","element","","k",[],[],[]]'),
(4, NULL, 'pairs', '//match', '["//","element","","match",[],[],[]]');
CREATE TABLE withheld(answer BIGINT, qid BIGINT);
