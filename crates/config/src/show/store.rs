//! `[store]`, as it is shown.

use super::super::environment::REDACTED;
use super::super::store::StoreConfig;
use super::super::units::{show_duration, show_size};
use super::{RenderedTable, path};

/// Its table.
pub(super) fn table(store: &StoreConfig) -> RenderedTable {
    let StoreConfig {
        postgres,
        ca,
        newest,
        keep,
        max_size,
    } = store;
    let mut table = RenderedTable::new(&["store"]);
    if postgres.is_some() {
        table.put("postgres", REDACTED);
    }
    table.put_optional("ca", ca.as_ref().map(|ca| path(&ca.path)));
    table.put("newest", i64::try_from(*newest).unwrap_or(i64::MAX));
    table.put("keep", show_duration(*keep));
    table.put("max_size", show_size(*max_size));
    table
}
