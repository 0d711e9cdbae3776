-- What version 5 added to a file of version 4, and rows of it: a record of form 2, whose hash is that
-- of the description in that version's schema, computed apart from this program, and a conversation.
PRAGMA user_version = 5;

ALTER TABLE asks ADD COLUMN form INTEGER;
ALTER TABLE asks ADD COLUMN pool TEXT;
ALTER TABLE asks ADD COLUMN slot INTEGER;
ALTER TABLE asks ADD COLUMN run TEXT;
ALTER TABLE asks ADD COLUMN task TEXT;
ALTER TABLE asks ADD COLUMN approver TEXT;

INSERT INTO events (session, seq, epoch, at_us, kind, version, body) VALUES
    ('kept', 5, 2, 2030, 'asked', 1, '{"id":"k-3","key":"key-k-3","tool":"write_file","input":{"path":"b"}}'),
    ('kept', 6, 2, 2035, 'decided', 1, '{"ask":"k-3","decision":"allow","by":"human","rules":[],"reason":"a person (uid 0) allowed this"}');

INSERT INTO asks (id, session, asked_seq, decided_seq, request_key, tool_id, tool, input_sha256, claimed, asked_at_us, policy, policy_sha256, facts, eval_us, decision, decided_by, rules, reason, decided_at_us, form, pool, slot, run, task, approver, link, prev_hash, hash, input) VALUES
    ('k-3', 'kept', 5, 6, 'key-k-3', NULL, 'write_file', '9202535d7f9ddfd8b7799dd5987f9640148d8767b6a02f69c7834db1d5e4b4ae', '{"title":"It''s é \u0007"}', 2030, 'developer', '0000000000000000000000000000000000000000000000000000000000000000', '{}', 7, 'allow', 'human', '[]', 'a person (uid 0) allowed this', 2035, 2, 'other', 1, 'daemon', NULL, 'uid 0', 8, 'fbd5f01e4f33bead5dbd1d436ae4db5c36d24a2505250c91872f72c1812c7a5f', '51ed0e2b98fe5a0d985a4f4a900efdebe8ffe747b64aeb6d3c83af122e21249f', '{"path":"b"}');

INSERT INTO runs (run, epoch, command, begun_at_us, ended_at_us, code, limits) VALUES
    ('talk', 2, 'conversation', 2040, NULL, NULL, NULL);

INSERT INTO tasks (run, id, place, pool, prompt, spec, state, outcome, detail, attempts, slot, session, queued_at_us, begun_at_us, ended_at_us, result) VALUES
    ('talk', 'p-1', 1, 'demo', 'hello', '{"id":"p-1"}', 'ended', 'done', '', 1, 0, 'talked', 2041, 2042, 2050, NULL);

INSERT INTO sessions (session, epoch, pool, slot, run, task, attempt, begun_at_us, ended_at_us, class) VALUES
    ('talked', 2, 'demo', 0, 'talk', NULL, 1, 2040, NULL, NULL);
