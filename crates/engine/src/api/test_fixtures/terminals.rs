//! What a hostile command in a terminal says, and one that asks for hosts outside.

use marshal_model::{EgressResult, Event, UntrustedText};

/// Events with `evil` in every field that text can reach.
pub(super) fn hostile_terminal_events(evil: &str) -> Vec<Event> {
    let text = || UntrustedText::new(evil);
    vec![
        Event::TerminalStarted {
            terminal: evil.to_owned(),
            argv: vec![text()],
            cwd: text(),
            by: Some(evil.to_owned()),
        },
        Event::TerminalOutput {
            terminal: evil.to_owned(),
            delta: text(),
        },
        Event::TerminalEnded {
            terminal: evil.to_owned(),
            status: None,
            written_bytes: 1,
            omitted_bytes: 1,
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
