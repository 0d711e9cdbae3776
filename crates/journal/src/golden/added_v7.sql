-- What version 7 added to a file of version 6, and rows of it: an item of a plan, and what was said of one.
PRAGMA user_version = 7;

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

INSERT INTO plan_items VALUES ('talked', '00000000000000aa-1', 1, 'the item é', 'done', 0, 'm-1', 't-1', 1, 0, 7);
INSERT INTO plan_reviews VALUES ('talked', 1, 'approved', 'ab', 'policy own', '["plans"]', '', 6);
