//! `[delegate.NAME]`, as it is shown.

use std::collections::BTreeMap;

use super::super::delegate::{Delegate, DelegateTarget};
use super::super::environment::REDACTED;
use super::super::units::show_duration;
use super::{RenderedTable, texts};

/// The tables of all of them.
pub(super) fn tables(
    delegates: &BTreeMap<String, Delegate>,
) -> impl Iterator<Item = RenderedTable> {
    delegates.values().map(|delegate| {
        let Delegate {
            name,
            target: how,
            timeout,
            token,
            at_once,
            tools,
        } = delegate;
        let mut table = RenderedTable::new(&["delegate", name]);
        match how {
            DelegateTarget::Command(argv) => table.put("command", texts(argv)),
            DelegateTarget::Url(url) => table.put("url", url.to_string()),
        }
        table.put("timeout", show_duration(*timeout));
        if token.is_some() {
            table.put("token", REDACTED);
        }
        table.put("at_once", i64::from(*at_once));
        let words: Vec<String> = tools
            .iter()
            .map(|class| class.as_str().to_owned())
            .collect();
        table.put("tools", texts(&words));
        table
    })
}
