-- A store of format 4: its outputs have no numbers, and those of the last batch were written and not noted.
CREATE TABLE added_queries(qid BIGINT, "name" VARCHAR, "text" VARCHAR, occurrence BIGINT, "template" BIGINT[], window_us BIGINT, added_at BIGINT, since BIGINT);
INSERT INTO "added_queries" VALUES
(0, 'pairs', 'FROM S//a->x[./k->p] JOIN {p = q or p = r, INF} S//b->y[./k->q][./l->r] PUBLISH pairs', 0, [0], NULL, 1795350136183018, -1),
(1, 'q2', 'FROM S//a->x[./k->p] FOLLOWED BY {p = q, INF} S//b->y[./k->q]', 0, [0], NULL, 1795350136183018, -1),
(2, 'readers', 'FROM pairs//match->m PUBLISH readers', 0, [1], NULL, 1795350136183018, -1),
(3, 'q4', 'FROM S//a->x[./k = "v"]', 0, [1], NULL, 1795350136183018, -1);
CREATE TABLE batches(batch BIGINT, taken_at BIGINT, committed_at BIGINT, documents BIGINT, dead_letters BIGINT, outputs BIGINT);
INSERT INTO "batches" VALUES
(3, 1795350136503128, 1795350136796723, 2, 0, 4),
(4, 1795350136800883, 1795350136825225, 2, 0, 5),
(6, 1795350136836411, 1795350136939363, 1, 0, 5);
CREATE TABLE bound(docid BIGINT, grp INTEGER, node1 BIGINT, node2 BIGINT);
INSERT INTO "bound" VALUES
(0, 0, 1, 1),
(1, 1, 1, 1),
(1, 2, 2, 2),
(0, 3, 0, 0),
(2, 4, 0, 0),
(4, 1, 1, 1),
(4, 2, 2, 2),
(3, 0, 1, 1),
(5, 4, 0, 0),
(6, 4, 0, 0),
(7, 1, 1, 1),
(7, 2, 2, 2),
(8, 4, 0, 0),
(9, 4, 0, 0);
CREATE TABLE chains("chain" BIGINT, "functions" VARCHAR[]);
CREATE TABLE commands(id VARCHAR, answer VARCHAR, noted_at BIGINT, batch BIGINT);
CREATE TABLE dead_letters(id VARCHAR, stream VARCHAR, "time" BIGINT, reason VARCHAR, raw BLOB, noted_at BIGINT);
CREATE TABLE documents(docid BIGINT, id VARCHAR, stream VARCHAR, t0 BIGINT, t1 BIGINT, "xml" VARCHAR, kind VARCHAR, parts BIGINT[], part_ids VARCHAR[], source_ids VARCHAR[], source_streams VARCHAR[], bound_docids BIGINT[], bound_nodes BIGINT[], arrival BIGINT, appeared BIGINT[]);
INSERT INTO "documents" VALUES
(0, 'd1', 'S', 1767225601000000, 1767225601000000, '<a><k>v</k></a>', 'external', [0], ['["S", "d1"]'], ['d1'], ['S'], [], [], 0, [0]),
(1, 'd2', 'S', 1767225602000000, 1767225602000000, '<b><k>v</k><l>w</l></b>', 'external', [1], ['["S", "d2"]'], ['d2'], ['S'], [], [], 1, [1]),
(2, '4a1a1f96f91a45ce170019acd669b360', 'pairs', 1767225601000000, 1767225602000000, '<match query="pairs" t0="1767225601000000" t1="1767225602000000"><a><k>v</k></a><b><k>v</k><l>w</l></b></match>', 'published', [2], ['["pairs", "4a1a1f96f91a45ce170019acd669b360"]'], ['d1', 'd2'], ['S', 'S'], [], [], 1, [1]),
(3, 'd3', 'S', 1767225604000000, 1767225604000000, '<a><k>w</k></a>', 'external', [3], ['["S", "d3"]'], ['d3'], ['S'], [], [], 2, [3]),
(4, 'd4', 'S', 1767225603000000, 1767225603000000, '<b><k>v</k><l>v</l></b>', 'external', [4], ['["S", "d4"]'], ['d4'], ['S'], [], [], 3, [4]),
(5, 'a22fb1658b30e6381085a25155e0fab5', 'pairs', 1767225601000000, 1767225603000000, '<match query="pairs" t0="1767225601000000" t1="1767225603000000"><a><k>v</k></a><b><k>v</k><l>v</l></b></match>', 'published', [5], ['["pairs", "a22fb1658b30e6381085a25155e0fab5"]'], ['d1', 'd4'], ['S', 'S'], [], [], 3, [4]),
(6, '87265a17faec35aa7f9623fbb702912c', 'pairs', 1767225602000000, 1767225604000000, '<match query="pairs" t0="1767225602000000" t1="1767225604000000"><a><k>w</k></a><b><k>v</k><l>w</l></b></match>', 'published', [6], ['["pairs", "87265a17faec35aa7f9623fbb702912c"]'], ['d3', 'd2'], ['S', 'S'], [], [], 2, [3]),
(7, 'd5', 'S', 1767225605000000, 1767225605000000, '<b><k>w</k><l>v</l></b>', 'external', [7], ['["S", "d5"]'], ['d5'], ['S'], [], [], 4, [7]),
(8, '695d48af104faeb118f94513cc42a2fb', 'pairs', 1767225601000000, 1767225605000000, '<match query="pairs" t0="1767225601000000" t1="1767225605000000"><a><k>v</k></a><b><k>w</k><l>v</l></b></match>', 'published', [8], ['["pairs", "695d48af104faeb118f94513cc42a2fb"]'], ['d1', 'd5'], ['S', 'S'], [], [], 4, [7]),
(9, 'bdbfa3e4b3bd6a61906bb08bfd5692c2', 'pairs', 1767225604000000, 1767225605000000, '<match query="pairs" t0="1767225604000000" t1="1767225605000000"><a><k>w</k></a><b><k>w</k><l>v</l></b></match>', 'published', [9], ['["pairs", "bdbfa3e4b3bd6a61906bb08bfd5692c2"]'], ['d3', 'd5'], ['S', 'S'], [], [], 4, [7]);
CREATE TABLE dropped_ids(id VARCHAR, stream VARCHAR, t1 BIGINT);
CREATE TABLE "groups"(grp INTEGER, var1 INTEGER, var2 INTEGER);
INSERT INTO "groups" VALUES
(0, 1, 1),
(1, 3, 3),
(1, 7, 7),
(2, 5, 5),
(3, 9, 9),
(4, 8, 8);
CREATE TABLE inner_placements(qid BIGINT, stream VARCHAR, "template" BIGINT, variables BIGINT[], window_us BIGINT, place BIGINT, op VARCHAR, streams VARCHAR[]);
CREATE TABLE match_queries("match" BIGINT, query VARCHAR, qid BIGINT);
INSERT INTO "match_queries" VALUES
(0, 'q4', 3),
(1, 'pairs', 0),
(2, 'q2', 1),
(3, 'readers', 2),
(4, 'pairs', 0),
(5, 'q2', 1),
(6, 'pairs', 0),
(7, 'readers', 2),
(8, 'readers', 2),
(9, 'pairs', 0),
(10, 'pairs', 0),
(11, 'q2', 1),
(12, 'readers', 2),
(13, 'readers', 2);
CREATE TABLE match_rows("match" BIGINT, "template" BIGINT, docid1 BIGINT, docid2 BIGINT, t0 BIGINT, t1 BIGINT, bindings BIGINT[]);
INSERT INTO "match_rows" VALUES
(0, 1, 0, NULL, 1767225601000000, 1767225601000000, [0]),
(1, 0, 0, 1, 1767225601000000, 1767225602000000, [1, 1]),
(2, 0, 0, 1, 1767225601000000, 1767225602000000, [1, 1]),
(3, 1, 2, NULL, 1767225601000000, 1767225602000000, [0]),
(4, 0, 0, 4, 1767225601000000, 1767225603000000, [1, 1]),
(5, 0, 0, 4, 1767225601000000, 1767225603000000, [1, 1]),
(6, 0, 3, 1, 1767225602000000, 1767225604000000, [1, 2]),
(7, 1, 5, NULL, 1767225601000000, 1767225603000000, [0]),
(8, 1, 6, NULL, 1767225602000000, 1767225604000000, [0]),
(9, 0, 0, 7, 1767225601000000, 1767225605000000, [1, 2]),
(10, 0, 3, 7, 1767225604000000, 1767225605000000, [1, 1]),
(11, 0, 3, 7, 1767225604000000, 1767225605000000, [1, 1]),
(12, 1, 8, NULL, 1767225601000000, 1767225605000000, [0]),
(13, 1, 9, NULL, 1767225604000000, 1767225605000000, [0]);
CREATE TABLE offsets("source" VARCHAR, file VARCHAR, "position" BIGINT, batch BIGINT, mark VARCHAR);
CREATE TABLE outputs(query VARCHAR, t0 BIGINT, t1 BIGINT, documents VARCHAR[], streams VARCHAR[], nodes VARCHAR, "xml" VARCHAR, batch BIGINT);
INSERT INTO "outputs" VALUES
('q4', 1767225601000000, 1767225601000000, ['d1'], ['S'], '{"x": 0}', '<match query="q4" t0="1767225601000000" t1="1767225601000000"><a><k>v</k></a></match>', 3),
('pairs', 1767225601000000, 1767225602000000, ['d1', 'd2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="pairs" t0="1767225601000000" t1="1767225602000000"><a><k>v</k></a><b><k>v</k><l>w</l></b></match>', 3),
('q2', 1767225601000000, 1767225602000000, ['d1', 'd2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="q2" t0="1767225601000000" t1="1767225602000000"><a><k>v</k></a><b><k>v</k><l>w</l></b></match>', 3),
('readers', 1767225601000000, 1767225602000000, ['d1', 'd2'], ['S', 'S'], '{"m": 0}', '<match query="readers" t0="1767225601000000" t1="1767225602000000"><match query="pairs" t0="1767225601000000" t1="1767225602000000"><a><k>v</k></a><b><k>v</k><l>w</l></b></match></match>', 3),
('pairs', 1767225601000000, 1767225603000000, ['d1', 'd4'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="pairs" t0="1767225601000000" t1="1767225603000000"><a><k>v</k></a><b><k>v</k><l>v</l></b></match>', 4),
('q2', 1767225601000000, 1767225603000000, ['d1', 'd4'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="q2" t0="1767225601000000" t1="1767225603000000"><a><k>v</k></a><b><k>v</k><l>v</l></b></match>', 4),
('pairs', 1767225602000000, 1767225604000000, ['d3', 'd2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="pairs" t0="1767225602000000" t1="1767225604000000"><a><k>w</k></a><b><k>v</k><l>w</l></b></match>', 4),
('readers', 1767225601000000, 1767225603000000, ['d1', 'd4'], ['S', 'S'], '{"m": 0}', '<match query="readers" t0="1767225601000000" t1="1767225603000000"><match query="pairs" t0="1767225601000000" t1="1767225603000000"><a><k>v</k></a><b><k>v</k><l>v</l></b></match></match>', 4),
('readers', 1767225602000000, 1767225604000000, ['d3', 'd2'], ['S', 'S'], '{"m": 0}', '<match query="readers" t0="1767225602000000" t1="1767225604000000"><match query="pairs" t0="1767225602000000" t1="1767225604000000"><a><k>w</k></a><b><k>v</k><l>w</l></b></match></match>', 4),
('pairs', 1767225601000000, 1767225605000000, ['d1', 'd5'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="pairs" t0="1767225601000000" t1="1767225605000000"><a><k>v</k></a><b><k>w</k><l>v</l></b></match>', 6),
('pairs', 1767225604000000, 1767225605000000, ['d3', 'd5'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="pairs" t0="1767225604000000" t1="1767225605000000"><a><k>w</k></a><b><k>w</k><l>v</l></b></match>', 6),
('q2', 1767225604000000, 1767225605000000, ['d3', 'd5'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="q2" t0="1767225604000000" t1="1767225605000000"><a><k>w</k></a><b><k>w</k><l>v</l></b></match>', 6),
('readers', 1767225601000000, 1767225605000000, ['d1', 'd5'], ['S', 'S'], '{"m": 0}', '<match query="readers" t0="1767225601000000" t1="1767225605000000"><match query="pairs" t0="1767225601000000" t1="1767225605000000"><a><k>v</k></a><b><k>w</k><l>v</l></b></match></match>', 6),
('readers', 1767225604000000, 1767225605000000, ['d3', 'd5'], ['S', 'S'], '{"m": 0}', '<match query="readers" t0="1767225604000000" t1="1767225605000000"><match query="pairs" t0="1767225604000000" t1="1767225605000000"><a><k>w</k></a><b><k>w</k><l>v</l></b></match></match>', 6);
CREATE TABLE pauses(qid BIGINT, docid BIGINT, reason VARCHAR, noted_at BIGINT, batch BIGINT);
CREATE TABLE placements(qid BIGINT, "template" BIGINT, variables BIGINT[], window_us BIGINT, place BIGINT, op VARCHAR, streams VARCHAR[]);
INSERT INTO "placements" VALUES
(0, 0, [1, 3], NULL, 0, 'JOIN', ['S', 'S']),
(0, 0, [1, 5], NULL, 1, 'JOIN', ['S', 'S']),
(1, 0, [1, 7], NULL, 0, 'FOLLOWED BY', ['S', 'S']),
(2, 1, [8], NULL, 0, NULL, ['pairs']),
(3, 1, [9], NULL, 0, NULL, ['S']);
CREATE TABLE r_doc(docid BIGINT, node BIGINT, strval VARCHAR, stream VARCHAR);
INSERT INTO "r_doc" VALUES
(0, 1, 'v', 'S'),
(1, 1, 'v', 'S'),
(1, 2, 'w', 'S'),
(4, 1, 'v', 'S'),
(4, 2, 'v', 'S'),
(3, 1, 'w', 'S'),
(7, 1, 'w', 'S'),
(7, 2, 'v', 'S');
CREATE TABLE r_docts(docid BIGINT, "timestamp" BIGINT, t0 BIGINT, t1 BIGINT);
INSERT INTO "r_docts" VALUES
(0, 1767225601000000, 1767225601000000, 1767225601000000),
(1, 1767225602000000, 1767225602000000, 1767225602000000),
(2, 1767225601000000, 1767225601000000, 1767225602000000),
(3, 1767225604000000, 1767225604000000, 1767225604000000),
(4, 1767225603000000, 1767225603000000, 1767225603000000),
(5, 1767225601000000, 1767225601000000, 1767225603000000),
(6, 1767225602000000, 1767225602000000, 1767225604000000),
(7, 1767225605000000, 1767225605000000, 1767225605000000),
(8, 1767225601000000, 1767225601000000, 1767225605000000),
(9, 1767225604000000, 1767225604000000, 1767225605000000);
CREATE TABLE removed_queries(qid BIGINT, removed_at BIGINT);
CREATE TABLE settings("key" VARCHAR, "value" VARCHAR, batch BIGINT);
INSERT INTO "settings" VALUES
('schema_version', '4', 0),
('delivered', '-1', 2),
('written', '{"file": "OUT", "inode": 4711, "bytes": 0}', 2),
('delivered', '4', 5),
('written', '{"file": "OUT", "inode": 4711, "bytes": 2613}', 5),
('costs', '{"plan": "signature", "templates": {"0": {"seconds": 0.00020719899998766778, "matches": 3, "templates": [0]}}}', 7);
CREATE TABLE spent("owner" VARCHAR, arrival BIGINT, outputs BIGINT, "work" BIGINT, batch BIGINT);
INSERT INTO "spent" VALUES
('3', 1, 1, 7, 3),
('0', 1, 1, 30, 3),
('1', 1, 1, 28, 3),
('2', 1, 1, 13, 3),
('0', 3, 2, 82, 4),
('1', 3, 1, 28, 4),
('2', 3, 2, 26, 4),
('0', 4, 2, 59, 6),
('1', 4, 1, 28, 6),
('2', 4, 2, 26, 6);
CREATE TABLE templates("template" BIGINT, left_nodes BIGINT, parents BIGINT[], joins BIGINT[]);
INSERT INTO "templates" VALUES
(0, 1, [NULL, NULL], [0, 1]),
(1, 1, [NULL], []);
CREATE TABLE variables(var BIGINT, parent BIGINT, stream VARCHAR, definition VARCHAR, node VARCHAR);
INSERT INTO "variables" VALUES
(0, NULL, 'S', '//a', '["//","element","","a",[],[],[]]'),
(1, 0, 'S', '/k', '["/","element","","k",[],[],[]]'),
(2, NULL, 'S', '//b[./l]', '["//","element","","b",[],[["/","element","","l",[],[],[]]],[]]'),
(3, 2, 'S', '/k', '["/","element","","k",[],[],[]]'),
(4, NULL, 'S', '//b[./k]', '["//","element","","b",[],[["/","element","","k",[],[],[]]],[]]'),
(5, 4, 'S', '/l', '["/","element","","l",[],[],[]]'),
(6, NULL, 'S', '//b', '["//","element","","b",[],[],[]]'),
(7, 6, 'S', '/k', '["/","element","","k",[],[],[]]'),
(8, NULL, 'pairs', '//match', '["//","element","","match",[],[],[]]'),
(9, NULL, 'S', '//a[./k[. = "v"]]', '["//","element","","a",[],[["/","element","","k",[["=","v"]],[],[]]],[]]');
