//! One connection: lines in, answers out.
//!
//! Reads nothing while it writes, so that one who does not take answers is not heard either. Must
//! not know what a tool does.

use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::{Said, Shared, Tell};
use crate::limits::{READ_CHUNK_BYTES, TOOL_LINE_BYTES};
use crate::mcp::{Effect, Server};
use crate::model::{ClientError, ClientFault, EngineAnswer};
use crate::wire::ndjson::Lines;

/// The calls of a connection that are not answered; dropped, nobody waits for them.
struct UnderWay {
    tell: Tell,
    /// Of each its number on the connection, and that among all of the child.
    calls: Vec<(u64, u64)>,
}

impl UnderWay {
    fn over(&mut self, number: u64) -> Option<u64> {
        let at = self.calls.iter().position(|(of, _)| *of == number)?;
        Some(self.calls.swap_remove(at).1)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        for (_, number) in self.calls.drain(..) {
            (self.tell)(Said::Gone(number));
        }
    }
}

/// Serves one connection until its other end closes it.
pub(super) async fn serve(mut stream: UnixStream, shared: Arc<Shared>) {
    let mut server = Server::new(&shared.tools);
    let mut lines = Lines::new(TOOL_LINE_BYTES);
    let mut answers: JoinSet<(u64, EngineAnswer)> = JoinSet::new();
    let mut under_way = UnderWay {
        tell: Arc::clone(&shared.tell),
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
                    let came = chunk.get(..got).unwrap_or_default();
                    lines.push(came.to_vec());
                    for line in lines.by_ref() {
                        if let Ok(line) = line {
                            server.line(&line, &mut out);
                        } else {
                            server.too_long(&mut out);
                            is_over = true;
                        }
                    }
                }
            },
            Some(answered) = answers.join_next() => {
                if let Ok((number, answer)) = answered
                    && under_way.over(number).is_some()
                {
                    server.answered(number, &answer, &mut out);
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
                    // Whoever calls faster than the disk takes it in is not read meanwhile.
                    let Some(room) = shared.room(call.held()).await else {
                        return;
                    };
                    let (reply, answer) = oneshot::channel();
                    let of_child = shared.number();
                    under_way.calls.push((number, of_child));
                    answers.spawn(async move { (number, answer.await.unwrap_or_else(|_| lost())) });
                    (shared.tell)(Said::Call {
                        number: of_child,
                        call,
                        reply,
                        room,
                    });
                }
                Effect::Cancelled(number) => {
                    if let Some(of_child) = under_way.over(number) {
                        (shared.tell)(Said::Gone(of_child));
                    }
                }
            }
        }
        if is_over {
            return;
        }
    }
}

fn lost() -> EngineAnswer {
    let why = "the session ended before this was carried out";
    Err(ClientError::new(ClientFault::Failed, why))
}
