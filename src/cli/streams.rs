//! Standard output and standard error.
//!
//! Knows whether each is a terminal, its width and whether to use colours. Must not know what is
//! printed. A closed output (a pipe without a reader, a closed terminal) is not an error: further
//! writes are dropped.

use std::io::{self, IsTerminal, Write};

use marshal_model::untrusted::escape_json_for_terminal;

/// The width of tables in a file or a pipe, in columns.
pub const PIPED_WIDTH: usize = 120;

/// The least width of tables on a terminal, in columns.
pub const NARROWEST: usize = 40;

/// One output stream.
pub struct Output {
    to: Box<dyn Write + Send>,
    is_terminal: bool,
    broken: bool,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Output")
            .field("is_terminal", &self.is_terminal)
            .field("broken", &self.broken)
            .finish_non_exhaustive()
    }
}

impl Output {
    /// An output to `to`.
    #[must_use]
    pub fn new(to: Box<dyn Write + Send>, is_terminal: bool) -> Self {
        Self {
            to,
            is_terminal,
            broken: false,
        }
    }

    /// Whether the output is a terminal.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Whether the output has no reader any more.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.broken
    }

    /// Writes a text unchanged; it must be safe to show.
    pub fn text(&mut self, text: &str) {
        if self.broken {
            return;
        }
        let written = self
            .to
            .write_all(text.as_bytes())
            .and_then(|()| self.to.flush());
        self.broken = written.is_err();
    }

    /// Writes a line; it must be safe to show.
    pub fn line(&mut self, line: &str) {
        self.text(&format!("{line}\n"));
    }

    /// Writes a JSON document as one line. On a terminal, control characters are written as `\u`.
    pub fn json(&mut self, document: &str) {
        if self.is_terminal {
            self.line(&escape_json_for_terminal(document));
        } else {
            self.line(document);
        }
    }
}

/// Both output streams of the program.
#[derive(Debug)]
pub struct Streams {
    /// Standard output, for results.
    pub out: Output,
    /// Standard error, for progress and errors.
    pub err: Output,
    /// The width of tables on `out`, in columns.
    pub width: usize,
    /// Whether `out` may have colours.
    pub coloured: bool,
}

impl Streams {
    /// The streams of the process. `no_colour` is whether `NO_COLOR` is set and not empty
    /// (no-color.org).
    #[must_use]
    pub fn standard(no_colour: bool) -> Self {
        let out = Output::new(Box::new(io::stdout()), io::stdout().is_terminal());
        let err = Output::new(Box::new(io::stderr()), io::stderr().is_terminal());
        let width = if out.is_terminal {
            let size = rustix::termios::tcgetwinsize(io::stdout()).ok();
            size.map_or(0, |size| usize::from(size.ws_col))
        } else {
            0
        };
        Self {
            width: match width {
                0 => PIPED_WIDTH,
                width => width.max(NARROWEST),
            },
            coloured: out.is_terminal && !no_colour,
            out,
            err,
        }
    }

    /// Streams into memory, for tests.
    #[cfg(test)]
    pub(crate) fn captured(is_terminal: bool) -> (Self, Captured, Captured) {
        let (out, err) = (Captured::default(), Captured::default());
        let streams = Self {
            out: Output::new(Box::new(out.clone()), is_terminal),
            err: Output::new(Box::new(err.clone()), false),
            width: PIPED_WIDTH,
            coloured: false,
        };
        (streams, out, err)
    }
}

/// The written text.
#[cfg(test)]
#[derive(Debug, Clone, Default)]
pub(crate) struct Captured(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

#[cfg(test)]
impl Captured {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("lock").clone()).expect("text")
    }
}

#[cfg(test)]
impl Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Closed;

    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_output_is_written_to_no_more() {
        let mut output = Output::new(Box::new(Closed), false);
        output.line("a");
        assert!(output.broken);
        output.line("b");
    }

    #[test]
    fn json_is_escaped_for_a_terminal_and_left_alone_for_a_pipe() {
        let (mut terminal, out, _) = Streams::captured(true);
        terminal.out.json("{\"a\":\"\u{9b}2J\"}");
        assert_eq!(out.text(), "{\"a\":\"\\u009b2J\"}\n");
        let (mut pipe, out, _) = Streams::captured(false);
        pipe.out.json("{\"a\":\"\u{9b}2J\"}");
        assert_eq!(out.text(), "{\"a\":\"\u{9b}2J\"}\n");
    }
}
