//! The limits of probing a host.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

/// How long all probes together may take; one that has not answered by then is missing.
pub const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Probes at the same time: each is one process, or three.
pub const CONCURRENT_PROBES: usize = 8;

/// Bytes that one probe may answer.
pub const PROBE_BYTES: usize = 64 << 10;
