//! The tool server: serves calls of the supervisor's own tools on a socket inside a child's
//! sandbox.
//!
//! ```text
//! agent -> marshal mcp (inside: bytes, and nothing else) -> /run/marshal/tools.sock
//!       -- a socket file of this host, mounted into this child's sandbox only
//!       -- the peer's uid is the child's -> lines -> mcp/ -> the session evaluates and answers
//! ```
//!
//! The socket identifies the child: no other child sees it. Must not know policies, files or turns,
//! nor what a tool does.

mod connection;
mod socket;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};

use marshal_dialect::mcp;
use marshal_model::limits::{CLIENT_OPEN_BYTES, TOOL_CALLS, TOOL_CONNECTIONS};
use marshal_model::{EngineCall, EngineResult, EngineTool};
pub use socket::Socket;

/// Maximum calls of a child in progress.
const CALLS: usize = TOOL_CONNECTIONS * TOOL_CALLS;

/// Delay after `accept` failed.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// An event of a connection.
#[derive(Debug)]
pub enum ToolCallEvent {
    /// A tool is called.
    Call {
        /// The call's number among those of the child.
        number: u64,
        /// The call itself.
        call: Box<EngineCall>,
        /// Receives the result. If dropped, the call has failed.
        reply: oneshot::Sender<EngineResult>,
        /// The call's share of the child's buffer. It must live until the call is durable, even if
        /// the call was abandoned.
        permit: OwnedSemaphorePermit,
    },
    /// The client of this call is gone.
    Abandoned(u64),
}

/// Receives the events; it must not block.
pub type EventSink = Arc<dyn Fn(ToolCallEvent) + Send + Sync>;

/// The tool server of one child. Dropping it ends its connections and removes its socket.
#[derive(Debug)]
pub struct ToolServer {
    task: JoinHandle<()>,
}

impl Drop for ToolServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// State that all connections of a server share.
struct Shared {
    tools: Vec<EngineTool>,
    sink: EventSink,
    last_number: AtomicU64,
    /// Buffer space for calls in progress, in bytes.
    buffer_permits: Arc<Semaphore>,
}

impl Shared {
    /// Waits for buffer space for one more call; `None` when the server ends.
    async fn acquire_buffer(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = bytes.clamp(CLIENT_OPEN_BYTES / CALLS, CLIENT_OPEN_BYTES);
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Arc::clone(&self.buffer_permits)
            .acquire_many_owned(bytes)
            .await
            .ok()
    }

    fn next_number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl ToolServer {
    /// Serves the tools to every peer with that uid. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// The runtime cannot register the socket.
    pub fn start(
        socket: Socket,
        tools: Vec<EngineTool>,
        uid: u32,
        tell: EventSink,
    ) -> std::io::Result<Self> {
        let (listener, file) = socket.take()?;
        let shared = Arc::new(Shared {
            tools,
            sink: tell,
            last_number: AtomicU64::new(0),
            buffer_permits: Arc::new(Semaphore::new(CLIENT_OPEN_BYTES)),
        });
        let task = tokio::spawn(async move {
            let _file = file;
            accept(&listener, uid, &shared).await;
        });
        Ok(Self { task })
    }
}

async fn accept(listener: &UnixListener, uid: u32, shared: &Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // No descriptor is free; clients wait in the socket's backlog.
                tracing::warn!(%error, "the tool server of a child cannot accept a connection");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == uid => {}
            Ok(peer) => {
                tracing::warn!(
                    uid = peer.uid(),
                    "a process with another uid than the child's connected to its tools: refused"
                );
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "the peer of a connection to the tools of a child is unknown: refused");
                continue;
            }
        }
        if connections.len() >= TOOL_CONNECTIONS {
            let why = format!("{TOOL_CONNECTIONS} connections are open already: close one of them");
            let line = mcp::error_line(None, mcp::INTERNAL, &why);
            // A new socket has buffer space for the line; a client that does not read it misses
            // nothing.
            let _ = stream.try_write(&line);
            continue;
        }
        connections.spawn(connection::serve(stream, Arc::clone(shared)));
    }
}

#[cfg(test)]
mod tests;
