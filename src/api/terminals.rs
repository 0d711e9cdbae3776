//! What a hostile command in a terminal says, and one that asks for hosts outside.

use crate::model::{EgressResult, Event, Foreign};

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
        // A host is checked before it is told; shown safely it is all the same.
        Event::Egress {
            host: Some(evil.to_owned()),
            port: Some(443),
            result: EgressResult::NotAllowed,
            connections: 1,
            sent: 0,
            received: 0,
            took: std::time::Duration::ZERO,
        },
    ]
}
