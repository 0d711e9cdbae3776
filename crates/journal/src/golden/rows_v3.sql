-- Rows of a journal of version 3, as its supervisor left them when it was killed. The hashes are
-- those of the description in that version's schema, computed apart from this program.
PRAGMA application_id = 0x6d727368;
PRAGMA user_version = 3;

INSERT INTO epochs (epoch, started_at_us, pid, version) VALUES
    (1, 1000, 11, '0.1.0'),
    (2, 2000, 12, '0.1.0');

INSERT INTO runs (run, epoch, command, begun_at_us, ended_at_us, code) VALUES
    ('daemon', 2, 'up', 2001, NULL, NULL),
    ('over', 1, 'run', 1001, 1900, 1);

INSERT INTO tasks (run, id, place, pool, prompt, spec, state, outcome, detail, attempts, slot, session, queued_at_us, begun_at_us, ended_at_us, result) VALUES
    ('over', 't1', 0, 'demo', 'read it''s é', '{"id":"t1"}', 'ended', 'done', '', 1, 0, 'ended', 1002, 1003, 1800, '{"v":1}'),
    ('over', 't2', 1, 'demo', 'later', '{"id":"t2"}', 'ended', 'skipped', 'the run was stopped', 0, NULL, NULL, 1002, NULL, 1890, NULL),
    ('daemon', 't3', 0, 'other', 'go on', '{"id":"t3"}', 'running', NULL, NULL, 2, 1, 'kept', 2002, 2003, NULL, NULL);

INSERT INTO sessions (session, epoch, pool, slot, run, task, attempt, begun_at_us, ended_at_us, class) VALUES
    ('ended', 1, 'demo', 0, 'over', 't1', 1, 1003, 1800, 'wanted'),
    ('kept', 2, 'other', 1, 'daemon', NULL, 1, 2003, NULL, NULL);

INSERT INTO events (session, seq, epoch, at_us, kind, version, body) VALUES
    ('ended', 1, 1, 1004, 'prompt_accepted', 1, '{"task":"t1","attempt":1,"text":"read"}'),
    ('ended', 2, 1, 1010, 'asked', 1, '{"id":"e-1","key":"key-e-1","tool":"bash","input":{"command":"ls -l"}}'),
    ('ended', 3, 1, 1015, 'decided', 1, '{"ask":"e-1","decision":"allow","by":"policy","rules":["p1/1"],"reason":"so says rule 1"}'),
    ('ended', 4, 1, 1020, 'asked', 1, '{"id":"e-2","key":"key-e-2","tool":"bash","input":{"command":"rm -rf \"ü\""}}'),
    ('ended', 5, 1, 1025, 'decided', 1, '{"ask":"e-2","decision":"deny","by":"human","rules":[],"reason":"a person (uid 0) refused this"}'),
    ('ended', 6, 1, 1700, 'turn_ended', 1, '{"outcome":"completed","usage":{"input":3,"output":4}}'),
    ('kept', 1, 2, 2004, 'prompt_accepted', 1, '{"task":"t3","attempt":2,"text":"go on"}'),
    ('kept', 2, 2, 2010, 'asked', 1, '{"id":"k-1","key":"key-k-1","tool":"write_file","input":{"path":"a"}}'),
    ('kept', 3, 2, 2015, 'decided', 1, '{"ask":"k-1","decision":"allow","by":"policy","rules":["p1/2"],"reason":""}'),
    ('kept', 4, 2, 2020, 'asked', 1, '{"id":"k-2","key":"key-k-2","tool":"bash","input":{"command":"make"}}');

INSERT INTO asks (id, session, asked_seq, decided_seq, request_key, tool_id, tool, input, input_sha256, claimed, asked_at_us, policy, policy_sha256, facts, eval_us, decision, decided_by, rules, reason, decided_at_us, link, prev_hash, hash) VALUES
    ('e-1', 'ended', 2, 3, 'key-e-1', NULL, 'bash', '{"command":"ls -l"}', 'b04dc867981ed3aedb28f325022a51edc29c4f21b9505a953649c2fa43fc2db0', '{"title":"It''s é \u0007"}', 1010, 'developer', '0000000000000000000000000000000000000000000000000000000000000000', '{"argv":["ls"]}', 7, 'allow', 'policy', '["p1/1"]', 'so says rule 1', 1015, 5, 'abf4fed9093ff28acaab8981590a75c32ed74e48588982541454b7c8af2170f4', '9e6f829607c6c91aaaa0dbb343db72172c3ef50f170021f959f30c459df1dea7'),
    ('e-2', 'ended', 4, 5, 'key-e-2', NULL, 'bash', '{"command":"rm -rf \"ü\""}', '775f1b7d2cf67b6b995b0fafe7ca468136741fe9e78dff6b170ce37bee075257', '{"title":"It''s é \u0007"}', 1020, 'developer', '0000000000000000000000000000000000000000000000000000000000000000', '{}', 7, 'deny', 'human', '[]', 'a person (uid 0) refused this', 1025, 6, '9e6f829607c6c91aaaa0dbb343db72172c3ef50f170021f959f30c459df1dea7', '56cb3d88ce783937be4d8343f4cb836cbabb45b8ebc0d3fb132b493223184605'),
    ('k-1', 'kept', 2, 3, 'key-k-1', NULL, 'write_file', '{"path":"a"}', 'fde64ffe7a4a0bbd5d2fe2c294b795808c14bcb57a1d08f1c9dcd59871a020f4', '{"title":"It''s é \u0007"}', 2010, 'developer', '0000000000000000000000000000000000000000000000000000000000000000', '{}', 7, 'allow', 'policy', '["p1/2"]', '', 2015, 7, '56cb3d88ce783937be4d8343f4cb836cbabb45b8ebc0d3fb132b493223184605', 'fbd5f01e4f33bead5dbd1d436ae4db5c36d24a2505250c91872f72c1812c7a5f'),
    ('k-2', 'kept', 4, NULL, 'key-k-2', NULL, 'bash', '{"command":"make"}', '0feeb86e202d4881f7cf17e1c8b466cdf04fb493fc9d370b0539ae9d42b7ab74', '{"title":"It''s é \u0007"}', 2020, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);

INSERT INTO slot_failures (pool, slot, at_us, class, detail) VALUES
    ('demo', 0, 4102444800000000, 'signalled', 'killed');

INSERT INTO slot_parks (pool, slot, at_us, class, reason) VALUES
    ('demo', 1, 1600, 'version_refused', 'too old');

INSERT INTO removals (session) VALUES
    ('long-gone');

INSERT INTO audit_cut (one, link, hash, at_us) VALUES
    (1, 4, 'abf4fed9093ff28acaab8981590a75c32ed74e48588982541454b7c8af2170f4', 1500);

INSERT INTO questions (id, session, pool, digest, rules, why, paths, times, asked_at_us, deadline_us, agent_until_us, state, answer, approver, said, remember, ended_at_us) VALUES
    ('e-2', 'ended', 'demo', 'abababababababababababababababababababababababababababababababab', '[]', 'default', '[]', 1, 1020, 1900, 1800, 'denied', 'deny', 'uid 0', 'no', 'never', 1025),
    ('k-0', 'kept', 'other', 'cdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcdcd', '[]', 'default', '[]', 3, 2005, 4102444800000000, NULL, 'orphaned', 'allow', 'uid 0', NULL, 'session', NULL),
    ('k-2', 'kept', 'other', 'efefefefefefefefefefefefefefefefefefefefefefefefefefefefefefefef', '[]', 'default', '[]', 1, 2020, 4102444800000000, 2500, 'pending', NULL, NULL, NULL, NULL, NULL);
