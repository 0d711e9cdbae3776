//! The way of a call of one of the supervisor's own tools: a socket inside a child's walls, served.
//!
//! ```text
//! agent -> marshal mcp (inside: bytes, and nothing else) -> /run/marshal/tools.sock
//!       -- the file of a socket of this host, mounted into this child's walls alone
//!       -- the peer's uid is the child's -> lines -> mcp/ -> whoever judges the call, and answers
//! ```
//!
//! Floor 3. Who calls is known by the socket: no other child sees it. Must not know policies, files
//! or turns, nor what a tool does.

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

/// Calls of a child on their way at the same time.
const CALLS: usize = TOOL_CONNECTIONS * TOOL_CALLS;

/// How long it waits after a connection could not be taken.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// What a connection has to say.
#[derive(Debug)]
pub enum ToolCallEvent {
    /// A tool is called.
    Call {
        /// The call's number among those of the child.
        number: u64,
        /// What is called.
        call: Box<EngineCall>,
        /// Where its answer goes. Dropped, the call has failed.
        reply: oneshot::Sender<EngineResult>,
        /// What it takes of the child's room: kept until the call is durable, also if nobody waits
        /// for it any more.
        permit: OwnedSemaphorePermit,
    },
    /// Nobody waits for the answer to that call any more.
    Abandoned(u64),
}

/// Where it is said; it must not wait.
pub type EventSink = Arc<dyn Fn(ToolCallEvent) + Send + Sync>;

/// The server of one child's tools. When it is dropped it ends, with all its connections and its
/// socket.
#[derive(Debug)]
pub struct ToolServer {
    task: JoinHandle<()>,
}

impl Drop for ToolServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What every connection of a server shares.
struct Shared {
    tools: Vec<EngineTool>,
    sink: EventSink,
    last_number: AtomicU64,
    /// Room for calls on their way, in bytes.
    buffer_permits: Arc<Semaphore>,
}

impl Shared {
    /// Room for one more call, when there is some.
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
    /// Serves these tools to whoever connects as that uid. Needs a runtime around it.
    ///
    /// # Errors
    /// The runtime cannot watch the socket.
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
                // Descriptors have run out; who connects waits in the socket's own queue.
                tracing::warn!(%error, "a connection to the tools of a child cannot be taken");
                tokio::time::sleep(ACCEPT_AGAIN).await;
                continue;
            }
        };
        match stream.peer_cred() {
            Ok(peer) if peer.uid() == uid => {}
            Ok(peer) => {
                tracing::warn!(
                    uid = peer.uid(),
                    "somebody else than the child is at its tools"
                );
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "nobody knows who is at the tools of a child");
                continue;
            }
        }
        if connections.len() >= TOOL_CONNECTIONS {
            let why = format!("{TOOL_CONNECTIONS} connections are open: close one of them");
            let line = mcp::error_line(None, mcp::INTERNAL, &why);
            // A fresh socket has room for it; whoever is not there to read it misses nothing.
            let _ = stream.try_write(&line);
            continue;
        }
        connections.spawn(connection::serve(stream, Arc::clone(shared)));
    }
}

#[cfg(test)]
mod tests;
