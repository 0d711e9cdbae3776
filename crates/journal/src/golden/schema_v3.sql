-- The journal, version 3. Open it with: sqlite3 -readonly journal.db
-- Times are microseconds since the Unix epoch: datetime(at_us / 1000000, 'unixepoch').

-- One row for every start of the supervisor.
CREATE TABLE epochs (
    epoch         INTEGER PRIMARY KEY AUTOINCREMENT,
    started_at_us INTEGER NOT NULL,
    pid           INTEGER NOT NULL,
    version       TEXT NOT NULL
) STRICT;

-- One `run`, or the life of one daemon.
CREATE TABLE runs (
    run         TEXT PRIMARY KEY,
    epoch       INTEGER NOT NULL,
    command     TEXT NOT NULL,
    begun_at_us INTEGER NOT NULL,
    ended_at_us INTEGER,
    code        INTEGER
) STRICT, WITHOUT ROWID;

-- What users asked for, and what became of it. state: queued, running, ended.
CREATE TABLE tasks (
    run          TEXT NOT NULL,
    id           TEXT NOT NULL,
    place        INTEGER NOT NULL,
    pool         TEXT NOT NULL,
    prompt       TEXT NOT NULL,
    spec         TEXT NOT NULL,
    state        TEXT NOT NULL,
    outcome      TEXT,
    detail       TEXT,
    attempts     INTEGER NOT NULL DEFAULT 0,
    slot         INTEGER,
    session      TEXT,
    queued_at_us INTEGER NOT NULL,
    begun_at_us  INTEGER,
    ended_at_us  INTEGER,
    result       TEXT,
    PRIMARY KEY (run, id)
) STRICT, WITHOUT ROWID;

-- One conversation.
CREATE TABLE sessions (
    session     TEXT PRIMARY KEY,
    epoch       INTEGER NOT NULL,
    pool        TEXT NOT NULL,
    slot        INTEGER NOT NULL,
    run         TEXT,
    task        TEXT,
    attempt     INTEGER NOT NULL,
    begun_at_us INTEGER NOT NULL,
    ended_at_us INTEGER,
    class       TEXT
) STRICT, WITHOUT ROWID;

-- Everything that happened, in the order of each session. An event's id is epoch-seq; seq is
-- dense from 1 over the whole life of a session. body is JSON of the given version.
CREATE TABLE events (
    session TEXT NOT NULL,
    seq     INTEGER NOT NULL,
    epoch   INTEGER NOT NULL,
    at_us   INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    version INTEGER NOT NULL,
    body    TEXT NOT NULL,
    PRIMARY KEY (session, seq)
) STRICT, WITHOUT ROWID;

-- Permission requests. A decided one is an audit record: link numbers the records densely from 1
-- in the order of the verdicts, prev_hash is the hash of the record before it, and hash is the
-- SHA-256, in hexadecimal, of a JSON array without spaces of these columns, in this order:
-- link, prev_hash, id, session, asked_seq, decided_seq, request_key, tool_id, tool, input_sha256,
-- claimed, asked_at_us, policy, policy_sha256, facts, eval_us, decision, decided_by, rules,
-- reason, decided_at_us. input is as it came; NULL if longer than 64 KiB.
CREATE TABLE asks (
    id            TEXT PRIMARY KEY,
    session       TEXT NOT NULL,
    asked_seq     INTEGER NOT NULL,
    decided_seq   INTEGER,
    request_key   TEXT NOT NULL,
    tool_id       TEXT,
    tool          TEXT NOT NULL,
    input         TEXT,
    input_sha256  TEXT NOT NULL,
    claimed       TEXT NOT NULL,
    asked_at_us   INTEGER NOT NULL,
    policy        TEXT,
    policy_sha256 TEXT,
    facts         TEXT,
    eval_us       INTEGER,
    decision      TEXT,
    decided_by    TEXT,
    rules         TEXT,
    reason        TEXT,
    decided_at_us INTEGER,
    link          INTEGER UNIQUE,
    prev_hash     TEXT,
    hash          TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX asks_by_session ON asks (session, asked_seq);

-- Ends that nobody asked for: what a slot's restart budget is spent on.
CREATE TABLE slot_failures (
    pool   TEXT NOT NULL,
    slot   INTEGER NOT NULL,
    at_us  INTEGER NOT NULL,
    class  TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE INDEX slot_failures_by_slot ON slot_failures (pool, slot, at_us);

-- What retention needs: which sessions ended first, those of a run, and runs with open tasks.
CREATE INDEX sessions_by_end ON sessions (ended_at_us, session) WHERE ended_at_us IS NOT NULL;
CREATE INDEX sessions_by_run ON sessions (run, task) WHERE run IS NOT NULL;
CREATE INDEX tasks_open ON tasks (run) WHERE state <> 'ended';
CREATE INDEX sessions_open ON sessions (epoch) WHERE ended_at_us IS NULL;

-- A session that retention has taken out of `sessions` and whose other rows are going.
CREATE TABLE removals (
    session TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- The last audit record that retention removed, if any: the first record here has link + 1 and
-- this hash as its prev_hash. Records leave in the order of their links; one whose session is gone
-- and whose turn has not come keeps all columns that its hash covers.
CREATE TABLE audit_cut (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    link  INTEGER NOT NULL,
    hash  TEXT NOT NULL,
    at_us INTEGER NOT NULL
) STRICT;

-- Slots where nothing starts until a person has looked.
CREATE TABLE slot_parks (
    pool   TEXT NOT NULL,
    slot   INTEGER NOT NULL,
    at_us  INTEGER NOT NULL,
    class  TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (pool, slot)
) STRICT, WITHOUT ROWID;

-- Version 1 wrote no end for the runs of a daemon: those whose tasks have all ended are over.
UPDATE runs
   SET ended_at_us = coalesce(
           (SELECT max(ended_at_us) FROM tasks WHERE tasks.run = runs.run), begun_at_us),
       code = EXISTS (SELECT 1 FROM tasks WHERE tasks.run = runs.run AND outcome <> 'done')
 WHERE ended_at_us IS NULL
   AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.run = runs.run AND state <> 'ended');

-- What version 3 added: questions to people. One row for identical requests of one session; id is
-- the id of the first of them in `asks`, times is how many there were. digest is the SHA-256, in
-- hexadecimal, of the tool's name, a zero byte and the input with its object keys sorted and its
-- white space gone. state: pending, orphaned, allowed, denied, expired, cancelled. answer is what a
-- person said of an orphaned one, kept for the resumed agent. deadline_us holds for both; while its
-- agent waits, agent_until_us does too.
CREATE TABLE questions (
    id             TEXT PRIMARY KEY,
    session        TEXT NOT NULL,
    pool           TEXT NOT NULL,
    digest         TEXT NOT NULL,
    rules          TEXT NOT NULL,
    why            TEXT NOT NULL,
    paths          TEXT NOT NULL,
    times          INTEGER NOT NULL,
    asked_at_us    INTEGER NOT NULL,
    deadline_us    INTEGER NOT NULL,
    agent_until_us INTEGER,
    state          TEXT NOT NULL,
    answer         TEXT,
    approver       TEXT,
    said           TEXT,
    remember       TEXT,
    ended_at_us    INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX questions_by_session ON questions (session);
CREATE INDEX questions_open ON questions (asked_at_us) WHERE state IN ('pending', 'orphaned');
