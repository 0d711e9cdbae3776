//! The way of a connection to a host outside: from a socket that listens inside a sandbox to the
//! public internet, for hosts of an allow-list only.
//!
//! ```text
//! agent -> 127.0.0.1:3128 inside -- CONNECT host:port, read and held against the list (egress/)
//!                                -- the name looked up once, every address of it judged, one dialled
//!                                -- "200", the first message of TLS names the same host
//!       <=========== bytes in both directions, counted, within limits of size and time ===========>
//! ```
//!
//! Floor 3. Who asks is known by the socket: it is the child's own. Whether that is of TCP or of Unix
//! makes no difference here. Nothing of what passes is looked at behind the first words of TLS, and
//! nothing of it is logged or kept. Must not know tasks, turns or protocols of agents.

mod connection;
mod forward;
mod ledger;
mod resolve;
mod route_lookup;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;

use connection::EgressContext;
pub use ledger::EgressRecord;
use ledger::Ledger;
use marshal_config::Egress;
use marshal_model::SlotId;
pub use resolve::{LookupFuture, LookupPermit, Resolve, SystemResolver};

/// Where a proxy's connections come from.
#[derive(Debug)]
pub enum Listener {
    /// A socket of the loopback inside.
    Tcp(TcpListener),
    /// A socket of the file system, with something inside that forwards to it.
    Unix(UnixListener),
}

impl Listener {
    /// Takes over a socket of TCP. Needs a runtime around it.
    ///
    /// # Errors
    /// The runtime cannot watch it.
    pub fn tcp(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(TcpListener::from_std(listener)?))
    }

    /// Takes over a socket of Unix. Needs a runtime around it.
    ///
    /// # Errors
    /// The runtime cannot watch it.
    pub fn unix(listener: std::os::unix::net::UnixListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(UnixListener::from_std(listener)?))
    }

    async fn accept(&self) -> io::Result<ClientStream> {
        Ok(match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                let _ = stream.set_nodelay(true);
                ClientStream::Tcp(stream)
            }
            Self::Unix(listener) => ClientStream::Unix(listener.accept().await?.0),
        })
    }
}

/// A connection from inside.
#[derive(Debug)]
enum ClientStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// Where records of ended connections go; it must not wait.
pub type RecordSink = Box<dyn Fn(EgressRecord) + Send + Sync>;

/// The proxy of one child. When it is dropped it ends, with all its connections and its socket.
#[derive(Debug)]
pub struct EgressProxy {
    task: JoinHandle<()>,
    ledger: Arc<Ledger>,
}

impl Drop for EgressProxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl EgressProxy {
    /// Serves a child's socket by these rules. Needs a runtime around it.
    #[must_use]
    pub fn start(
        listener: Listener,
        rules: Arc<Egress>,
        slot: &SlotId,
        resolver: Arc<dyn Resolve>,
        tell: RecordSink,
    ) -> Self {
        let ledger = Arc::new(Ledger::new(slot.clone(), tell));
        let gate = EgressContext::new(rules, resolver, Arc::clone(&ledger));
        Self {
            task: tokio::spawn(connection::serve(listener, Arc::new(gate))),
            ledger,
        }
    }

    /// Ends it; gives the records that were not told, those of connections that end now among them.
    #[must_use]
    pub fn finish(&self) -> Vec<EgressRecord> {
        // In this order: a connection that is cut by the abort must not tell it by itself.
        let rest = self.ledger.finish();
        self.task.abort();
        rest
    }
}
