//! `[http]` and `[token.NAME]`: the HTTP listener's TLS and host names, and the tokens of its
//! clients.
//!
//! Owns that traffic beyond loopback is encrypted, unless the file explicitly allows plain HTTP.
//! Must not know files: owners and links are checked where the files are opened.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::approval::Approver;
use super::egress::{HostNameError, check_host_name};
use super::error::quote;
use super::paths;
use super::pool::{PoolDraft, TRUST_HELP};
use super::table::{Diagnostics, Entry, Located, Section, keywords};
use super::trusted::working_dirs;
use super::types::Config;
use marshal_model::Role;
use marshal_model::limits;

keywords!(Role);

/// `[http]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HttpConfig {
    /// The certificate for TLS; `None` for plain HTTP.
    pub tls: Option<TlsFiles>,
    /// Names accepted in `Host`, besides its address: `NAME` or `NAME:PORT`, in lower case.
    pub hosts: Vec<String>,
    /// Whether other hosts may reach it without TLS.
    pub plain_http_beyond_loopback: bool,
}

/// `tls = { … }`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The file of the certificate chain, in PEM.
    pub certificate: PathBuf,
    /// The file of its key, in PEM.
    pub key: PathBuf,
}

/// `[token.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedToken {
    /// The file with the token.
    pub file: PathBuf,
    /// The role that it grants.
    pub role: Role,
}

/// The key of the listener's only file without a secret.
const CERTIFICATE: &str = "http.tls.certificate";

/// The JSON-schema pattern of a name of this server.
const HOST_PATTERN: &str = r"^[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$";

/// The JSON-schema pattern of a token's name, and its words for people.
const NAME_PATTERN: &str = "^[a-z0-9][a-z0-9-]{0,31}$";

/// The schema's pattern of an address; a pattern cannot express all checks.
const LISTEN_PATTERN: &str = r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9a-fA-F:.]+\]):[0-9]{1,5}$";

/// Reads `[http]`. `is_discovered`: the file was discovered, not named, so it cannot set this.
pub(super) fn read(section: &Section<'_>, is_discovered: bool, dir: &Path) -> HttpConfig {
    let tls = section
        .get("tls")
        .and_then(|item| item.section())
        .and_then(|tls| read_tls(&tls, is_discovered, dir));
    let mut hosts = Vec::new();
    if let Some(list) = section.texts_like("hosts", HOST_PATTERN) {
        if list.value.len() > limits::HTTP_HOSTS {
            let most = limits::HTTP_HOSTS;
            let message = format!("there are more than {most} names");
            section.diagnostics.report(&list.place, message, None);
        } else if !list.value.is_empty() {
            reject_discovered(section, &list, is_discovered);
        }
        hosts = list
            .value
            .iter()
            .filter_map(|name| parse_host(section, name))
            .collect();
    }
    let plain = section.boolean("plain_http_beyond_loopback");
    if let Some(plain) = plain.as_ref().filter(|plain| plain.value) {
        reject_discovered(section, plain, is_discovered);
        if tls.is_some() {
            let message = "with http.tls the supervisor serves no plain HTTP";
            let help = Some("leave one of the two out".to_owned());
            section.diagnostics.report(&plain.place, message, help);
        }
    }
    section.reject_unknown_keys(
        &["rate_limit"],
        &[
            ("listen", "supervisor.listen"),
            ("certificate", "tls.certificate"),
            ("key", "tls.key"),
            ("token", "token.NAME"),
        ],
    );
    HttpConfig {
        tls,
        hosts,
        plain_http_beyond_loopback: plain.is_some_and(|plain| plain.value),
    }
}

fn reject_discovered<T>(section: &Section<'_>, what: &Located<T>, is_discovered: bool) {
    if is_discovered {
        let message = "a discovered supervisor.toml may not set who reaches this supervisor";
        let help = Some(TRUST_HELP.to_owned());
        section.diagnostics.report(&what.place, message, help);
    }
}

fn read_tls(section: &Section<'_>, is_discovered: bool, dir: &Path) -> Option<TlsFiles> {
    let file = |name: &'static str| {
        let Some(item) = section.get(name) else {
            let message = format!("tls needs the file of its {name}");
            let help = "for example: tls = { certificate = \"/etc/marshal/cert.pem\", key = \"/etc/marshal/key.pem\" }";
            section
                .diagnostics
                .report(&section.place, message, Some(help.to_owned()));
            return None;
        };
        let text = item.text_like(paths::PATTERN)?;
        reject_discovered(section, &text, is_discovered);
        file_path(section, &text, dir)
    };
    let (certificate, key) = (file("certificate"), file("key"));
    section.reject_unknown_keys(&["client_ca"], &[("cert", "certificate")]);
    Some(TlsFiles {
        certificate: certificate?,
        key: key?,
    })
}

fn file_path(section: &Section<'_>, text: &Located<String>, dir: &Path) -> Option<PathBuf> {
    if let Some(fault) = paths::path_error(&text.value) {
        section.diagnostics.report(&text.place, fault, None);
        return None;
    }
    Some(paths::absolute(dir, &text.value))
}

fn parse_host(section: &Section<'_>, name: &Located<String>) -> Option<String> {
    let small = name.value.to_ascii_lowercase();
    let (host, port) = match small.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (small.as_str(), None),
    };
    let is_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
    // In a home network a host's name has a single part.
    let is_name = matches!(
        check_host_name(host),
        Ok(()) | Err(HostNameError::SingleLabel)
    );
    if is_port && is_name {
        return Some(small);
    }
    let message = format!(
        "expected the name of a host, with a port or without, found {}",
        quote(&name.value)
    );
    let help = Some("for example: hosts = [\"marshal.example.org\"]".to_owned());
    section.diagnostics.report(&name.place, message, help);
    None
}

/// Reads the table `token`.
pub(super) fn read_tokens(
    section: &Section<'_>,
    is_discovered: bool,
    dir: &Path,
) -> BTreeMap<String, NamedToken> {
    let mut tokens = BTreeMap::new();
    for (name, item) in section.named_entries(NAME_PATTERN) {
        let is_name = matches!(Approver::new(&name), Some(Approver::Named(_)));
        let message = if name == "owner" {
            Some("the owner's token is http.token in the state directory".to_owned())
        } else if !is_name {
            Some(format!(
                "the token name {} must be of lower-case letters, digits and \"-\"",
                quote(&name)
            ))
        } else if is_discovered {
            Some("a discovered supervisor.toml may not have tokens".to_owned())
        } else if tokens.len() >= limits::TOKEN_FILES {
            Some(format!(
                "there are more than {} tokens",
                limits::TOKEN_FILES
            ))
        } else {
            None
        };
        if let Some(message) = message {
            let help = (is_discovered && is_name).then(|| TRUST_HELP.to_owned());
            section.diagnostics.report(&item.place, message, help);
        }
        let Some(table) = item.section() else {
            continue;
        };
        if let Some(token) = read_token(&table, dir) {
            tokens.insert(name, token);
        }
    }
    tokens
}

fn read_token(section: &Section<'_>, dir: &Path) -> Option<NamedToken> {
    let file = section.get("file");
    let role = section.get("role");
    for (item, name, help) in [
        (
            &file,
            "file",
            "for example: file = \"/etc/marshal/ops.token\"",
        ),
        (&role, "role", "one of read, operate, approve and admin"),
    ] {
        if item.is_none() {
            let message = format!("the token needs a {name}");
            section
                .diagnostics
                .report(&section.place, message, Some(help.to_owned()));
        }
    }
    let file = file
        .and_then(|item| item.text_like(paths::PATTERN))
        .and_then(|text| file_path(section, &text, dir));
    let role = role.and_then(|item| item.keyword(&[]));
    section.reject_unknown_keys(&["expires"], &[("roles", "role"), ("path", "file")]);
    Some(NamedToken {
        file: file?,
        role: role?.value,
    })
}

/// A reader of a token or key can use it, so none may be where agents work.
pub(super) fn check_credentials_hidden(
    root: &Section<'_>,
    drafts: &[PoolDraft],
    http: &HttpConfig,
    tokens: &BTreeMap<String, NamedToken>,
) {
    for draft in drafts {
        let seen: Vec<&Path> = working_dirs(&draft.pool).map(|(dir, _)| dir).collect();
        for (key, path) in credential_files(http, tokens) {
            // A certificate is public.
            if key != CERTIFICATE && seen.iter().any(|dir| path.starts_with(dir)) {
                let message = format!(
                    "the agent could read {}, which grants access to the supervisor ({key})",
                    quote(&path.to_string_lossy())
                );
                let help = Some("keep it outside of every workspace".to_owned());
                root.diagnostics
                    .report(&draft.workspace_place, message, help);
            }
        }
    }
}

fn credential_files<'c>(
    http: &'c HttpConfig,
    tokens: &'c BTreeMap<String, NamedToken>,
) -> Vec<(String, &'c Path)> {
    let mut files = Vec::new();
    if let Some(tls) = &http.tls {
        files.push((CERTIFICATE.to_owned(), &*tls.certificate));
        files.push(("http.tls.key".to_owned(), &*tls.key));
    }
    let named = tokens.iter();
    files.extend(named.map(|(name, token)| (format!("token.{name}.file"), &*token.file)));
    files
}

impl Config {
    /// The credential files that must stay private: all except the certificate.
    #[must_use]
    pub fn private_credential_files(&self) -> Vec<(String, &Path)> {
        let mut files = self.credential_files();
        files.retain(|(key, _)| key != CERTIFICATE);
        files
    }

    /// The files that grant access to the supervisor, each with its key.
    #[must_use]
    pub fn credential_files(&self) -> Vec<(String, &Path)> {
        credential_files(&self.http, &self.tokens)
    }
}

impl HttpConfig {
    /// Reads `supervisor.listen`.
    pub(super) fn read_listen(
        &self,
        item: &Entry<'_>,
        diagnostics: &Diagnostics,
    ) -> Option<SocketAddr> {
        let found = item.text_like(LISTEN_PATTERN)?;
        let text = found.value.as_str();
        let Ok(address) = text.parse::<SocketAddr>() else {
            let message = format!(
                "expected an address and a port such as \"127.0.0.1:7117\", found {}",
                quote(text)
            );
            diagnostics.report(&found.place, message, None);
            return None;
        };
        if !address.ip().is_loopback() && self.tls.is_none() && !self.plain_http_beyond_loopback {
            let message = format!("{} is not a loopback address", quote(text));
            let help = "others on the network could read the traffic and its tokens: use 127.0.0.1 or [::1], set a certificate with http.tls, or set http.plain_http_beyond_loopback = true";
            diagnostics.report(&found.place, message, Some(help.to_owned()));
            return None;
        }
        Some(address)
    }
}
