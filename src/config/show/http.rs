//! `[http]` and `[token.NAME]`, as they are shown.

use std::collections::BTreeMap;

use super::super::http::{Certificate, Http, NamedToken};
use super::{Shown, path, texts};

/// The table, where it says anything.
pub(super) fn table(http: &Http) -> Option<Shown> {
    let Http {
        tls,
        hosts,
        plain_http_beyond_loopback,
    } = http;
    if *http == Http::default() {
        return None;
    }
    let mut table = Shown::new(&["http"]);
    if let Some(Certificate { certificate, key }) = tls {
        table.put("tls.certificate", path(certificate));
        table.put("tls.key", path(key));
    }
    table.put("hosts", texts(hosts));
    table.put("plain_http_beyond_loopback", *plain_http_beyond_loopback);
    Some(table)
}

/// The tables of all tokens.
pub(super) fn tokens(tokens: &BTreeMap<String, NamedToken>) -> impl Iterator<Item = Shown> {
    tokens.iter().map(|(name, NamedToken { file, role })| {
        let mut table = Shown::new(&["token", name]);
        table.put("file", path(file));
        table.put("role", role.word());
        table
    })
}
