//! The PostgreSQL server of a store: its connection string, its TLS, and its name without the
//! password.
//!
//! Except over loopback and Unix sockets, every connection uses TLS with a verified host name,
//! whatever the connection string says.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::error::StoreError;
use marshal_model::limits;
use marshal_model::untrusted;

/// The most characters of a server's message in an error.
const SHOWN_CHARS: usize = 300;

/// A PostgreSQL server, from a connection string, which is a secret.
#[derive(Clone)]
pub struct Server {
    pub(super) config: Config,
    pub(super) tls: Option<MakeRustlsConnect>,
    /// Its address and database, without user and password.
    pub(super) label: String,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("place", &self.label)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Reads `postgres://USER:PASSWORD@HOST:PORT/DATABASE` or `host=… dbname=…`. `authorities`: the
    /// PEM of certificate authorities instead of the built-in ones.
    ///
    /// # Errors
    /// [`StoreError::Connection`], which contains nothing of the text.
    pub fn new(text: &str, authorities: Option<&[u8]>) -> Result<Self, StoreError> {
        let refused = StoreError::Connection;
        // The parser's message could contain a part of a password that was not escaped.
        let mut config: Config = text.parse().map_err(|_| {
            refused(
                "cannot be read: it must be postgres://USER:PASSWORD@HOST:PORT/DATABASE with special characters escaped (%40 for @), or host=HOST user=USER dbname=DATABASE",
            )
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(refused("names no host"));
        }
        let local = config.get_hosts().iter().all(is_local)
            && config.get_hostaddrs().iter().all(IpAddr::is_loopback);
        let encrypted = match (config.get_ssl_mode(), local) {
            (SslMode::Disable, false) => {
                return Err(refused(
                    "disables TLS for a server on another host, so passwords and files would cross the network unencrypted: leave sslmode out, or use sslmode=require",
                ));
            }
            (SslMode::Disable | SslMode::Prefer, true) => false,
            _ => true,
        };
        config.ssl_mode(if encrypted {
            SslMode::Require
        } else {
            SslMode::Disable
        });
        config
            .application_name("marshal")
            .connect_timeout(limits::STORE_CONNECT_TIMEOUT)
            .tcp_user_timeout(limits::STORE_ATTEMPT_TIMEOUT)
            .keepalives_idle(limits::STORE_ATTEMPT_TIMEOUT);
        let tls = encrypted.then(|| tls(authorities)).transpose()?;
        let place = server_label(&config);
        Ok(Self {
            config,
            tls,
            label: place,
        })
    }

    /// The message of a server or a library: truncated, escaped and without the password.
    pub(super) fn redact(&self, text: &str) -> String {
        let mut text = text.to_owned();
        if let Some(password) = self.config.get_password()
            && let Ok(password) = std::str::from_utf8(password)
            && !password.is_empty()
        {
            text = text.replace(password, "[password]");
        }
        untrusted::escape_for_display(&text, SHOWN_CHARS)
    }
}

fn is_local(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
        }
    }
}

fn server_label(config: &Config) -> String {
    let named = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    });
    let mut hosts: Vec<String> = named.collect();
    if hosts.is_empty() {
        hosts.extend(config.get_hostaddrs().iter().map(IpAddr::to_string));
    }
    let ports: Vec<String> = config.get_ports().iter().map(u16::to_string).collect();
    let mut place = format!("PostgreSQL at {}", hosts.join(","));
    if !ports.is_empty() {
        place = format!("{place}:{}", ports.join(","));
    }
    if let Some(name) = config.get_dbname() {
        place = format!("{place}/{name}");
    }
    untrusted::escape_for_display(&place, SHOWN_CHARS)
}

fn tls(authorities: Option<&[u8]>) -> Result<MakeRustlsConnect, StoreError> {
    let bad = || StoreError::Connection("has certificate authorities that are not usable PEM");
    let mut roots = RootCertStore::empty();
    if let Some(pem) = authorities {
        for certificate in CertificateDer::pem_slice_iter(pem) {
            roots
                .add(certificate.map_err(|_| bad())?)
                .map_err(|_| bad())?;
        }
        if roots.is_empty() {
            return Err(bad());
        }
    } else {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|_| bad())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_of_a_server_has_its_password() {
        let server = Server::new("postgres://ann:hunter2%40x@127.0.0.1:5433/files", None).unwrap();
        assert_eq!(server.label, "PostgreSQL at 127.0.0.1:5433/files");
        assert!(!format!("{server:?}").contains("hunter2"));
        assert_eq!(server.redact("no hunter2@x\u{1b}[0m").find("hunter2"), None);
        for bad in [
            "postgres://ann:hun ter2@x y/files?nonsense=hunter2",
            "password=hunter2 hunter2",
            "postgres://ann:hunter2@h:notaport/x",
            "password=hunter2",
            "postgres://ann:hunter2@db.example/x?sslmode=disable",
        ] {
            let error = Server::new(bad, None).unwrap_err();
            let error = format!("{error} {error:?}");
            assert!(
                !error.contains("hunter2") && !error.contains("ter2"),
                "{error}"
            );
        }
    }

    #[test]
    fn there_is_tls_wherever_the_server_is_elsewhere() {
        for (text, encrypted) in [
            ("postgres://a@127.0.0.1/x", false),
            ("postgres://a@localhost/x", false),
            ("host=/run/postgresql dbname=x", false),
            ("postgres://a@localhost/x?sslmode=require", true),
            ("postgres://a@db.example/x", true),
            ("postgres://a@10.0.0.1/x?sslmode=prefer", true),
            ("host=localhost hostaddr=10.0.0.1", true),
            ("host=localhost,db.example", true),
        ] {
            let server = Server::new(text, None).unwrap();
            assert_eq!(server.tls.is_some(), encrypted, "{text}");
            let require = server.config.get_ssl_mode() == SslMode::Require;
            assert_eq!(require, encrypted, "{text}");
        }
    }
}
