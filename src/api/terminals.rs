//! What a hostile command in a terminal says.

use crate::model::{Event, Foreign};

/// Events with `evil` in every field that text can reach.
pub(super) fn hostile(evil: &str) -> Vec<Event> {
    let text = || Foreign::new(evil);
    vec![
        Event::TerminalStarted {
            terminal: evil.to_owned(),
            argv: vec![text()],
            cwd: text(),
        },
        Event::TerminalOutput {
            terminal: evil.to_owned(),
            delta: text(),
        },
        Event::TerminalEnded {
            terminal: evil.to_owned(),
            status: None,
            wrote: 1,
            untold: 1,
        },
    ]
}
