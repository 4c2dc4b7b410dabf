-- A store of format 5: its outputs are stored one by one, and queries have no forms.
CREATE TABLE added_queries(qid BIGINT, "name" VARCHAR, "text" VARCHAR, occurrence BIGINT, "template" BIGINT[], window_us BIGINT, added_at BIGINT, since BIGINT);
INSERT INTO "added_queries" VALUES
(0, 'pairs', 'FROM S//a->x[./k->p] JOIN {p = q, 1 min} S//b->y[./k->q] PUBLISH pairs', 0, [0], 60000000, 1795379885481348, -1),
(1, 'q2', 'FROM S//a->x[./k->p] FOLLOWED BY {p = q, INF} S//b->y[./k->q]', 0, [0], NULL, 1795379885481348, -1),
(2, 'readers', 'FROM pairs//match->m PUBLISH readers', 0, [1], NULL, 1795379885481348, -1),
(3, 'narrow', 'FROM S//a->x[./k->p] JOIN {p = q, 20 s} S//b->y[./k->q] PUBLISH narrow', 0, [0], 20000000, 1795379885904228, -1),
(4, 'late', 'FROM S//a->x[./k->p] JOIN {p = q, 1 min} S//b->y[./k->q] PUBLISH late', 0, [0], 60000000, 1795379886585845, -1);
CREATE TABLE batches(batch BIGINT, taken_at BIGINT, committed_at BIGINT, documents BIGINT, dead_letters BIGINT, outputs BIGINT);
INSERT INTO "batches" VALUES
(3, 1795379885954032, 1795379886285678, 2, 0, 4),
(5, 1795379886322068, 1795379886526194, 2, 0, 8),
(7, 1795379886601017, 1795379887353133, 0, 0, 4),
(9, 1795379887401872, 1795379887582483, 1, 0, 6);
CREATE TABLE bound(docid BIGINT, grp INTEGER, node1 BIGINT, node2 BIGINT);
INSERT INTO "bound" VALUES
(0, 0, 1, 1),
(1, 1, 1, 1),
(2, 2, 0, 0),
(3, 0, 1, 1),
(4, 1, 1, 1),
(5, 2, 0, 0),
(6, 2, 0, 0),
(7, 2, 0, 0),
(8, 1, 1, 1);
CREATE TABLE chains("chain" BIGINT, "functions" VARCHAR[]);
CREATE TABLE commands(id VARCHAR, answer VARCHAR, noted_at BIGINT, batch BIGINT);
CREATE TABLE dead_letters(id VARCHAR, stream VARCHAR, "time" BIGINT, reason VARCHAR, raw BLOB, noted_at BIGINT);
CREATE TABLE documents(docid BIGINT, id VARCHAR, stream VARCHAR, t0 BIGINT, t1 BIGINT, "xml" VARCHAR, kind VARCHAR, parts BIGINT[], part_ids VARCHAR[], source_ids VARCHAR[], source_streams VARCHAR[], bound_docids BIGINT[], bound_nodes BIGINT[], arrival BIGINT, appeared BIGINT[]);
INSERT INTO "documents" VALUES
(0, 'a1', 'S', 1767225601000000, 1767225601000000, '<a><k>v</k></a>', 'external', [0], ['["S", "a1"]'], ['a1'], ['S'], [], [], 0, [0]),
(1, 'b2', 'S', 1767225602000000, 1767225602000000, '<b><k>v</k></b>', 'external', [1], ['["S", "b2"]'], ['b2'], ['S'], [], [], 1, [1]),
(2, 'e06f08cecf5ab0c38dfddd3eec88b3ae', 'pairs', 1767225601000000, 1767225602000000, '<match query="pairs" t0="1767225601000000" t1="1767225602000000"><a><k>v</k></a><b><k>v</k></b></match>', 'published', [2], ['["pairs", "e06f08cecf5ab0c38dfddd3eec88b3ae"]'], ['a1', 'b2'], ['S', 'S'], [], [], 1, [1]),
(3, 'a3', 'S', 1767225603000000, 1767225603000000, '<a><k>v</k></a>', 'external', [3], ['["S", "a3"]'], ['a3'], ['S'], [], [], 2, [3]),
(4, 'b30', 'S', 1767225630000000, 1767225630000000, '<b><k>v</k></b>', 'external', [4], ['["S", "b30"]'], ['b30'], ['S'], [], [], 3, [4]),
(5, 'd05092e17adbeb1c5d71f4e68ae3af33', 'pairs', 1767225603000000, 1767225630000000, '<match query="pairs" t0="1767225603000000" t1="1767225630000000"><a><k>v</k></a><b><k>v</k></b></match>', 'published', [5], ['["pairs", "d05092e17adbeb1c5d71f4e68ae3af33"]'], ['a3', 'b30'], ['S', 'S'], [], [], 3, [4]),
(6, '4766c4274242820891562f3e94e14a90', 'pairs', 1767225601000000, 1767225630000000, '<match query="pairs" t0="1767225601000000" t1="1767225630000000"><a><k>v</k></a><b><k>v</k></b></match>', 'published', [6], ['["pairs", "4766c4274242820891562f3e94e14a90"]'], ['a1', 'b30'], ['S', 'S'], [], [], 3, [4]),
(7, 'c06085da3a972440d609b34fe55b3f33', 'pairs', 1767225602000000, 1767225603000000, '<match query="pairs" t0="1767225602000000" t1="1767225603000000"><a><k>v</k></a><b><k>v</k></b></match>', 'published', [7], ['["pairs", "c06085da3a972440d609b34fe55b3f33"]'], ['a3', 'b2'], ['S', 'S'], [], [], 2, [3]),
(8, 'b31', 'S', 1767225631000000, 1767225631000000, '<b><k>v</k></b>', 'external', [8], ['["S", "b31"]'], ['b31'], ['S'], [], [], 4, [8]);
CREATE TABLE dropped_ids(id VARCHAR, stream VARCHAR, t1 BIGINT);
CREATE TABLE "groups"(grp INTEGER, var1 INTEGER, var2 INTEGER);
INSERT INTO "groups" VALUES
(0, 1, 1),
(1, 3, 3),
(2, 4, 4);
CREATE TABLE inner_placements(qid BIGINT, stream VARCHAR, "template" BIGINT, variables BIGINT[], window_us BIGINT, place BIGINT, op VARCHAR, streams VARCHAR[]);
CREATE TABLE match_queries("match" BIGINT, query VARCHAR, qid BIGINT);
INSERT INTO "match_queries" VALUES
(0, 'q2', 1),
(0, 'pairs', 0),
(0, 'narrow', 3),
(1, 'readers', 2),
(2, 'q2', 1),
(2, 'pairs', 0),
(3, 'q2', 1),
(3, 'pairs', 0),
(4, 'pairs', 0),
(5, 'readers', 2),
(6, 'readers', 2),
(7, 'readers', 2),
(8, 'late', 4),
(9, 'late', 4),
(10, 'late', 4),
(11, 'late', 4),
(12, 'q2', 1),
(12, 'pairs', 0),
(12, 'late', 4),
(13, 'q2', 1),
(13, 'pairs', 0),
(13, 'late', 4);
CREATE TABLE match_rows("match" BIGINT, "template" BIGINT, docid1 BIGINT, docid2 BIGINT, t0 BIGINT, t1 BIGINT, bindings BIGINT[]);
INSERT INTO "match_rows" VALUES
(0, 0, 0, 1, 1767225601000000, 1767225602000000, [1, 1]),
(1, 1, 2, NULL, 1767225601000000, 1767225602000000, [0]),
(2, 0, 3, 4, 1767225603000000, 1767225630000000, [1, 1]),
(3, 0, 0, 4, 1767225601000000, 1767225630000000, [1, 1]),
(4, 0, 3, 1, 1767225602000000, 1767225603000000, [1, 1]),
(5, 1, 5, NULL, 1767225603000000, 1767225630000000, [0]),
(6, 1, 6, NULL, 1767225601000000, 1767225630000000, [0]),
(7, 1, 7, NULL, 1767225602000000, 1767225603000000, [0]),
(8, 0, 0, 1, 1767225601000000, 1767225602000000, [1, 1]),
(9, 0, 3, 1, 1767225602000000, 1767225603000000, [1, 1]),
(10, 0, 0, 4, 1767225601000000, 1767225630000000, [1, 1]),
(11, 0, 3, 4, 1767225603000000, 1767225630000000, [1, 1]),
(12, 0, 0, 8, 1767225601000000, 1767225631000000, [1, 1]),
(13, 0, 3, 8, 1767225603000000, 1767225631000000, [1, 1]);
CREATE TABLE offsets("source" VARCHAR, file VARCHAR, "position" BIGINT, batch BIGINT, mark VARCHAR);
CREATE TABLE output_matches(seq BIGINT, "match" BIGINT);
INSERT INTO "output_matches" VALUES
(0, 0),
(1, 0),
(2, 0),
(3, 1),
(4, 4),
(5, 7),
(6, 3),
(7, 2),
(8, 3),
(9, 2),
(10, 6),
(11, 5),
(12, 8),
(13, 9),
(14, 10),
(15, 11),
(16, 12),
(17, 13),
(18, 12),
(19, 13),
(20, 12),
(21, 13);
CREATE TABLE outputs(query VARCHAR, t0 BIGINT, t1 BIGINT, documents VARCHAR[], streams VARCHAR[], nodes VARCHAR, "xml" VARCHAR, batch BIGINT, seq BIGINT, id VARCHAR);
INSERT INTO "outputs" VALUES
('narrow', 1767225601000000, 1767225602000000, ['a1', 'b2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="narrow" t0="1767225601000000" t1="1767225602000000"><a><k>v</k></a><b><k>v</k></b></match>', 3, 0, '1078a6e94e2525311d542a26fa38f7db'),
('pairs', 1767225601000000, 1767225602000000, ['a1', 'b2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="pairs" t0="1767225601000000" t1="1767225602000000"><a><k>v</k></a><b><k>v</k></b></match>', 3, 1, 'e06f08cecf5ab0c38dfddd3eec88b3ae'),
('q2', 1767225601000000, 1767225602000000, ['a1', 'b2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="q2" t0="1767225601000000" t1="1767225602000000"><a><k>v</k></a><b><k>v</k></b></match>', 3, 2, '1212c75a63b3458d73b76a98afc32e31'),
('readers', 1767225601000000, 1767225602000000, ['a1', 'b2'], ['S', 'S'], '{"m": 0}', '<match query="readers" t0="1767225601000000" t1="1767225602000000"><match query="pairs" t0="1767225601000000" t1="1767225602000000"><a><k>v</k></a><b><k>v</k></b></match></match>', 3, 3, '4ca57e817fca4cdbe0992bfa490a66ed'),
('pairs', 1767225602000000, 1767225603000000, ['a3', 'b2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="pairs" t0="1767225602000000" t1="1767225603000000"><a><k>v</k></a><b><k>v</k></b></match>', 5, 4, 'c06085da3a972440d609b34fe55b3f33'),
('readers', 1767225602000000, 1767225603000000, ['a3', 'b2'], ['S', 'S'], '{"m": 0}', '<match query="readers" t0="1767225602000000" t1="1767225603000000"><match query="pairs" t0="1767225602000000" t1="1767225603000000"><a><k>v</k></a><b><k>v</k></b></match></match>', 5, 5, '7daadfb8efc7a702f85e0ec3edb39c81'),
('pairs', 1767225601000000, 1767225630000000, ['a1', 'b30'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="pairs" t0="1767225601000000" t1="1767225630000000"><a><k>v</k></a><b><k>v</k></b></match>', 5, 6, '4766c4274242820891562f3e94e14a90'),
('pairs', 1767225603000000, 1767225630000000, ['a3', 'b30'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="pairs" t0="1767225603000000" t1="1767225630000000"><a><k>v</k></a><b><k>v</k></b></match>', 5, 7, 'd05092e17adbeb1c5d71f4e68ae3af33'),
('q2', 1767225601000000, 1767225630000000, ['a1', 'b30'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="q2" t0="1767225601000000" t1="1767225630000000"><a><k>v</k></a><b><k>v</k></b></match>', 5, 8, '66476e98c36575bd5ba6c14def25d859'),
('q2', 1767225603000000, 1767225630000000, ['a3', 'b30'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="q2" t0="1767225603000000" t1="1767225630000000"><a><k>v</k></a><b><k>v</k></b></match>', 5, 9, '0f3e9e8e3669e4b03761abe69b1e0757'),
('readers', 1767225601000000, 1767225630000000, ['a1', 'b30'], ['S', 'S'], '{"m": 0}', '<match query="readers" t0="1767225601000000" t1="1767225630000000"><match query="pairs" t0="1767225601000000" t1="1767225630000000"><a><k>v</k></a><b><k>v</k></b></match></match>', 5, 10, 'f17e3e2910faf98ecdeb884e66a3a46b'),
('readers', 1767225603000000, 1767225630000000, ['a3', 'b30'], ['S', 'S'], '{"m": 0}', '<match query="readers" t0="1767225603000000" t1="1767225630000000"><match query="pairs" t0="1767225603000000" t1="1767225630000000"><a><k>v</k></a><b><k>v</k></b></match></match>', 5, 11, '768a176d3f7ad6b54205cbe821698e7a'),
('late', 1767225601000000, 1767225602000000, ['a1', 'b2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="late" t0="1767225601000000" t1="1767225602000000"><a><k>v</k></a><b><k>v</k></b></match>', 7, 12, '919c054a9d1b382fb0b9c75c726b47fc'),
('late', 1767225602000000, 1767225603000000, ['a3', 'b2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="late" t0="1767225602000000" t1="1767225603000000"><a><k>v</k></a><b><k>v</k></b></match>', 7, 13, '3fdf6559e5d4d342c0a8cb570b81e1c9'),
('late', 1767225601000000, 1767225630000000, ['a1', 'b30'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="late" t0="1767225601000000" t1="1767225630000000"><a><k>v</k></a><b><k>v</k></b></match>', 7, 14, '3463b1559b22c02b0a0d1a3b67399374'),
('late', 1767225603000000, 1767225630000000, ['a3', 'b30'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="late" t0="1767225603000000" t1="1767225630000000"><a><k>v</k></a><b><k>v</k></b></match>', 7, 15, 'db1b14e672a28a64634ea0b00a7cb2bf'),
('late', 1767225601000000, 1767225631000000, ['a1', 'b31'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="late" t0="1767225601000000" t1="1767225631000000"><a><k>v</k></a><b><k>v</k></b></match>', 9, 16, '4f0f3f6ff92b771d92b67eaf8814c5d6'),
('late', 1767225603000000, 1767225631000000, ['a3', 'b31'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="late" t0="1767225603000000" t1="1767225631000000"><a><k>v</k></a><b><k>v</k></b></match>', 9, 17, '67f04b3bc8d9f14b1c410f39e07581a4'),
('pairs', 1767225601000000, 1767225631000000, ['a1', 'b31'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="pairs" t0="1767225601000000" t1="1767225631000000"><a><k>v</k></a><b><k>v</k></b></match>', 9, 18, 'e6b150180528587e538a3835bf2f7a8b'),
('pairs', 1767225603000000, 1767225631000000, ['a3', 'b31'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="pairs" t0="1767225603000000" t1="1767225631000000"><a><k>v</k></a><b><k>v</k></b></match>', 9, 19, 'c19c08ceab8ddedfcfc43eebe5d6b020'),
('q2', 1767225601000000, 1767225631000000, ['a1', 'b31'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="q2" t0="1767225601000000" t1="1767225631000000"><a><k>v</k></a><b><k>v</k></b></match>', 9, 20, 'ebb8b6dfe7368eca2c6408bb384b3914'),
('q2', 1767225603000000, 1767225631000000, ['a3', 'b31'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="q2" t0="1767225603000000" t1="1767225631000000"><a><k>v</k></a><b><k>v</k></b></match>', 9, 21, 'd67f837fc60012aac3f143ebb9f73fde');
CREATE TABLE pauses(qid BIGINT, docid BIGINT, reason VARCHAR, noted_at BIGINT, batch BIGINT);
INSERT INTO "pauses" VALUES
(3, 2, 'asked to', 1795379886306333, 4),
(3, 7, NULL, 1795379886566104, 6);
CREATE TABLE placements(qid BIGINT, "template" BIGINT, variables BIGINT[], window_us BIGINT, place BIGINT, op VARCHAR, streams VARCHAR[]);
INSERT INTO "placements" VALUES
(0, 0, [1, 3], 60000000, 0, 'JOIN', ['S', 'S']),
(1, 0, [1, 3], NULL, 0, 'FOLLOWED BY', ['S', 'S']),
(2, 1, [4], NULL, 0, NULL, ['pairs']),
(3, 0, [1, 3], 20000000, 0, 'JOIN', ['S', 'S']),
(4, 0, [1, 3], 60000000, 0, 'JOIN', ['S', 'S']);
CREATE TABLE r_doc(docid BIGINT, node BIGINT, strval VARCHAR, stream VARCHAR);
INSERT INTO "r_doc" VALUES
(0, 1, 'v', 'S'),
(1, 1, 'v', 'S'),
(3, 1, 'v', 'S'),
(4, 1, 'v', 'S'),
(8, 1, 'v', 'S');
CREATE TABLE r_docts(docid BIGINT, "timestamp" BIGINT, t0 BIGINT, t1 BIGINT);
INSERT INTO "r_docts" VALUES
(0, 1767225601000000, 1767225601000000, 1767225601000000),
(1, 1767225602000000, 1767225602000000, 1767225602000000),
(2, 1767225601000000, 1767225601000000, 1767225602000000),
(3, 1767225603000000, 1767225603000000, 1767225603000000),
(4, 1767225630000000, 1767225630000000, 1767225630000000),
(5, 1767225603000000, 1767225603000000, 1767225630000000),
(6, 1767225601000000, 1767225601000000, 1767225630000000),
(7, 1767225602000000, 1767225602000000, 1767225603000000),
(8, 1767225631000000, 1767225631000000, 1767225631000000);
CREATE TABLE removed_queries(qid BIGINT, removed_at BIGINT);
INSERT INTO "removed_queries" VALUES
(2, 1795379887376884);
CREATE TABLE settings("key" VARCHAR, "value" VARCHAR, batch BIGINT);
INSERT INTO "settings" VALUES
('schema_version', '5', 0),
('costs', '{"plan": "signature", "templates": {"0": {"seconds": 0.00043779299812740646, "matches": 2, "templates": [0]}}}', 10);
CREATE TABLE spent("owner" VARCHAR, arrival BIGINT, outputs BIGINT, "work" BIGINT, batch BIGINT);
INSERT INTO "spent" VALUES
('1', 1, 1, 12, 3),
('0', 1, 1, 12, 3),
('3', 1, 1, 12, 3),
('2', 1, 1, 14, 3),
('1', 3, 2, 24, 5),
('0', 3, 3, 36, 5),
('2', 3, 3, 42, 5),
('4', 3, 4, 48, 7),
('1', 4, 2, 24, 9),
('0', 4, 2, 24, 9),
('4', 4, 2, 24, 9);
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
