//! The input lines of `marshal chat`: from a terminal with a line editor, or from a pipe.
//!
//! Owns the reading thread and the history. A line is read only on request, so that text that is
//! typed while an answer arrives stays in the terminal. Must not know what a line is for.

use std::fs::OpenOptions;
use std::io::{self, BufRead, IsTerminal as _, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::termios::Termios;
use rustyline::config::Configurer as _;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{Config, Editor};
use tokio::sync::mpsc;

use marshal_model::limits;

/// The file of the history, in the state directory.
const HISTORY: &str = "chat.history";
/// The most lines of the history.
const REMEMBERED: usize = 1000;

/// A line, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    /// A line of text.
    Text(String),
    /// Ctrl-C in the line editor.
    Interrupt,
    /// The end of the input.
    End,
    /// The input cannot be read, with the reason.
    Failed(String),
}

/// A request for a line.
struct LineRequest {
    prompt: String,
    is_in_history: bool,
}

/// The lines of standard input.
pub(super) struct Lines {
    requests: mpsc::Sender<LineRequest>,
    lines: mpsc::Receiver<Line>,
    /// Whether a requested line has not arrived yet.
    is_awaited: bool,
    /// Whether the awaited line answers something that has ended; `was_stale` is the same for the
    /// last line.
    is_stale: bool,
    was_stale: bool,
    is_terminal: bool,
    /// The terminal settings at the start.
    before: Option<Termios>,
}

impl Lines {
    /// Starts to read; on a terminal, with a line editor if `edits`. The history is below `state`.
    pub(super) fn open(state: &Path, edits: bool) -> Self {
        let (request_sender, requests) = mpsc::channel(1);
        let (line_sender, lines) = mpsc::channel(1);
        let is_terminal = edits && io::stdin().is_terminal() && io::stdout().is_terminal();
        let before = is_terminal
            .then(|| rustix::termios::tcgetattr(io::stdin()).ok())
            .flatten();
        let history = state.join(HISTORY);
        // The thread may block on the terminal forever; it ends with the process.
        std::thread::spawn(move || {
            if is_terminal {
                read_terminal(requests, &line_sender, &history);
            } else {
                read_pipe(requests, &line_sender);
            }
        });
        Self {
            requests: request_sender,
            lines,
            is_awaited: false,
            is_stale: false,
            was_stale: false,
            is_terminal,
            before,
        }
    }

    /// Restores the terminal settings: the line editor may still be active.
    pub(super) fn restore(&self) {
        if let Some(before) = &self.before {
            let now = rustix::termios::OptionalActions::Now;
            let _ = rustix::termios::tcsetattr(io::stdin(), now, before);
        }
    }

    /// Whether the lines come from a terminal.
    pub(super) const fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Marks the awaited line as stale: what it would answer has ended.
    pub(super) const fn discard_pending(&mut self) {
        self.is_stale = self.is_awaited;
    }

    /// Whether the last line was stale when it arrived.
    pub(super) const fn is_stale_line(&self) -> bool {
        self.was_stale
    }

    /// Requests a line, unless one is awaited already.
    pub(super) fn request_line(&mut self, prompt: &str, is_remembered: bool) {
        if self.is_awaited {
            return;
        }
        let request = LineRequest {
            prompt: prompt.to_owned(),
            is_in_history: is_remembered,
        };
        self.is_awaited = self.requests.try_send(request).is_ok();
    }

    /// The requested line; waits forever if none was requested.
    pub(super) async fn next(&mut self) -> Line {
        if !self.is_awaited {
            return std::future::pending().await;
        }
        let line = self.lines.recv().await.unwrap_or(Line::End);
        self.is_awaited = false;
        self.was_stale = std::mem::take(&mut self.is_stale);
        line
    }
}

fn read_terminal(
    mut requests: mpsc::Receiver<LineRequest>,
    lines: &mpsc::Sender<Line>,
    history: &Path,
) {
    let config = Config::builder().auto_add_history(false).build();
    let editor = Editor::<(), FileHistory>::with_config(config);
    let mut editor = match editor {
        Ok(editor) => editor,
        Err(error) => {
            let _ = lines.blocking_send(Line::Failed(error.to_string()));
            return;
        }
    };
    let _ = editor.set_max_history_size(REMEMBERED);
    let keeps = create_history(history) && editor.load_history(history).is_ok();
    while let Some(request) = requests.blocking_recv() {
        let line = match editor.readline(&request.prompt) {
            Ok(text) => {
                if request.is_in_history && !text.trim().is_empty() {
                    let added = editor.add_history_entry(text.as_str()).unwrap_or(false);
                    if keeps && added {
                        let _ = editor.save_history(history);
                    }
                }
                Line::Text(text)
            }
            Err(ReadlineError::Interrupted) => Line::Interrupt,
            Err(ReadlineError::Eof) => Line::End,
            Err(error) => Line::Failed(error.to_string()),
        };
        if lines.blocking_send(line).is_err() {
            return;
        }
    }
}

/// Creates the history file, readable only for its owner.
fn create_history(history: &Path) -> bool {
    let mut how = OpenOptions::new();
    let how = how.append(true).create(true).mode(0o600);
    how.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(history)
        .is_ok()
}

fn read_pipe(mut requests: mpsc::Receiver<LineRequest>, lines: &mpsc::Sender<Line>) {
    let mut stdin = io::stdin().lock();
    while requests.blocking_recv().is_some() {
        let line = read(&mut stdin);
        if lines.blocking_send(line).is_err() {
            return;
        }
    }
}

/// One line of at most [`limits::TURN_BYTES`].
fn read(from: &mut impl BufRead) -> Line {
    let mut bytes = Vec::new();
    let max_bytes = limits::TURN_BYTES as u64 + 1;
    if let Err(error) = from.take(max_bytes).read_until(b'\n', &mut bytes) {
        return Line::Failed(error.to_string());
    }
    if bytes.is_empty() {
        return Line::End;
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    } else if bytes.len() > limits::TURN_BYTES {
        let max_bytes = limits::TURN_BYTES;
        return Line::Failed(format!(
            "the line is longer than {max_bytes} bytes; send less"
        ));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Line::Text(text),
        Err(_) => Line::Failed("the line is not UTF-8".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_one_by_one_and_have_a_bound() {
        let mut from: &[u8] = b"one\n\ntwo";
        let text = |text: &str| Line::Text(text.to_owned());
        assert_eq!(read(&mut from), text("one"));
        assert_eq!(read(&mut from), text(""));
        assert_eq!(read(&mut from), text("two"));
        assert_eq!(read(&mut from), Line::End);
        let long = vec![b'x'; limits::TURN_BYTES + 2];
        assert!(matches!(read(&mut &long[..]), Line::Failed(_)));
        assert!(matches!(read(&mut &b"\xff\n"[..]), Line::Failed(_)));
    }
}
