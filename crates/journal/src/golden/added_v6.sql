-- What version 6 added to a file of version 5, and rows of it: a chat with a turn that is over and one
-- that waits, and a closed chat.
PRAGMA user_version = 6;

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

INSERT INTO runs (run, epoch, command, begun_at_us, ended_at_us, code, limits) VALUES
    ('chat-run', 2, 'conversation', 3000, NULL, NULL, NULL),
    ('chat-over', 2, 'conversation', 3000, 3900, 0, NULL);

INSERT INTO sessions (session, epoch, pool, slot, run, task, attempt, begun_at_us, ended_at_us, class) VALUES
    ('chatted', 2, 'demo', 0, 'chat-run', NULL, 1, 3000, NULL, NULL),
    ('closed', 2, 'demo', 0, 'chat-over', NULL, 1, 3000, 3900, NULL);

INSERT INTO chats (session, run, workspace, role, model, goal, files, pool, mode, created_ms, ended_ms) VALUES
    ('chatted', 'chat-run', 'site', 'writer', 'small', 'a page about é', '["notes/a b.md"]', 'demo', 'chat', 3, NULL),
    ('closed', 'chat-over', 'site', 'writer', NULL, 'done', '[]', 'demo', 'chat', 3, 4);

INSERT INTO turns (turn, chat, seq, content, state, task, outcome, accepted_ms, begun_ms, ended_ms, key) VALUES
    ('turn-1', 'chatted', 1, 'a page about é', 'ended', 'turn-1.1', 'completed', 3, 4, 5, NULL),
    ('turn-2', 'chatted', 2, 'and another', 'waiting', NULL, NULL, 6, NULL, NULL, 'k 1');
