//! `[delegate.NAME]`, as it is shown.

use std::collections::BTreeMap;

use super::super::delegate::{Decider, Delegate};
use super::super::environment::HIDDEN;
use super::super::units::show_duration;
use super::{Shown, texts};

/// The tables of all of them.
pub(super) fn tables(delegates: &BTreeMap<String, Delegate>) -> impl Iterator<Item = Shown> {
    delegates.values().map(|delegate| {
        let Delegate {
            name,
            how,
            timeout,
            token,
            at_once,
            tools,
        } = delegate;
        let mut table = Shown::new(&["delegate", name]);
        match how {
            Decider::Command(argv) => table.put("command", texts(argv)),
            Decider::Url(url) => table.put("url", url.to_string()),
        }
        table.put("timeout", show_duration(*timeout));
        if token.is_some() {
            table.put("token", HIDDEN);
        }
        table.put("at_once", i64::from(*at_once));
        let words: Vec<String> = tools.iter().map(|class| class.word().to_owned()).collect();
        table.put("tools", texts(&words));
        table
    })
}
