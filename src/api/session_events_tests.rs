//! Events that agents send of their sessions, with `evil` in every field that text can reach.
//!
//! For the tests of whoever shows events. Must not know where they are shown.

use crate::model::{ChoiceInfo, CommandInfo, Event, Foreign, OptionState, SessionId};

/// One event of each of these kinds.
pub(crate) fn hostile(evil: &str) -> Vec<Event> {
    let text = || Foreign::new(evil);
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
            how: "session/load",
            replayed: 1,
        },
        Event::SessionFresh {
            instead_of: SessionId::new("s-0").expect("id"),
            why: evil.to_owned(),
            untold: false,
        },
    ]
}

/// Sequences that would act on a terminal or mislead its reader.
pub(crate) const EVIL: &[&str] = &[
    "\u{1b}]0;title\u{7}",
    "\u{1b}]52;c;cm0gLXJm\u{7}",
    "\u{1b}]8;;http://x\u{1b}\\link",
    "\u{1b}[2J\u{1b}[1;1H",
    "\u{9b}31m\u{9d}0;x\u{9c}",
    "a\r\nb\tc\u{8}\u{7f}\u{0}",
    "\u{202e}txt.exe\u{2066}\u{200b}\u{feff}\u{2028}\u{e0041}",
];
