//! The egress proxy: forwards connections from a socket inside a sandbox to allowed hosts of the
//! public internet.
//!
//! ```text
//! agent -> 127.0.0.1:3128 inside -- CONNECT host:port, parsed, checked against the list (egress/)
//!                                -- name resolved once, every address checked, one dialled
//!                                -- "200", then a ClientHello that names the same host
//!       <=========== bytes in both directions, counted, within limits of size and time ===========>
//! ```
//!
//! The socket identifies the child: each child has its own, over TCP or Unix. Nothing after the
//! ClientHello is inspected, and nothing of it is logged or stored. Must not know tasks, turns or
//! protocols of agents.

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
pub(crate) use ledger::Ledger;
use marshal_config::Egress;
use marshal_model::SlotId;
pub use resolve::{LookupFuture, LookupPermit, Resolve, SystemResolver};

/// The listening socket of a proxy.
#[derive(Debug)]
pub enum Listener {
    /// A TCP socket on the sandbox's loopback.
    Tcp(TcpListener),
    /// A Unix socket, with a forwarder inside that connects to it.
    Unix(UnixListener),
}

impl Listener {
    /// Wraps a TCP listener. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// The runtime cannot register the socket.
    pub fn tcp(listener: std::net::TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Tcp(TcpListener::from_std(listener)?))
    }

    /// Wraps a Unix listener. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// The runtime cannot register the socket.
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

/// A connection from a sandbox.
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

/// Receives records of ended connections; it must not block.
pub type RecordSink = Box<dyn Fn(EgressRecord) + Send + Sync>;

/// The proxy of one child. Dropping it ends its connections and closes its socket.
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
    /// Serves a child's socket by these rules. Must run inside a tokio runtime.
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

    /// Stops the proxy; returns the records not yet written, those of connections cut now included.
    #[must_use]
    pub fn finish(&self) -> Vec<EgressRecord> {
        // Before the abort: a connection that the abort cuts must not write its own record.
        let rest = self.ledger.finish();
        self.task.abort();
        rest
    }
}
