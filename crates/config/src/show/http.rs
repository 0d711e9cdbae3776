//! `[http]` and `[token.NAME]`, as they are shown.

use std::collections::BTreeMap;

use super::super::http::{HttpConfig, NamedToken, TlsFiles};
use super::{RenderedTable, path, texts};

/// The table, where it says anything.
pub(super) fn table(http: &HttpConfig) -> Option<RenderedTable> {
    let HttpConfig {
        tls,
        hosts,
        plain_http_beyond_loopback,
    } = http;
    if *http == HttpConfig::default() {
        return None;
    }
    let mut table = RenderedTable::new(&["http"]);
    if let Some(TlsFiles { certificate, key }) = tls {
        table.put("tls.certificate", path(certificate));
        table.put("tls.key", path(key));
    }
    table.put("hosts", texts(hosts));
    table.put("plain_http_beyond_loopback", *plain_http_beyond_loopback);
    Some(table)
}

/// The tables of all tokens.
pub(super) fn tokens(tokens: &BTreeMap<String, NamedToken>) -> impl Iterator<Item = RenderedTable> {
    tokens.iter().map(|(name, NamedToken { file, role })| {
        let mut table = RenderedTable::new(&["token", name]);
        table.put("file", path(file));
        table.put("role", role.as_str());
        table
    })
}
