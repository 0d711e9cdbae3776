//! The tables of the store, as migrations by schema version.
//!
//! One text for both databases; `NAME` and `BYTES` are replaced by types that they spell
//! differently.
//!
//! A new table or column is a new text at the end of `MIGRATIONS`. The statements in `change.rs` and
//! `query.rs` are for both databases.

/// The migrations: what each version of the schema adds to the previous one.
pub(super) const MIGRATIONS: &[&str] = &[VERSION_1, VERSION_2];

/// Created first: the table of applied migrations.
pub(super) const VERSION_TABLE: &str =
    "CREATE TABLE IF NOT EXISTS marshal_store (version BIGINT PRIMARY KEY, at_ms BIGINT NOT NULL)";

/// Writers of a path lock its row; a sweep removes only rows that nobody has locked.
const VERSION_1: &str = "
CREATE TABLE marshal_workspaces (id NAME PRIMARY KEY, at_ms BIGINT NOT NULL);
CREATE TABLE marshal_files (
    id NAME PRIMARY KEY,
    workspace NAME NOT NULL,
    path NAME NOT NULL,
    current BIGINT NOT NULL,
    deleted BIGINT NOT NULL
);
CREATE TABLE marshal_paths (
    workspace NAME NOT NULL,
    path NAME NOT NULL,
    file NAME,
    PRIMARY KEY (workspace, path)
);
CREATE TABLE marshal_versions (
    file NAME NOT NULL,
    v BIGINT NOT NULL,
    id NAME NOT NULL UNIQUE,
    path NAME NOT NULL,
    digest BYTES,
    bytes BIGINT NOT NULL,
    held NAME NOT NULL,
    exec BIGINT NOT NULL,
    author NAME NOT NULL,
    name NAME NOT NULL,
    turn NAME,
    task NAME,
    cause NAME NOT NULL,
    base BIGINT,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (file, v)
);
CREATE INDEX marshal_versions_by_time ON marshal_versions (at_ms);
CREATE TABLE marshal_blobs (digest BYTES PRIMARY KEY, bytes BIGINT NOT NULL, refs BIGINT NOT NULL);
CREATE INDEX marshal_blobs_unused ON marshal_blobs (digest) WHERE refs = 0;
CREATE TABLE marshal_chunks (
    digest BYTES NOT NULL,
    n BIGINT NOT NULL,
    data BYTES NOT NULL,
    PRIMARY KEY (digest, n)
);
";

/// The owner of a workspace's directory, and indices for sweeps.
const VERSION_2: &str = "
ALTER TABLE marshal_workspaces ADD COLUMN owner NAME;
ALTER TABLE marshal_workspaces ADD COLUMN place NAME;
CREATE INDEX marshal_files_gone ON marshal_files (id) WHERE deleted = 1;
CREATE INDEX marshal_paths_empty ON marshal_paths (workspace, path) WHERE file IS NULL;
";

/// The schema version of this program.
pub(super) fn latest_version() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// The migrations beyond `found`, each with its version, in the spelling of one database.
pub(super) fn migrations_after(found: i64, name: &str, bytes: &str) -> Vec<(i64, String)> {
    let spelled = |text: &str| text.replace(" NAME", name).replace(" BYTES", bytes);
    (1..)
        .zip(MIGRATIONS)
        .filter(|(version, _)| *version > found)
        .map(|(version, text)| (version, spelled(text)))
        .collect()
}
