-- A store of format 3: two processes wrote it, each of which numbered functions as it met them; one query is removed.
CREATE TABLE added_queries(qid BIGINT, "name" VARCHAR, "text" VARCHAR, occurrence BIGINT, "template" BIGINT[], window_us BIGINT, added_at BIGINT, since BIGINT);
INSERT INTO "added_queries" VALUES
(0, 'lower', 'FROM S//a->x[./k->p] JOIN {lower-case(p) = lower-case(q), INF} S//b->y[./k->q] PUBLISH lower', 0, [0], NULL, 1795321527828392, -1),
(1, 'both', 'FROM S//a->x[./k->p] JOIN {upper-case(normalize-space(p)) = upper-case(normalize-space(q)), INF} S//b->y[./k->q] PUBLISH both', 0, [0], NULL, 1795321528075842, -1),
(2, 'spaced', 'FROM S//a->x[./k->p] JOIN {normalize-space(p) = normalize-space(q), INF} S//b->y[./k->q] PUBLISH spaced', 0, [0], NULL, 1795321538729086, -1);
CREATE TABLE batches(batch BIGINT, taken_at BIGINT, committed_at BIGINT, documents BIGINT, dead_letters BIGINT, outputs BIGINT);
INSERT INTO "batches" VALUES
(3, 1795321528124639, 1795321528279209, 4, 0, 5),
(6, 1795321538751476, 1795321539223588, 0, 0, 2);
CREATE TABLE bound(docid BIGINT, grp INTEGER, node1 BIGINT, node2 BIGINT);
INSERT INTO "bound" VALUES
(2, 0, 4503599627370497, 4503599627370497),
(2, 1, 9007199254740993, 9007199254740993),
(3, 2, 4503599627370497, 4503599627370497),
(3, 3, 9007199254740993, 9007199254740993),
(0, 2, 4503599627370497, 4503599627370497),
(0, 3, 9007199254740993, 9007199254740993),
(1, 0, 4503599627370497, 4503599627370497),
(1, 1, 9007199254740993, 9007199254740993),
(3, 4, 4503599627370497, 4503599627370497),
(2, 5, 4503599627370497, 4503599627370497),
(0, 4, 4503599627370497, 4503599627370497),
(1, 5, 4503599627370497, 4503599627370497);
CREATE TABLE commands(id VARCHAR, answer VARCHAR, noted_at BIGINT, batch BIGINT);
CREATE TABLE dead_letters(id VARCHAR, stream VARCHAR, "time" BIGINT, reason VARCHAR, raw BLOB, noted_at BIGINT);
CREATE TABLE documents(docid BIGINT, id VARCHAR, stream VARCHAR, t0 BIGINT, t1 BIGINT, "xml" VARCHAR, kind VARCHAR, parts BIGINT[], part_ids VARCHAR[], source_ids VARCHAR[], source_streams VARCHAR[], bound_docids BIGINT[], bound_nodes BIGINT[]);
INSERT INTO "documents" VALUES
(0, 'd1', 'S', 1767225601000000, 1767225601000000, '<a><k> Aa</k></a>', 'external', [0], ['["S", "d1"]'], ['d1'], ['S'], [], []),
(1, 'd2', 'S', 1767225602000000, 1767225602000000, '<b><k>aa</k></b>', 'external', [1], ['["S", "d2"]'], ['d2'], ['S'], [], []),
(2, 'd3', 'S', 1767225603000000, 1767225603000000, '<b><k> aa</k></b>', 'external', [2], ['["S", "d3"]'], ['d3'], ['S'], [], []),
(3, 'd4', 'S', 1767225604000000, 1767225604000000, '<a><k>aa </k></a>', 'external', [3], ['["S", "d4"]'], ['d4'], ['S'], [], []);
CREATE TABLE dropped_ids(id VARCHAR, stream VARCHAR, t1 BIGINT);
CREATE TABLE "groups"(grp INTEGER, var1 INTEGER, var2 INTEGER);
INSERT INTO "groups" VALUES
(0, 5, 5),
(1, 7, 7),
(2, 2, 2),
(3, 6, 6),
(4, 8, 8),
(5, 9, 9);
CREATE TABLE inner_placements(qid BIGINT, stream VARCHAR, "template" BIGINT, variables BIGINT[], window_us BIGINT, place BIGINT, op VARCHAR, streams VARCHAR[]);
CREATE TABLE match_queries("match" BIGINT, query VARCHAR, qid BIGINT);
INSERT INTO "match_queries" VALUES
(0, 'lower', 0),
(1, 'both', 1),
(2, 'both', 1),
(3, 'both', 1),
(4, 'both', 1),
(5, 'spaced', 2),
(6, 'spaced', 2);
CREATE TABLE match_rows("match" BIGINT, "template" BIGINT, docid1 BIGINT, docid2 BIGINT, t0 BIGINT, t1 BIGINT, bindings BIGINT[]);
INSERT INTO "match_rows" VALUES
(0, 0, 0, 2, 1767225601000000, 1767225603000000, [4503599627370497, 4503599627370497]),
(1, 0, 0, 1, 1767225601000000, 1767225602000000, [9007199254740993, 9007199254740993]),
(2, 0, 3, 1, 1767225602000000, 1767225604000000, [9007199254740993, 9007199254740993]),
(3, 0, 0, 2, 1767225601000000, 1767225603000000, [9007199254740993, 9007199254740993]),
(4, 0, 3, 2, 1767225603000000, 1767225604000000, [9007199254740993, 9007199254740993]),
(5, 0, 3, 1, 1767225602000000, 1767225604000000, [4503599627370497, 4503599627370497]),
(6, 0, 3, 2, 1767225603000000, 1767225604000000, [4503599627370497, 4503599627370497]);
CREATE TABLE offsets("source" VARCHAR, file VARCHAR, "position" BIGINT, batch BIGINT);
CREATE TABLE outputs(query VARCHAR, t0 BIGINT, t1 BIGINT, documents VARCHAR[], streams VARCHAR[], nodes VARCHAR, "xml" VARCHAR, batch BIGINT);
INSERT INTO "outputs" VALUES
('lower', 1767225601000000, 1767225603000000, ['d1', 'd3'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="lower" t0="1767225601000000" t1="1767225603000000"><a><k> Aa</k></a><b><k> aa</k></b></match>', 3),
('both', 1767225601000000, 1767225602000000, ['d1', 'd2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="both" t0="1767225601000000" t1="1767225602000000"><a><k> Aa</k></a><b><k>aa</k></b></match>', 3),
('both', 1767225602000000, 1767225604000000, ['d4', 'd2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="both" t0="1767225602000000" t1="1767225604000000"><a><k>aa </k></a><b><k>aa</k></b></match>', 3),
('both', 1767225601000000, 1767225603000000, ['d1', 'd3'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="both" t0="1767225601000000" t1="1767225603000000"><a><k> Aa</k></a><b><k> aa</k></b></match>', 3),
('both', 1767225603000000, 1767225604000000, ['d4', 'd3'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="both" t0="1767225603000000" t1="1767225604000000"><a><k>aa </k></a><b><k> aa</k></b></match>', 3),
('spaced', 1767225602000000, 1767225604000000, ['d4', 'd2'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="spaced" t0="1767225602000000" t1="1767225604000000"><a><k>aa </k></a><b><k>aa</k></b></match>', 6),
('spaced', 1767225603000000, 1767225604000000, ['d4', 'd3'], ['S', 'S'], '{"x": 0, "y": 0}', '<match query="spaced" t0="1767225603000000" t1="1767225604000000"><a><k>aa </k></a><b><k> aa</k></b></match>', 6);
CREATE TABLE pauses(qid BIGINT, docid BIGINT, reason VARCHAR, noted_at BIGINT, batch BIGINT);
CREATE TABLE placements(qid BIGINT, "template" BIGINT, variables BIGINT[], window_us BIGINT, place BIGINT, op VARCHAR, streams VARCHAR[]);
INSERT INTO "placements" VALUES
(0, 0, [2, 5], NULL, 0, 'JOIN', ['S', 'S']),
(1, 0, [6, 7], NULL, 0, 'JOIN', ['S', 'S']),
(2, 0, [8, 9], NULL, 0, 'JOIN', ['S', 'S']);
CREATE TABLE r_doc(docid BIGINT, node BIGINT, strval VARCHAR, stream VARCHAR);
INSERT INTO "r_doc" VALUES
(2, 4503599627370497, ' aa', 'S'),
(2, 9007199254740993, 'AA', 'S'),
(3, 4503599627370497, 'aa ', 'S'),
(3, 9007199254740993, 'AA', 'S'),
(0, 4503599627370497, ' aa', 'S'),
(0, 9007199254740993, 'AA', 'S'),
(1, 4503599627370497, 'aa', 'S'),
(1, 9007199254740993, 'AA', 'S');
CREATE TABLE r_docts(docid BIGINT, "timestamp" BIGINT, t0 BIGINT, t1 BIGINT);
INSERT INTO "r_docts" VALUES
(0, 1767225601000000, 1767225601000000, 1767225601000000),
(1, 1767225602000000, 1767225602000000, 1767225602000000),
(2, 1767225603000000, 1767225603000000, 1767225603000000),
(3, 1767225604000000, 1767225604000000, 1767225604000000);
CREATE TABLE removed_queries(qid BIGINT, removed_at BIGINT);
INSERT INTO "removed_queries" VALUES
(1, 1795321528317559);
CREATE TABLE settings("key" VARCHAR, "value" VARCHAR, batch BIGINT);
INSERT INTO "settings" VALUES
('schema_version', '3', 0),
('costs', '{"plan": "signature", "templates": {"0": {"seconds": 0.0006899170000451704, "matches": 5, "templates": [0]}}}', 5);
CREATE TABLE templates("template" BIGINT, left_nodes BIGINT, parents BIGINT[], joins BIGINT[]);
INSERT INTO "templates" VALUES
(0, 1, [NULL, NULL], [0, 1]);
CREATE TABLE variables(var BIGINT, parent BIGINT, stream VARCHAR, definition VARCHAR, node VARCHAR);
INSERT INTO "variables" VALUES
(0, NULL, 'S', '//a', '["//","element","","a",[],[],[]]'),
(1, 0, 'S', '/k', '["/","element","","k",[],[],[]]'),
(2, 1, 'S', '.[lower-case]', '[".","element","*","*",[],[],["lower-case"]]'),
(3, NULL, 'S', '//b', '["//","element","","b",[],[],[]]'),
(4, 3, 'S', '/k', '["/","element","","k",[],[],[]]'),
(5, 4, 'S', '.[lower-case]', '[".","element","*","*",[],[],["lower-case"]]'),
(6, 1, 'S', '.[normalize-space][upper-case]', '[".","element","*","*",[],[],["normalize-space","upper-case"]]'),
(7, 4, 'S', '.[normalize-space][upper-case]', '[".","element","*","*",[],[],["normalize-space","upper-case"]]'),
(8, 1, 'S', '.[normalize-space]', '[".","element","*","*",[],[],["normalize-space"]]'),
(9, 4, 'S', '.[normalize-space]', '[".","element","*","*",[],[],["normalize-space"]]');
