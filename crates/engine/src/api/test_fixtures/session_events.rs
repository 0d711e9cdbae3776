//! Events that agents send of their sessions, with `evil` in every field that text can reach.
//!
//! For the tests of whoever shows events. Must not know where they are shown.

use marshal_model::{ChoiceInfo, CommandInfo, Event, OptionState, SessionId, UntrustedText};

/// One event of each of these kinds.
pub(crate) fn hostile_session_events(evil: &str) -> Vec<Event> {
    let text = || UntrustedText::new(evil);
    vec![
        Event::UserText { delta: text() },
        Event::Commands {
            commands: vec![CommandInfo {
                name: text(),
                description: text(),
                hint: Some(text()),
            }],
        },
        Event::Options {
            options: vec![OptionState {
                id: text(),
                name: Some(text()),
                category: Some(text()),
                value: Some(text()),
                choices: vec![ChoiceInfo {
                    id: text(),
                    name: Some(text()),
                }],
                is_switch: false,
            }],
        },
        Event::SessionInfo {
            title: Some(text()),
            updated_at: Some(text()),
        },
        Event::Notice {
            severity: Some(text()),
            title: text(),
            description: Some(text()),
        },
        Event::Compaction {
            id: text(),
            status: Some(text()),
            error: Some(text()),
        },
        Event::CompactionText {
            id: text(),
            delta: text(),
        },
        Event::SessionResumed {
            how: "session/load".into(),
            replayed: 1,
        },
        Event::SessionFresh {
            instead_of: SessionId::new("s-0").expect("id"),
            why: evil.to_owned(),
            history_omitted: false,
        },
    ]
}
