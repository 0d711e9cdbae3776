-- The journal, version 6. Open it with: sqlite3 -readonly journal.db
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
-- reason, decided_at_us; and of those that version 5 added, see there. input is as it came; NULL if
-- longer than 64 KiB.
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

-- What version 4 added: what budgets count. period: session (name is its id), day (by UTC, as
-- 2026-11-22), pool (name is empty: for ever), run (its id). Cost is in billionths of a US dollar.
-- counted_ is what routes counted; tokens and cost are that, or what agents said where it is more.
CREATE TABLE spent (
    pool           TEXT NOT NULL,
    period         TEXT NOT NULL,
    name           TEXT NOT NULL,
    tokens         INTEGER NOT NULL,
    cost           INTEGER NOT NULL,
    counted_tokens INTEGER NOT NULL,
    counted_cost   INTEGER NOT NULL,
    at_us          INTEGER NOT NULL,
    PRIMARY KEY (pool, period, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX spent_by_name ON spent (period, name);

-- What bounds a run, as JSON; NULL: nothing does.
ALTER TABLE runs ADD COLUMN limits TEXT;

-- What version 5 added: whose request it was, and who answered. form says what hash covers: NULL, of
-- records of earlier versions, the columns named above; 2: after them form, pool, slot, run, task and
-- approver. After a record with a form there is none without.
ALTER TABLE asks ADD COLUMN form INTEGER;
ALTER TABLE asks ADD COLUMN pool TEXT;
ALTER TABLE asks ADD COLUMN slot INTEGER;
ALTER TABLE asks ADD COLUMN run TEXT;
ALTER TABLE asks ADD COLUMN task TEXT;
ALTER TABLE asks ADD COLUMN approver TEXT;

-- What version 6 added: chats, which are conversations that the daemon keeps: session and run are
-- those of the conversation, whose tasks carry the turns. Times of chats and turns are milliseconds
-- since the Unix epoch. files is a JSON array of paths; mode: chat. ended_ms: it was closed.
CREATE TABLE chats (
    session    TEXT PRIMARY KEY,
    run        TEXT NOT NULL UNIQUE,
    workspace  TEXT NOT NULL,
    role       TEXT NOT NULL,
    model      TEXT,
    goal       TEXT NOT NULL,
    files      TEXT NOT NULL,
    pool       TEXT NOT NULL,
    mode       TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    ended_ms   INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX chats_by_workspace ON chats (workspace, session);

-- The messages of chats, accepted before their senders were told so. chat is the session; seq is
-- dense from 1 in each chat. state: waiting, running (task, of the chat's run, carries it), ended.
-- outcome: how its turn ended, from the turn's end on. key is its client's, to send it twice.
CREATE TABLE turns (
    turn        TEXT PRIMARY KEY,
    chat        TEXT NOT NULL,
    seq         INTEGER NOT NULL,
    content     TEXT NOT NULL,
    state       TEXT NOT NULL,
    task        TEXT,
    outcome     TEXT,
    accepted_ms INTEGER NOT NULL,
    begun_ms    INTEGER,
    ended_ms    INTEGER,
    key         TEXT,
    UNIQUE (chat, seq)
) STRICT;
CREATE UNIQUE INDEX turns_by_key ON turns (chat, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX turns_running ON turns (chat) WHERE state = 'running';
CREATE INDEX turns_waiting ON turns (chat, seq) WHERE state = 'waiting';
CREATE INDEX turns_by_task ON turns (chat, task) WHERE task IS NOT NULL;

-- What version 7 added: chats that go on by themselves. parent is the chat whose work a member does;
-- phase (planning, approval, working, over) is NULL of a chat that has none. settings and progress are
-- JSON. forwarded: the last event of a member that its parent's stream has told.
ALTER TABLE chats ADD COLUMN parent TEXT;
ALTER TABLE chats ADD COLUMN phase TEXT;
ALTER TABLE chats ADD COLUMN settings TEXT;
ALTER TABLE chats ADD COLUMN progress TEXT;
ALTER TABLE chats ADD COLUMN forwarded INTEGER;
CREATE INDEX chats_by_parent ON chats (parent, session) WHERE parent IS NOT NULL;
CREATE INDEX chats_going_on ON chats (session) WHERE phase IS NOT NULL AND phase <> 'over';

-- The items of a chat's plan. item is the digest of its text and which one of those with that text it
-- is; ordinal its place, from 1. state: open, claimed (claimed_by, in turn), done, blocked, gone.
-- claimed_by and turn stay when it is none any more: who had it last. tries: turns that failed;
-- losses: those that went with the supervisor.
CREATE TABLE plan_items (
    chat       TEXT NOT NULL,
    item       TEXT NOT NULL,
    ordinal    INTEGER NOT NULL,
    content    TEXT NOT NULL,
    state      TEXT NOT NULL,
    by_agent   INTEGER NOT NULL,
    claimed_by TEXT,
    turn       TEXT,
    tries      INTEGER NOT NULL,
    losses     INTEGER NOT NULL,
    at_ms      INTEGER NOT NULL,
    PRIMARY KEY (chat, item)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX plan_items_claimed ON plan_items (claimed_by) WHERE state = 'claimed';

-- What was said of a chat's plan. state: waiting, approved, rejected, denied; sha256 of the text that it
-- was said of; said_by: a person's name, or the policy's.
CREATE TABLE plan_reviews (
    chat    TEXT NOT NULL,
    nth     INTEGER NOT NULL,
    state   TEXT NOT NULL,
    sha256  TEXT NOT NULL,
    said_by TEXT NOT NULL,
    rules   TEXT NOT NULL,
    why     TEXT NOT NULL,
    at_ms   INTEGER NOT NULL,
    PRIMARY KEY (chat, nth)
) STRICT, WITHOUT ROWID;

-- In the order in which tasks are listed.
CREATE INDEX tasks_listed ON tasks (queued_at_us, run, id);

-- What version 8 added. gone_as: how an item that is gone stood before, where an agent took it away;
-- NULL where a person did, or nobody knows. stopped: a person stopped the turn while it ran, so that
-- it is cancelled whoever ends it. closing: a chat is to be closed for good, by the next start if need
-- be.
ALTER TABLE plan_items ADD COLUMN gone_as TEXT;
ALTER TABLE turns ADD COLUMN stopped INTEGER NOT NULL DEFAULT 0;
ALTER TABLE chats ADD COLUMN closing INTEGER NOT NULL DEFAULT 0;
CREATE INDEX chats_closing ON chats (session) WHERE closing = 1 AND ended_ms IS NULL;
