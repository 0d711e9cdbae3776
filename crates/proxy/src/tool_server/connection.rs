//! One connection: request lines in, response lines out.
//!
//! It reads nothing while it writes, so that a client that does not read responses cannot send more
//! calls. Must not know what a tool does.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{EventSink, Shared, ToolCallEvent};
use marshal_dialect::mcp::{Effect, Server};
use marshal_model::limits::{READ_CHUNK_BYTES, TOOL_LINE_BYTES};
use marshal_model::{ClientError, ClientErrorKind, EngineResult};
use marshal_wire::ndjson::LineDecoder;

/// Unanswered calls of a connection. Dropping it abandons them.
struct PendingCalls {
    sink: EventSink,
    /// For each call: its id on the connection, and its number among all calls of the child.
    calls: Vec<(u64, u64)>,
}

impl PendingCalls {
    fn remove(&mut self, number: u64) -> Option<u64> {
        let at = self.calls.iter().position(|(item, _)| *item == number)?;
        Some(self.calls.swap_remove(at).1)
    }
}

impl Drop for PendingCalls {
    fn drop(&mut self) {
        for (_, number) in self.calls.drain(..) {
            (self.sink)(ToolCallEvent::Abandoned(number));
        }
    }
}

/// Serves one connection until the client closes it.
pub(super) async fn serve(mut stream: UnixStream, shared: Arc<Shared>) {
    let mut server = Server::new(&shared.tools);
    let mut lines = LineDecoder::new(TOOL_LINE_BYTES);
    let mut answers: JoinSet<(u64, EngineResult)> = JoinSet::new();
    let mut under_way = PendingCalls {
        sink: Arc::clone(&shared.sink),
        calls: Vec::new(),
    };
    let mut chunk = vec![0; READ_CHUNK_BYTES];
    loop {
        let mut out = Vec::new();
        let mut is_over = false;
        tokio::select! {
            read = stream.read(&mut chunk) => match read {
                Ok(0) | Err(_) => return,
                Ok(got) => {
                    let received = chunk.get(..got).unwrap_or_default();
                    lines.push(received.to_vec());
                    for line in lines.by_ref() {
                        if let Ok(line) = line {
                            server.handle_line(&line, &mut out);
                        } else {
                            server.reject_long_line(&mut out);
                            is_over = true;
                        }
                    }
                }
            },
            Some(answered) = answers.join_next() => {
                if let Ok((number, answer)) = answered
                    && under_way.remove(number).is_some()
                {
                    server.answer_call(number, &answer, &mut out);
                }
            }
        }
        for effect in out {
            match effect {
                Effect::Write(line) => {
                    if stream.write_all(&line).await.is_err() {
                        return;
                    }
                }
                Effect::Call { number, call } => {
                    // Backpressure: a client that calls faster than the journal writes is not read
                    // meanwhile.
                    let Some(buffer) = shared.acquire_buffer(call.text_bytes()).await else {
                        return;
                    };
                    let (reply, answer) = oneshot::channel();
                    let of_child = shared.next_number();
                    under_way.calls.push((number, of_child));
                    answers.spawn(async move {
                        (number, answer.await.unwrap_or_else(|_| session_ended()))
                    });
                    (shared.sink)(ToolCallEvent::Call {
                        number: of_child,
                        call,
                        reply,
                        permit: buffer,
                    });
                }
                Effect::Cancelled(number) => {
                    if let Some(of_child) = under_way.remove(number) {
                        (shared.sink)(ToolCallEvent::Abandoned(of_child));
                    }
                }
            }
        }
        if is_over {
            return;
        }
    }
}

fn session_ended() -> EngineResult {
    let why = "the session ended before the call was done";
    Err(ClientError::new(ClientErrorKind::Failed, why))
}
