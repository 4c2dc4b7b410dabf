-- A store of format 8: no events, and no snapshots.
CREATE TABLE added_queries(qid BIGINT, "name" VARCHAR, "text" VARCHAR, occurrence BIGINT, "template" BIGINT[], window_us BIGINT, added_at BIGINT, since BIGINT, form VARCHAR, "identity" VARCHAR);
INSERT INTO "added_queries" VALUES
(0, 'pairs', 'FROM S//a->x[./k->p] JOIN {p = q, 1 min} S//b->y[./k->q] PUBLISH pairs ONCE PER (p) WITHIN 1 min', 0, [0], 60000000, 1795471051940021, -1, 'd348e784b525aadd5901870cbe2fe80b', '["pairs", "FROM S//a->x[./k->p] JOIN {p = q, 1 min} S//b->y[./k->q] PUBLISH pairs ONCE PER (p) WITHIN 1 min", 0'),
(1, 'q1', 'FROM S//a->x[./k->p] FOLLOWED BY {p = q, INF} S//b->y[./k->q]', 0, [0], NULL, 1795471051997569, -1, '4870b8f1d0d1f9c4fc193bca9a0b7078', '["q1", "FROM S//a->x[./k->p] FOLLOWED BY {p = q, INF} S//b->y[./k->q]", 0'),
(2, 'readers', 'SELECT m FROM pairs//match->m PUBLISH readers', 0, [1], NULL, 1795471052125265, -1, '6974a2f0734c5232ca694c99146b6693', '["readers", "SELECT m FROM pairs//match->m PUBLISH readers", 0');
CREATE TABLE answer_matches(answer BIGINT, "match" BIGINT);
INSERT INTO "answer_matches" VALUES
(0, 1),
(1, 0),
(2, 0),
(3, 3),
(4, 2);
CREATE TABLE answers(answer BIGINT, form VARCHAR, t0 BIGINT, t1 BIGINT, documents VARCHAR[], streams VARCHAR[], nodes VARCHAR, head VARCHAR, tail VARCHAR, choice VARCHAR, width BIGINT, appeared BIGINT, first_qid BIGINT, arrival BIGINT, batch BIGINT, first_seq BIGINT, last_seq BIGINT, place BIGINT, recipients BIGINT);
INSERT INTO "answers" VALUES
(0, '6974a2f0734c5232ca694c99146b6693', 1767225600000000, 1767225601000000, ['a1', 'b2'], ['S', 'S'], '{"m": 0}', '<match query="', '" t0="1767225600000000" t1="1767225601000000"><m><match query="pairs" t0="1767225600000000" t1="1767225601000000"><a><k>v</k></a><b><k>v</k></b></match></m></match>', ', ["[\"pairs\", \"4071a24dcef89f7982da6ee86e369593\"]"], [0]]', -1, 1, 0, 1, 4, 0, 2, 0, 1),
(1, '4870b8f1d0d1f9c4fc193bca9a0b7078', 1767225600000000, 1767225601000000, ['a1', 'b2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="', '" t0="1767225600000000" t1="1767225601000000"><a><k>v</k></a><b><k>v</k></b></match>', ', ["[\"S\", \"a1\"]", "[\"S\", \"b2\"]"], [0, 0]]', 1000000, 0, 0, 1, 4, 0, 2, 1, 1),
(2, 'd348e784b525aadd5901870cbe2fe80b', 1767225600000000, 1767225601000000, ['a1', 'b2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="', '" t0="1767225600000000" t1="1767225601000000"><a><k>v</k></a><b><k>v</k></b></match>', ', ["[\"S\", \"a1\"]", "[\"S\", \"b2\"]"], [0, 0]]', 1000000, 0, 0, 1, 4, 0, 2, 2, 1),
(3, '6974a2f0734c5232ca694c99146b6693', 1767225602000000, 1767225603000000, ['a3', 'b4'], ['S', 'S'], '{"m": 0}', '<match query="', '" t0="1767225602000000" t1="1767225603000000"><m><match query="pairs" t0="1767225602000000" t1="1767225603000000"><a><k>w</k></a><b><k>w</k></b></match></m></match>', ', ["[\"pairs\", \"48df5dac5fefe2568520eaf9312fff78\"]"], [0]]', -1, 4, 0, 3, 6, 3, 4, 0, 1),
(4, 'd348e784b525aadd5901870cbe2fe80b', 1767225602000000, 1767225603000000, ['a3', 'b4'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="', '" t0="1767225602000000" t1="1767225603000000"><a><k>w</k></a><b><k>w</k></b></match>', ', ["[\"S\", \"a3\"]", "[\"S\", \"b4\"]"], [0, 0]]', 1000000, 3, 0, 3, 6, 3, 4, 1, 1);
CREATE TABLE batches(batch BIGINT, taken_at BIGINT, committed_at BIGINT, documents BIGINT, dead_letters BIGINT, outputs BIGINT);
INSERT INTO "batches" VALUES
(4, 1795471052191280, 1795471052323478, 2, 0, 3),
(6, 1795471052402955, 1795471052461178, 2, 0, 2);
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
(2, '4071a24dcef89f7982da6ee86e369593', 'pairs', 1767225600000000, 1767225601000000, '<match query="pairs" t0="1767225600000000" t1="1767225601000000"><a><k>v</k></a><b><k>v</k></b></match>', 'published', [2], ['["pairs", "4071a24dcef89f7982da6ee86e369593"]'], ['a1', 'b2'], ['S', 'S'], [], [], 1, [1]),
(3, 'a3', 'S', 1767225602000000, 1767225602000000, '<a><k>w</k></a>', 'external', NULL, NULL, NULL, NULL, NULL, NULL, 2, NULL),
(4, 'b4', 'S', 1767225603000000, 1767225603000000, '<b><k>w</k></b>', 'external', NULL, NULL, NULL, NULL, NULL, NULL, 3, NULL),
(5, '48df5dac5fefe2568520eaf9312fff78', 'pairs', 1767225602000000, 1767225603000000, '<match query="pairs" t0="1767225602000000" t1="1767225603000000"><a><k>w</k></a><b><k>w</k></b></match>', 'published', [5], ['["pairs", "48df5dac5fefe2568520eaf9312fff78"]'], ['a3', 'b4'], ['S', 'S'], [], [], 3, [4]);
CREATE TABLE dropped_ids(id VARCHAR, stream VARCHAR, t1 BIGINT);
CREATE TABLE earlier_match_queries("match" BIGINT, query VARCHAR, qid BIGINT);
CREATE TABLE earlier_output_matches(seq BIGINT, "match" BIGINT);
CREATE TABLE earlier_outputs(query VARCHAR, t0 BIGINT, t1 BIGINT, documents VARCHAR[], streams VARCHAR[], nodes VARCHAR, "xml" VARCHAR, batch BIGINT, seq BIGINT, id VARCHAR);
CREATE TABLE gaps(sink VARCHAR, "first" BIGINT, "last" BIGINT, count BIGINT, reason VARCHAR, noted_at BIGINT);
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
(2, 0, 3, 4, 1767225602000000, 1767225603000000, [1, 1]),
(3, 1, 5, NULL, 1767225602000000, 1767225603000000, [0]);
CREATE TABLE memberships(qid BIGINT, batch BIGINT, begins BIGINT, arrival BIGINT);
INSERT INTO "memberships" VALUES
(0, 1, 1, -1),
(1, 2, 1, -1),
(2, 3, 1, -1),
(1, 5, 0, -1);
CREATE TABLE offsets("source" VARCHAR, file VARCHAR, "position" BIGINT, batch BIGINT, mark VARCHAR);
CREATE TABLE pauses(qid BIGINT, docid BIGINT, reason VARCHAR, noted_at BIGINT, batch BIGINT);
INSERT INTO "pauses" VALUES
(1, 2, 'asked to', 1795471052363044, 5);
CREATE TABLE placements(qid BIGINT, "template" BIGINT, variables BIGINT[], window_us BIGINT, place BIGINT, op VARCHAR, streams VARCHAR[]);
INSERT INTO "placements" VALUES
(0, 0, [1, 3], 60000000, 0, 'JOIN', ['S', 'S']),
(1, 0, [1, 3], NULL, 0, 'FOLLOWED BY', ['S', 'S']),
(2, 1, [4], NULL, 0, NULL, ['pairs']);
CREATE TABLE posting_runs("version" BIGINT, manifest VARCHAR);
CREATE TABLE r_doc(docid BIGINT, node BIGINT, strval VARCHAR, stream VARCHAR);
INSERT INTO "r_doc" VALUES
(0, 1, 'v', 'S'),
(1, 1, 'v', 'S'),
(3, 1, 'w', 'S'),
(4, 1, 'w', 'S');
CREATE TABLE r_docts(docid BIGINT, "timestamp" BIGINT, t0 BIGINT, t1 BIGINT);
INSERT INTO "r_docts" VALUES
(0, 1767225600000000, 1767225600000000, 1767225600000000),
(1, 1767225601000000, 1767225601000000, 1767225601000000),
(2, 1767225600000000, 1767225600000000, 1767225601000000),
(3, 1767225602000000, 1767225602000000, 1767225602000000),
(4, 1767225603000000, 1767225603000000, 1767225603000000),
(5, 1767225602000000, 1767225602000000, 1767225603000000);
CREATE TABLE removed_queries(qid BIGINT, removed_at BIGINT);
CREATE TABLE settings("key" VARCHAR, "value" VARCHAR, batch BIGINT);
INSERT INTO "settings" VALUES
('schema_version', '8', 0),
('costs', '{"plan": "signature", "templates": {"0": {"seconds": 0.0002204690026701428, "matches": 1, "templates": [0]}}}', 7);
CREATE TABLE spent("owner" VARCHAR, arrival BIGINT, outputs BIGINT, "work" BIGINT, batch BIGINT, width BIGINT, since BIGINT, first_qid BIGINT, begun BIGINT);
INSERT INTO "spent" VALUES
('d348e784b525aadd5901870cbe2fe80b', 1, 1, 12, 4, 60000000, -1, 0, 1),
('4870b8f1d0d1f9c4fc193bca9a0b7078', 1, 1, 12, 4, 9223372036854775807, -1, 0, 2),
('6974a2f0734c5232ca694c99146b6693', 1, 1, 14, 4, 9223372036854775807, -1, 0, 3),
('d348e784b525aadd5901870cbe2fe80b', 3, 1, 12, 6, 60000000, -1, 0, 1),
('6974a2f0734c5232ca694c99146b6693', 3, 1, 14, 6, 9223372036854775807, -1, 0, 3);
CREATE TABLE templates("template" BIGINT, left_nodes BIGINT, parents BIGINT[], joins BIGINT[]);
INSERT INTO "templates" VALUES
(0, 1, [NULL, NULL], [0, 1]),
(1, 1, [NULL], []);
CREATE TABLE told(qid BIGINT, high BIGINT, low BIGINT, t1 BIGINT, "until" BIGINT);
INSERT INTO "told" VALUES
(0, -3922763150553276411, -833945507194190358, 1767225601000000, 1767225661000000),
(0, -7122629640115328209, -8681863286351435132, 1767225603000000, 1767225663000000);
CREATE TABLE undelivered(sink VARCHAR, seq BIGINT, id VARCHAR, tries BIGINT, reason VARCHAR, noted_at BIGINT);
CREATE TABLE untold("match" BIGINT, qid BIGINT);
CREATE TABLE variables(var BIGINT, parent BIGINT, stream VARCHAR, definition VARCHAR, node VARCHAR);
INSERT INTO "variables" VALUES
(0, NULL, 'S', '//a', '["//","element","","a",[],[],[]]'),
(1, 0, 'S', '/k', '["/","element","","k",[],[],[]]'),
(2, NULL, 'S', '//b', '["//","element","","b",[],[],[]]'),
(3, 2, 'S', '/k', '["/","element","","k",[],[],[]]'),
(4, NULL, 'pairs', '//match', '["//","element","","match",[],[],[]]');
CREATE TABLE withheld(answer BIGINT, qid BIGINT);
