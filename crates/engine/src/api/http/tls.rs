//! The certificate of the HTTP listener.
//!
//! Owns how it is read and reloaded at run time. Must not know the requests.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::{TLS12, TLS13};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::api::tokens::{CredentialFileError, OpenTrusted};
use marshal_config::TlsFiles;
use marshal_model::limits;
use marshal_model::untrusted;

/// An error of a certificate or its key.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct TlsError {
    /// The configuration key that names the file.
    pub key: &'static str,
    /// What is wrong, with the file's path.
    pub message: String,
}

/// The certificate in use.
#[derive(Debug, Clone)]
pub struct Tls {
    files: TlsFiles,
    open: OpenTrusted,
    used: Arc<ArcSwap<Used>>,
    /// Sent when the certificate in use has changed.
    changes: Arc<watch::Sender<()>>,
}

#[derive(Debug)]
struct Used {
    server: Arc<ServerConfig>,
    /// SHA-256 of both files.
    digest: [u8; 32],
}

impl Tls {
    /// Reads a certificate and its key.
    ///
    /// # Errors
    /// [`TlsError`] with the file and what is wrong with it.
    pub fn read(files: &TlsFiles, open: OpenTrusted) -> Result<Self, TlsError> {
        Ok(Self {
            files: files.clone(),
            open,
            used: Arc::new(ArcSwap::from_pointee(read_files(files, open)?)),
            changes: Arc::new(watch::channel(()).0),
        })
    }

    /// Reloads both files. If they have changed, connections that were accepted before are closed
    /// after the request that they carry, so that nobody sees the former certificate any more.
    ///
    /// # Errors
    /// [`TlsError`] with the file and what is wrong with it; the current certificate stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let fresh = read_files(&self.files, self.open)?;
        if fresh.digest != self.used.load().digest {
            self.used.store(Arc::new(fresh));
            self.changes.send_replace(());
        }
        Ok(())
    }

    /// Changes with the certificate in use.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.used.load().server))
    }
}

const CERTIFICATE: &str = "http.tls.certificate";
const KEY: &str = "http.tls.key";

fn read_files(files: &TlsFiles, open: OpenTrusted) -> Result<Used, TlsError> {
    let fault = |key: &'static str, path: &Path, why: &str| TlsError {
        key,
        message: format!(
            "{}: {why}",
            untrusted::escape_for_display(&path.to_string_lossy(), 200)
        ),
    };
    let bad_chain = |why: &str| fault(CERTIFICATE, &files.certificate, why);
    let bad_key = |why: &str| fault(KEY, &files.key, why);
    let mut digest = Sha256::new();
    let pem =
        read(&files.certificate, open, false).map_err(|error| bad_chain(&error.to_string()))?;
    digest.update(&pem);
    let chain = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| bad_chain("it is not valid PEM"))?;
    if chain.is_empty() {
        return Err(bad_chain("it contains no certificate in PEM"));
    }
    let pem = read(&files.key, open, true).map_err(|error| bad_key(&error.to_string()))?;
    digest.update(&pem);
    let key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|_| bad_key("it contains no usable private key in PEM"))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(|error| bad_key(&error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => bad_key("it is not the key of the certificate"),
            rustls::Error::InvalidCertificate(_) => bad_chain("its certificate cannot be used"),
            other => bad_key(&other.to_string()),
        })?;
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Used {
        server: Arc::new(server),
        digest: digest.finalize().into(),
    })
}

fn read(path: &Path, open: OpenTrusted, is_secret: bool) -> Result<Vec<u8>, CredentialFileError> {
    let file = open(path).map_err(CredentialFileError::NotOpened)?;
    let file: File = file.ok_or(CredentialFileError::Missing)?;
    let meta = file.metadata()?;
    let own = rustix::process::geteuid().as_raw();
    if is_secret && (meta.uid() != own && meta.uid() != 0 || meta.mode() & 0o077 != 0) {
        return Err(CredentialFileError::Permissions(""));
    }
    let most = limits::CERTIFICATE_BYTES;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(CredentialFileError::TooLong(most));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    fn plainly(path: &Path) -> Result<Option<File>, String> {
        match File::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some).map_err(|error| error.to_string()),
        }
    }

    #[test]
    fn what_is_wrong_with_a_certificate_names_its_file_and_its_key() {
        let dir = tempfile::tempdir().expect("directory");
        let files = TlsFiles {
            certificate: dir.path().join("cert.pem"),
            key: dir.path().join("key.pem"),
        };
        let made = || {
            let key = KeyPair::generate().expect("key");
            let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("names");
            (
                params.self_signed(&key).expect("signed").pem(),
                key.serialize_pem(),
            )
        };
        let put = |certificate: &str, key: &str, mode: u32| {
            fs::write(&files.certificate, certificate).expect("written");
            fs::write(&files.key, key).expect("written");
            fs::set_permissions(&files.key, fs::Permissions::from_mode(mode)).expect("mode");
        };
        let wrong = |key: &str, why: &str| {
            let error = Tls::read(&files, plainly).expect_err(why);
            assert_eq!(error.key, key, "{error}");
            let text = error.to_string();
            assert!(text.contains(why) && text.contains(".pem"), "{text}");
        };
        wrong(CERTIFICATE, "there is no such file");
        let (certificate, key) = made();
        put("nothing", &key, 0o600);
        wrong(CERTIFICATE, "contains no certificate");
        put(&certificate, "nothing", 0o600);
        wrong(KEY, "contains no usable private key");
        put(&certificate, &key, 0o640);
        wrong(KEY, "mode 0600");
        let (_, other) = made();
        put(&certificate, &other, 0o600);
        wrong(KEY, "not the key of the certificate");
        put(&certificate, &key, 0o600);
        let tls = Tls::read(&files, plainly).expect("good");
        let before = tls.used.load_full();
        let changes = tls.changes();
        tls.reload().expect("the same");
        assert!(
            Arc::ptr_eq(&before, &tls.used.load_full()) && !changes.has_changed().expect("kept")
        );
        put("nothing", &key, 0o600);
        tls.reload().expect_err("it is gone");
        assert!(
            Arc::ptr_eq(&before, &tls.used.load_full()),
            "what was in use stays"
        );
        let (certificate, key) = made();
        put(&certificate, &key, 0o600);
        tls.reload().expect("another");
        assert!(!Arc::ptr_eq(&before, &tls.used.load_full()));
        assert!(changes.has_changed().expect("kept"));
    }
}
