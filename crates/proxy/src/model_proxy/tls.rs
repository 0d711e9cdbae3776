//! Which certificate authorities our TLS clients trust: the built-in ones, or those of one file
//! instead.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

use marshal_config::CertificateAuthorities;
use marshal_model::untrusted;

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file of certificate authorities has no usable certificate.
    #[error("{0} contains no usable certificate authority in PEM format")]
    Authorities(String),
    /// The TLS library refused the configuration.
    #[error(transparent)]
    Tls(#[from] rustls::Error),
}

/// A TLS client configuration without a client certificate.
pub(super) fn client_config(ca: Option<&CertificateAuthorities>) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    if let Some(ca) = ca {
        let bad = || {
            TlsError::Authorities(untrusted::escape_for_display(
                &ca.path.to_string_lossy(),
                200,
            ))
        };
        let pem = ca.pem.as_deref().ok_or_else(bad)?;
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
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}
