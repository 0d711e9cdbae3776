//! The limits of reading the audit and of evaluating its requests again.
//!
//! As in `limits.rs`, each has its unit and its reason.

/// Audit records that are read at once: each may have an input of 64 KiB and facts as large.
pub const AUDIT_PAGE: usize = 64;

/// Paths of a request whose ends are on record with it.
pub const FACT_PATHS: usize = 64;

/// Bytes of one line of an exported audit, or of a file of labelled requests: an input is at most
/// 64 KiB, and its facts repeat it.
pub const AUDIT_LINE_BYTES: usize = 1 << 20;

/// Different requests that `policy learn` proposes rules for, and that the report explains: each is
/// evaluated under several policies.
pub const LEARN_GROUPS: usize = 200;

/// Requests that a proposal is tried on; the newest count.
pub const LEARN_REQUESTS: usize = 20_000;

/// Rows of each list of the report.
pub const REPORT_ROWS: usize = 20;

/// Bytes of a file of labelled requests, or of a command that is read from standard input.
pub const CASES_BYTES: usize = 256 << 20;
