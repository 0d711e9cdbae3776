//! Where the lines of `marshal chat` come from: a terminal with an editor, or a pipe.
//!
//! Owns the thread that reads, and the history. One line is read when one is asked for, so that what a
//! person types while an answer comes stays with the terminal. Must not know what a line is for.

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
/// Lines of it.
const REMEMBERED: usize = 1000;

/// A line, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Line {
    /// It was typed.
    Text(String),
    /// Ctrl-C in the editor.
    Interrupt,
    /// There will be no more.
    End,
    /// It cannot be read; why.
    Failed(String),
}

/// What a line is asked for with.
struct LineRequest {
    prompt: String,
    is_in_history: bool,
}

/// The lines of standard input.
pub(super) struct Lines {
    requests: mpsc::Sender<LineRequest>,
    lines: mpsc::Receiver<Line>,
    /// A line was asked for that has not come.
    is_awaited: bool,
    /// And for something that is over by now; the same of the line that came last.
    is_stale: bool,
    was_stale: bool,
    is_terminal: bool,
    /// How the terminal was set.
    before: Option<Termios>,
}

impl Lines {
    /// Begins to read where there is an editor if `edits`, with its history below `state`.
    pub(super) fn open(state: &Path, edits: bool) -> Self {
        let (approval, wishes) = mpsc::channel(1);
        let (tell, came) = mpsc::channel(1);
        let is_terminal = edits && io::stdin().is_terminal() && io::stdout().is_terminal();
        let before = is_terminal.then(|| rustix::termios::tcgetattr(io::stdin()).ok());
        let before = before.flatten();
        let history = state.join(HISTORY);
        // It may wait for a person for ever, and ends with the process.
        std::thread::spawn(move || {
            if is_terminal {
                read_terminal(wishes, &tell, &history);
            } else {
                read_pipe(wishes, &tell);
            }
        });
        Self {
            requests: approval,
            lines: came,
            is_awaited: false,
            is_stale: false,
            was_stale: false,
            is_terminal,
            before,
        }
    }

    /// Leaves the terminal as it was: the editor may still hold it.
    pub(super) fn restore(&self) {
        if let Some(before) = &self.before {
            let now = rustix::termios::OptionalActions::Now;
            let _ = rustix::termios::tcsetattr(io::stdin(), now, before);
        }
    }

    /// Whether a person types them.
    pub(super) const fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// What was asked is over: a line that still comes for it is late.
    pub(super) const fn discard_pending(&mut self) {
        self.is_stale = self.is_awaited;
    }

    /// Whether the line that came last was asked for something that is over.
    pub(super) const fn is_stale_line(&self) -> bool {
        self.was_stale
    }

    /// Asks for a line, unless one was asked for already.
    pub(super) fn request_line(&mut self, prompt: &str, is_remembered: bool) {
        if self.is_awaited {
            return;
        }
        let wish = LineRequest {
            prompt: prompt.to_owned(),
            is_in_history: is_remembered,
        };
        self.is_awaited = self.requests.try_send(wish).is_ok();
    }

    /// The line that was asked for; waits for ever if none was.
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
    mut wishes: mpsc::Receiver<LineRequest>,
    tell: &mpsc::Sender<Line>,
    history: &Path,
) {
    let config = Config::builder().auto_add_history(false).build();
    let editor = Editor::<(), FileHistory>::with_config(config);
    let mut editor = match editor {
        Ok(editor) => editor,
        Err(error) => {
            let _ = tell.blocking_send(Line::Failed(error.to_string()));
            return;
        }
    };
    let _ = editor.set_max_history_size(REMEMBERED);
    let keeps = create_history(history) && editor.load_history(history).is_ok();
    while let Some(wish) = wishes.blocking_recv() {
        let line = match editor.readline(&wish.prompt) {
            Ok(text) => {
                if wish.is_in_history && !text.trim().is_empty() {
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
        if tell.blocking_send(line).is_err() {
            return;
        }
    }
}

/// Makes the file of the history, for its owner alone.
fn create_history(history: &Path) -> bool {
    let mut how = OpenOptions::new();
    let how = how.append(true).create(true).mode(0o600);
    how.custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(history)
        .is_ok()
}

fn read_pipe(mut wishes: mpsc::Receiver<LineRequest>, tell: &mpsc::Sender<Line>) {
    let mut stdin = io::stdin().lock();
    while wishes.blocking_recv().is_some() {
        let line = read(&mut stdin);
        if tell.blocking_send(line).is_err() {
            return;
        }
    }
}

/// One line of at most [`limits::TURN_BYTES`].
fn read(from: &mut impl BufRead) -> Line {
    let mut bytes = Vec::new();
    let most = limits::TURN_BYTES as u64 + 1;
    if let Err(error) = from.take(most).read_until(b'\n', &mut bytes) {
        return Line::Failed(error.to_string());
    }
    if bytes.is_empty() {
        return Line::End;
    }
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    } else if bytes.len() > limits::TURN_BYTES {
        let most = limits::TURN_BYTES;
        return Line::Failed(format!("the line has more than {most} bytes: send less"));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Line::Text(text),
        Err(_) => Line::Failed("the line is no UTF-8".to_owned()),
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
