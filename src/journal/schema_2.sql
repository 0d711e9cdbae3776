-- Version 2: slots that stay parked, and the way to what a start must find. Runs on version 1.

-- Slots where nothing starts until a person has looked.
CREATE TABLE slot_parks (
    pool   TEXT NOT NULL,
    slot   INTEGER NOT NULL,
    at_us  INTEGER NOT NULL,
    class  TEXT NOT NULL,
    reason TEXT NOT NULL,
    PRIMARY KEY (pool, slot)
) STRICT, WITHOUT ROWID;

-- A run without an end, or with a task without one, can be continued.
CREATE INDEX tasks_open ON tasks (run) WHERE state <> 'ended';
CREATE INDEX sessions_open ON sessions (epoch) WHERE ended_at_us IS NULL;
CREATE INDEX sessions_by_task ON sessions (run, task) WHERE task IS NOT NULL;

-- Version 1 wrote no end for the runs of a daemon: those whose tasks have all ended are over.
UPDATE runs
   SET ended_at_us = coalesce(
           (SELECT max(ended_at_us) FROM tasks WHERE tasks.run = runs.run), begun_at_us),
       code = EXISTS (SELECT 1 FROM tasks WHERE tasks.run = runs.run AND outcome <> 'done')
 WHERE ended_at_us IS NULL
   AND NOT EXISTS (SELECT 1 FROM tasks WHERE tasks.run = runs.run AND state <> 'ended');
