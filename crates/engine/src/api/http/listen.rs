//! The HTTP listeners: an address, with or without TLS, and a socket in the state directory.
//!
//! Owns the bind errors and the peer of each connection. Must not know the requests.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixStream};

use super::tls::Tls;
use crate::api::guard::Peer;
use crate::api::unix_socket;

/// The socket's name in the state directory.
pub const SOCKET: &str = "http.sock";

/// Why the address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr}: {}", self.reason())]
pub struct BindError {
    /// The address, as configured.
    pub addr: SocketAddr,
    /// The system's error.
    #[source]
    pub source: io::Error,
}

impl BindError {
    /// Whether another program uses the address.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.source.kind() == io::ErrorKind::AddrInUse
    }

    fn reason(&self) -> String {
        if self.is_in_use() {
            "another program listens there; set supervisor.listen to a free address, or to port 0"
                .to_owned()
        } else {
            format!(
                "{}; set supervisor.listen to another address of this host",
                self.source
            )
        }
    }
}

/// A bound listener that is not served yet.
#[derive(Debug)]
pub struct Listener {
    pub(super) endpoint: Endpoint,
    pub(super) tls: Option<Tls>,
    pub(super) hosts: Arc<[String]>,
}

/// The kind of listener.
#[derive(Debug)]
pub(super) enum Endpoint {
    Address(TcpListener, SocketAddr),
    Socket(unix_socket::Listener),
}

/// An accepted connection.
pub(super) enum Accepted {
    Address(TcpStream, Peer),
    /// From the supervisor's user or root, on the socket, with the uid.
    Socket(UnixStream, u32),
    /// From another user, on the socket, with the reason for its rejection.
    Stranger(UnixStream, String),
}

impl Listener {
    /// Returns the address, with the port that the system chose if port 0 is configured; `None` for
    /// a socket.
    #[must_use]
    pub fn addr(&self) -> Option<SocketAddr> {
        match self.endpoint {
            Endpoint::Address(_, addr) => Some(addr),
            Endpoint::Socket(_) => None,
        }
    }

    /// Returns the URL or path for display.
    #[must_use]
    pub fn url(&self) -> String {
        match (&self.endpoint, &self.tls) {
            (Endpoint::Address(_, addr), None) => format!("http://{addr}"),
            (Endpoint::Address(_, addr), Some(_)) => format!("https://{addr}"),
            (Endpoint::Socket(_), _) => SOCKET.to_owned(),
        }
    }

    /// Returns the certificate, so that it can be reloaded.
    #[must_use]
    pub fn tls(&self) -> Option<Tls> {
        self.tls.clone()
    }

    /// Adds TLS, and further host names that requests may use.
    #[must_use]
    pub fn with_tls(mut self, tls: Option<Tls>, hosts: &[String]) -> Self {
        self.tls = tls;
        self.hosts = hosts.into();
        self
    }
}

/// Listens on an address. Connections wait until [`super::serve`] runs.
///
/// # Errors
/// [`BindError`].
pub async fn bind(addr: SocketAddr) -> Result<Listener, BindError> {
    let failed = |source| BindError { addr, source };
    let tcp = TcpListener::bind(addr).await.map_err(failed)?;
    let addr = tcp.local_addr().map_err(failed)?;
    Ok(Listener {
        endpoint: Endpoint::Address(tcp, addr),
        tls: None,
        hosts: [].into(),
    })
}

/// Uses a listener that a service manager opened. Must be called inside a runtime.
///
/// # Errors
/// The system's error.
pub fn adopt(tcp: std::net::TcpListener) -> io::Result<Listener> {
    tcp.set_nonblocking(true)?;
    let tcp = TcpListener::from_std(tcp)?;
    let addr = tcp.local_addr()?;
    Ok(Listener {
        endpoint: Endpoint::Address(tcp, addr),
        tls: None,
        hosts: [].into(),
    })
}

/// Uses a socket that a service manager bound to `STATE/http.sock`. Must be called inside a runtime.
///
/// # Errors
/// [`unix_socket::BindError`].
pub fn adopt_socket(
    socket: std::os::unix::net::UnixListener,
    state_dir: &Path,
) -> Result<Listener, unix_socket::BindError> {
    let socket = unix_socket::adopt(socket, state_dir, SOCKET)?;
    Ok(Listener {
        endpoint: Endpoint::Socket(socket),
        tls: None,
        hosts: [].into(),
    })
}

/// Creates `STATE/http.sock` with mode 0600. The caller holds the state directory's lock.
///
/// # Errors
/// [`unix_socket::BindError`].
pub fn bind_socket(state_dir: &Path) -> Result<Listener, unix_socket::BindError> {
    let socket = unix_socket::bind(state_dir, SOCKET)?;
    Ok(Listener {
        endpoint: Endpoint::Socket(socket),
        tls: None,
        hosts: [].into(),
    })
}

impl Endpoint {
    /// Accepts the next connection.
    pub(super) async fn accept(&self) -> Accepted {
        loop {
            match self.try_accept().await {
                Ok(came) => return came,
                Err(error) => {
                    // Usually the process has no free descriptors. That passes, and an immediate
                    // retry would spin.
                    tracing::warn!(%error, "cannot accept an HTTP connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    async fn try_accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Address(tcp, _) => {
                let (stream, remote) = tcp.accept().await?;
                let peer = Peer::Address {
                    remote: remote.ip(),
                    local: stream.local_addr()?,
                };
                let _ = stream.set_nodelay(true);
                Ok(Accepted::Address(stream, peer))
            }
            Self::Socket(socket) => {
                let (stream, _) = socket.unix.accept().await?;
                let own = rustix::process::geteuid().as_raw();
                let why = match stream.peer_cred().map(|peer| peer.uid()) {
                    Ok(uid) if uid == own || uid == 0 => return Ok(Accepted::Socket(stream, uid)),
                    Ok(uid) => format!(
                        "uid {uid} may not use this socket of a supervisor that runs as uid {own}"
                    ),
                    Err(_) => "the kernel does not report your user id".to_owned(),
                };
                Ok(Accepted::Stranger(stream, why))
            }
        }
    }
}
