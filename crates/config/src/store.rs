//! `[store]`: the database of the versions of workspaces' files, and their retention.
//!
//! Must not know databases: the code that opens one parses the connection string.

use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use super::environment::{self, SECRET_PATTERN};
use super::paths;
use super::pool::TRUST_HELP;
use super::route::CertificateAuthorities;
use super::settings::{Integer, Size, Time, settings};
use super::table::Section;
use super::types::Secret;
use marshal_model::limits;

settings! {
    /// `[store]`.
    #[derive(Debug, Clone)]
    pub struct StoreConfig {
        /// The number of newest versions of each file that are always kept.
        newest: u64 = 20, Integer(1..=100_000);
        /// How long older versions are kept.
        keep: Duration = Duration::from_secs(30 * 24 * 3600), Time(RETENTION_RANGE);
        /// The size of all content in bytes above which older versions are removed early.
        max_size: u64 = 4 << 30, Size(1 << 20..=1 << 50);
        ;
        /// The connection string of a PostgreSQL server; `None` means SQLite in the state directory.
        postgres: Option<Secret> = None;
        /// Certificate authorities for that server instead of the built-in ones.
        ca: Option<CertificateAuthorities> = None;
    }
}

const RETENTION_RANGE: RangeInclusive<Duration> = Duration::from_secs(1)..=limits::CONFIG_DURATION;

/// Reads the table `store`. `is_discovered`: the file was discovered, not named, so it may not set the
/// server.
pub(super) fn read(section: &Section<'_>, dir: &Path, is_discovered: bool) -> StoreConfig {
    let mut store = StoreConfig::read_keys(section, &StoreConfig::default());
    if let Some(value) = section
        .get("postgres")
        .and_then(|item| item.text_like(SECRET_PATTERN))
    {
        let source = environment::require_secret_source(section, &value, dir);
        if is_discovered {
            let message = "a discovered supervisor.toml may not set the server of the file store";
            section
                .diagnostics
                .report(&value.place, message, Some(TRUST_HELP.to_owned()));
        } else if source.is_none() {
            let message = "expected \"env:NAME\", \"file:PATH\" or \"credential:NAME\": a connection string has a password, so the file never contains it";
            section.diagnostics.report(&value.place, message, None);
        }
        store.postgres = source.map(Secret::new);
    }
    if let Some(value) = section
        .get("ca")
        .and_then(|item| item.text_like(paths::PATTERN))
    {
        if let Some(fault) = paths::path_error(&value.value) {
            section.diagnostics.report(&value.place, fault, None);
        } else if section.get("postgres").is_none() {
            let message = "ca is for a PostgreSQL server, and store.postgres is not set";
            section.diagnostics.report(&value.place, message, None);
        }
        store.ca = Some(CertificateAuthorities {
            path: paths::absolute(dir, &value.value),
            pem: None,
        });
    }
    section.reject_unknown_keys(
        &[],
        &[
            ("url", "postgres"),
            ("connection", "postgres"),
            ("retention", "keep"),
            ("versions", "newest"),
        ],
    );
    store
}
