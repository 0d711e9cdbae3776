-- The journal, version 9. Open it with: sqlite3 -readonly journal.db
-- Times are microseconds since the Unix epoch: datetime(at_us / 1000000, 'unixepoch').

-- One row for every start of the supervisor.
CREATE TABLE epochs (
    epoch         INTEGER PRIMARY KEY AUTOINCREMENT,
    started_at_us INTEGER NOT NULL,
    pid           INTEGER NOT NULL,
    version       TEXT NOT NULL
) STRICT;

-- One `run`, or one start of a daemon. limits: its limits as JSON; NULL if it has none.
CREATE TABLE runs (
    run         TEXT PRIMARY KEY,
    epoch       INTEGER NOT NULL,
    command     TEXT NOT NULL,
    begun_at_us INTEGER NOT NULL,
    ended_at_us INTEGER,
    code        INTEGER,
    limits      TEXT
) STRICT, WITHOUT ROWID;

-- The tasks of users, with their results. state: queued, running, ended.
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
-- link, prev_hash, id, session, requested_seq, decided_seq, request_key, tool_id, tool, input_sha256,
-- claimed, requested_at_us, policy, policy_sha256, facts, eval_us, decision, decided_by, rules,
-- reason, decided_at_us, format, pool, slot, run, task, approver. format says which columns those are.
-- pool, slot, run and task are those of the session; approver names who answered. input is as received;
-- NULL if longer than 64 KiB.
CREATE TABLE permission_requests (
    id            TEXT PRIMARY KEY,
    session       TEXT NOT NULL,
    requested_seq     INTEGER NOT NULL,
    decided_seq   INTEGER,
    request_key   TEXT NOT NULL,
    tool_id       TEXT,
    tool          TEXT NOT NULL,
    input         TEXT,
    input_sha256  TEXT NOT NULL,
    claimed       TEXT NOT NULL,
    requested_at_us   INTEGER NOT NULL,
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
    hash          TEXT,
    format        INTEGER,
    pool          TEXT,
    slot          INTEGER,
    run           TEXT,
    task          TEXT,
    approver      TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX permission_requests_by_session ON permission_requests (session, requested_seq);

-- Unexpected ends of children, which count against a slot's restart budget.
CREATE TABLE slot_failures (
    pool   TEXT NOT NULL,
    slot   INTEGER NOT NULL,
    at_us  INTEGER NOT NULL,
    class  TEXT NOT NULL,
    detail TEXT NOT NULL
) STRICT;
CREATE INDEX slot_failures_by_slot ON slot_failures (pool, slot, at_us);

-- For retention: the sessions by their end and by their run, and the runs with open tasks.
CREATE INDEX sessions_by_end ON sessions (ended_at_us, session) WHERE ended_at_us IS NOT NULL;
CREATE INDEX sessions_by_run ON sessions (run, task) WHERE run IS NOT NULL;
CREATE INDEX tasks_open ON tasks (run) WHERE state <> 'ended';
CREATE INDEX sessions_open ON sessions (epoch) WHERE ended_at_us IS NULL;

-- A session that retention has removed from `sessions` and whose other rows are being removed.
CREATE TABLE removals (
    session TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;

-- The last audit record that retention removed, if any: the first record here has link + 1 and
-- this hash as its prev_hash. Records leave in the order of their links. A record whose session was
-- removed keeps all columns that its hash covers until its turn comes.
CREATE TABLE audit_cut (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    link  INTEGER NOT NULL,
    hash  TEXT NOT NULL,
    at_us INTEGER NOT NULL
) STRICT;

-- Parked slots: nothing starts in them until a person unparks them.
CREATE TABLE slot_parks (
    pool   TEXT NOT NULL,
    slot   INTEGER NOT NULL,
    at_us  INTEGER NOT NULL,
    class  TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (pool, slot)
) STRICT, WITHOUT ROWID;

-- Approvals: permission requests that wait for a person. One row for identical requests of one session;
-- id is that of the first of them in `permission_requests`, times is how many there were. digest is the SHA-256, in
-- hexadecimal, of the tool's name, a zero byte and the input with its object keys sorted and its
-- insignificant white space removed. state: pending, orphaned, approved, rejected, expired, cancelled.
-- answer is a person's decision; of an orphaned one, it is kept for the resumed agent. said is the person's
-- comment. deadline_us limits pending and orphaned ones; agent_until_us also limits one whose agent waits.
CREATE TABLE approvals (
    id             TEXT PRIMARY KEY,
    session        TEXT NOT NULL,
    pool           TEXT NOT NULL,
    digest         TEXT NOT NULL,
    rules          TEXT NOT NULL,
    why            TEXT NOT NULL,
    paths          TEXT NOT NULL,
    times          INTEGER NOT NULL,
    requested_at_us    INTEGER NOT NULL,
    deadline_us    INTEGER NOT NULL,
    agent_until_us INTEGER,
    state          TEXT NOT NULL,
    answer         TEXT,
    approver       TEXT,
    said           TEXT,
    remember       TEXT,
    ended_at_us    INTEGER
) STRICT, WITHOUT ROWID;
CREATE INDEX approvals_by_session ON approvals (session);
CREATE INDEX approvals_open ON approvals (requested_at_us) WHERE state IN ('pending', 'orphaned');

-- What budgets count. period: session (name is its id), day (by UTC, as
-- 2026-11-22), pool (name is empty; no time limit), run (its id). Cost is in billionths of a US dollar.
-- counted_* is what routes counted; tokens and cost are that, or what agents reported if it is more.
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

-- Chats are conversations that the daemon keeps: session and run are
-- those of the conversation, whose tasks carry the turns. Times of chats and turns are milliseconds
-- since the Unix epoch. files is a JSON array of paths; mode: chat. ended_ms: when it was closed. parent is the
-- chat that a member works for; phase (planning, approval, working, ended) is NULL for a chat that is not
-- autonomous. settings and progress are JSON. forwarded: the last event of a member that its parent's
-- stream has sent. closing: the chat is to be closed for good, at the next start at the latest.
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
    ended_ms   INTEGER,
    parent     TEXT,
    phase      TEXT,
    settings   TEXT,
    progress   TEXT,
    forwarded  INTEGER,
    closing    INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE INDEX chats_by_workspace ON chats (workspace, session);
CREATE INDEX chats_by_parent ON chats (parent, session) WHERE parent IS NOT NULL;
CREATE INDEX chats_going_on ON chats (session) WHERE phase IS NOT NULL AND phase <> 'ended';
CREATE INDEX chats_closing ON chats (session) WHERE closing = 1 AND ended_ms IS NULL;

-- The messages of chats. A row is durable before its sender gets the acceptance. chat is the session; seq is
-- dense from 1 in each chat. state: waiting, running (task, of the chat's run, carries it), ended.
-- outcome: how its turn ended, from the turn's end on. key is the client's idempotency key. stopped: a
-- person stopped the turn, so that it ends as cancelled, whoever ends it.
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
    stopped     INTEGER NOT NULL DEFAULT 0,
    UNIQUE (chat, seq)
) STRICT;
CREATE UNIQUE INDEX turns_by_key ON turns (chat, key) WHERE key IS NOT NULL;
CREATE UNIQUE INDEX turns_running ON turns (chat) WHERE state = 'running';
CREATE INDEX turns_waiting ON turns (chat, seq) WHERE state = 'waiting';
CREATE INDEX turns_by_task ON turns (chat, task) WHERE task IS NOT NULL;

-- The items of a chat's plan. item is the digest of its text and its number among the items with that
-- text; ordinal is its position, from 1. state: open, claimed (claimed_by, in turn), done, blocked, gone.
-- claimed_by and turn stay after the claim: they show the last one. tries: turns that failed;
-- losses: turns that were lost with the supervisor. gone_as: the former state of an item that an agent
-- removed; NULL if a person did, or if it is unknown.
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
    gone_as    TEXT,
    PRIMARY KEY (chat, item)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX plan_items_claimed ON plan_items (claimed_by) WHERE state = 'claimed';

-- Reviews of a chat's plan. state: waiting, approved, rejected, denied; sha256 is that of the reviewed
-- text; said_by: a person's name, or the policy's.
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
