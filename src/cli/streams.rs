//! Standard output and standard error.
//!
//! Knows whether each is a terminal, its width and whether to use colours. Must not know what is
//! printed. A closed output (a pipe without a reader, a closed terminal) is not an error: further
//! writes are dropped.

use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use marshal_model::untrusted::escape_json_for_terminal;

/// The width of tables in a file or a pipe, in columns.
pub const PIPED_WIDTH: usize = 120;

/// The least width of tables on a terminal, in columns.
pub const NARROWEST: usize = 40;

/// One output stream.
pub struct Output {
    to: Box<dyn Write + Send>,
    is_terminal: bool,
    /// The columns of the terminal.
    columns: Option<usize>,
    /// Whether each line is prose.
    is_prose: bool,
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
            columns: None,
            is_prose: false,
            broken: false,
        }
    }

    /// A stream of the process; the columns are those of its terminal.
    fn standard(to: Box<dyn Write + Send>, fd: &(impl IsTerminal + AsFd)) -> Self {
        let mut output = Self::new(to, fd.is_terminal());
        let size = rustix::termios::tcgetwinsize(fd).ok();
        let columns = size.map(|size| usize::from(size.ws_col));
        output.columns = columns
            .filter(|columns| output.is_terminal && *columns > 0)
            .map(|columns| columns.max(NARROWEST));
        output
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
        match self.columns.filter(|_| self.is_prose) {
            Some(columns) => self.text(&wrap(line, columns)),
            None => self.text(&format!("{line}\n")),
        }
    }

    /// Writes lines of prose. On a terminal, what is too long goes on in a further line, below its text;
    /// words and commands in backticks stay whole.
    pub fn prose(&mut self, text: &str) {
        for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
            match self.columns {
                Some(columns) => self.text(&wrap(line, columns)),
                None => self.line(line),
            }
        }
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

/// The line as lines of at most this many columns, if its words allow.
fn wrap(line: &str, columns: usize) -> String {
    const KEPT: char = '\u{a0}';
    let mut is_quoted = false;
    let joined: String = line
        .chars()
        .map(|char| {
            is_quoted ^= char == '`';
            if is_quoted && char == ' ' { KEPT } else { char }
        })
        .collect();
    let lead = line.len() - line.trim_start().len();
    let indent = " ".repeat((lead + 2).min(columns / 2));
    let options = textwrap::Options::new(columns)
        .break_words(false)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .subsequent_indent(&indent);
    let mut wrapped = textwrap::fill(&joined, options).replace(KEPT, " ");
    wrapped.push('\n');
    wrapped
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
        let out = Output::standard(Box::new(io::stdout()), &io::stdout());
        let mut err = Output::standard(Box::new(io::stderr()), &io::stderr());
        err.is_prose = true;
        Self {
            width: out.columns.unwrap_or(PIPED_WIDTH),
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
    fn prose_is_wrapped_between_words_and_outside_of_commands() {
        let line = "  task-3: its changes: `marshal diff 9c813068`; to get its branch: `marshal land 9c813068`";
        assert_eq!(
            wrap(line, 60),
            "  task-3: its changes: `marshal diff 9c813068`; to get its\n    branch: `marshal land 9c813068`\n"
        );
        assert_eq!(wrap("a  b", 60), "a  b\n");
        let long = "x".repeat(90);
        assert_eq!(wrap(&long, 60), format!("{long}\n"));
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
