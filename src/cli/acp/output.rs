//! The editor's input and output, each with a separate thread: they may be a terminal or a file,
//! which support only blocking reads and writes.
//!
//! The output queue is bounded in lines and bytes: senders wait while the editor does not read.
//! Must not know what a line says.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use marshal_model::limits::{EDITOR_OUT_BYTES, EDITOR_OUT_LINES, READ_CHUNK_BYTES};

/// How long to wait at the end for an editor that does not read its remaining output.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// The output to the editor; clones share one queue.
#[derive(Debug, Clone)]
pub(super) struct EditorOutput {
    lines: mpsc::Sender<Line>,
    byte_budget: Arc<Semaphore>,
    editor_gone: CancellationToken,
}

/// A line with its share of the byte budget.
#[derive(Debug)]
struct Line {
    text: String,
    share: OwnedSemaphorePermit,
}

impl EditorOutput {
    /// Starts a thread that writes to `output` until every clone is dropped. A failed write cancels
    /// `gone`. The receiver is notified of the thread's end.
    pub(super) fn start(
        output: impl Write + Send + 'static,
        editor_gone: CancellationToken,
    ) -> (Self, oneshot::Receiver<()>) {
        let (lines, coming) = mpsc::channel(EDITOR_OUT_LINES);
        let (done, written) = oneshot::channel();
        let out = Self {
            lines,
            byte_budget: Arc::new(Semaphore::new(EDITOR_OUT_BYTES)),
            editor_gone: editor_gone.clone(),
        };
        thread::spawn(move || {
            if write(output, coming).is_err() {
                editor_gone.cancel();
            }
            drop(done);
        });
        (out, written)
    }

    /// Sends one line; waits until there is room for it. Does nothing once the editor is gone.
    pub(super) async fn send(&self, mut text: String) {
        text.push('\n');
        let bytes = u32::try_from(text.len().min(EDITOR_OUT_BYTES)).unwrap_or(u32::MAX);
        let sent = async {
            let budget = Arc::clone(&self.byte_budget);
            if let Ok(share) = budget.acquire_many_owned(bytes).await {
                let _ = self.lines.send(Line { text, share }).await;
            }
        };
        tokio::select! {
            biased;
            () = sent => {}
            () = self.editor_gone.cancelled() => {}
        }
    }
}

fn write(mut output: impl Write, mut coming: mpsc::Receiver<Line>) -> io::Result<()> {
    while let Some(line) = coming.blocking_recv() {
        output.write_all(line.text.as_bytes())?;
        if coming.is_empty() {
            output.flush()?;
        }
        drop(line.share);
    }
    Ok(())
}

/// Waits a short time until the remaining output is written. A thread that is blocked by an editor
/// that does not read ends with the process.
pub(super) async fn finish(written: oneshot::Receiver<()>) {
    let _ = tokio::time::timeout(FLUSH_TIMEOUT, written).await;
}

/// Reads an input in chunks, until its end.
pub(in crate::cli) fn read_chunks(
    mut input: impl Read + Send + 'static,
) -> mpsc::Receiver<Vec<u8>> {
    let (chunks, coming) = mpsc::channel(1);
    thread::spawn(move || {
        let mut chunk = vec![0; READ_CHUNK_BYTES];
        loop {
            match input.read(&mut chunk) {
                Ok(0) => return,
                Ok(read) => {
                    if chunks.blocking_send(chunk[..read].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    coming
}
