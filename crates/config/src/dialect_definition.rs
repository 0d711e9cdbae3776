//! The definition of a custom dialect: the meaning of an agent's messages and the messages sent to it,
//! as data.
//!
//! Owns the keys of such a file, its bounds and its faults with their places, with the same reader
//! as the configuration. Pure. Must not know the order of messages, or how an event is handled:
//! that is `dialect/custom/`.

mod path;
mod read;
mod rule;
mod template;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use toml::de::DeTable;

pub use path::{DataPath, PathStep};
pub use rule::{Condition, EndsTurn, EventDetail, Expected, Field, Rule, RuleEvent};
pub use template::{Node, Piece, Placeholder, Template};

use super::error::{ConfigErrors, SourceText};
use super::key_types::KeyTypes;
use super::table::{Diagnostics, Section};
use super::{DUPLICATE, Origin, decode_source, syntax_error};
use marshal_model::string_enum;

/// The largest file of a definition, in bytes.
pub const DEFINITION_BYTES: usize = 64 << 10;

/// Rules of one definition.
const RULES: usize = 128;

string_enum!(
    /// How messages of an unknown type are handled.
    UnlistedTypes {
        /// They are recorded as events.
        Record = "tell",
        /// They are ignored.
        Ignore = "ignore",
    }
);

string_enum!(
    /// How a pending permission request is answered when its turn is cancelled.
    UnansweredPolicy {
        /// It is denied.
        Deny = "deny",
        /// It gets no answer: the cancel itself ends it.
        Nothing = "nothing",
    }
);

super::table::keywords!(UnlistedTypes, UnansweredPolicy);

/// A pool's custom dialect.
#[derive(Debug, Clone)]
pub struct CustomDialect {
    /// The file of its definition, absolute.
    pub file: PathBuf,
    /// The definition; `None` until the command line has read its file.
    pub definition: Option<Arc<DialectDefinition>>,
}

/// The answers to permission requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionReplies {
    /// The answer that allows.
    pub allow: Template,
    /// The answer that denies.
    pub deny: Template,
    /// How requests of a cancelled turn are answered.
    pub unanswered: UnansweredPolicy,
}

/// An accepted protocol version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcceptedVersion {
    /// This integer.
    Integer(i64),
    /// This text.
    Text(String),
    /// A text with this prefix.
    Prefix(String),
}

/// The whole definition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialectDefinition {
    /// The protocol's name.
    pub name: String,
    /// The SHA-256 of the file, in hexadecimal.
    pub digest: String,
    /// The path of a message's type.
    pub type_path: DataPath,
    /// The path of a message's turn.
    pub turn_path: Option<DataPath>,
    /// Types of messages that are ignored.
    pub ignored_types: Vec<String>,
    /// How all other types are handled.
    pub unlisted_types: UnlistedTypes,
    /// The accepted versions; empty: no version is checked.
    pub accepted_versions: Vec<AcceptedVersion>,
    /// Whether other messages may come before the ready message.
    pub allows_early: bool,
    /// The first messages to the agent.
    pub open: Vec<Template>,
    /// The first messages to an agent that continues a session; empty if the protocol has none for
    /// it.
    pub resume: Vec<Template>,
    /// The message that carries a prompt.
    pub prompt: Template,
    /// The form of one file attached to a prompt.
    pub attachment: Option<Template>,
    /// The message that cancels a turn; `None` if there is none.
    pub cancel: Option<Template>,
    /// The message of a slash command; `None` if there is none.
    pub slash: Option<Template>,
    /// The messages of a graceful stop.
    pub goodbye: Option<Template>,
    /// Whether its stdin is closed at a graceful stop.
    pub close_input: bool,
    /// The answers to its permission requests.
    pub permission: Option<PermissionReplies>,
    /// The rules for the agent's messages.
    pub rules: Vec<Rule>,
}

impl DialectDefinition {
    /// Reads and checks the bytes of a definition. `file` is its name for people.
    ///
    /// # Errors
    /// Every fault of the text, with its place.
    pub fn parse(bytes: &[u8], file: &Path) -> Result<Self, ConfigErrors> {
        let origin = Origin {
            file: Some(file.to_owned()),
            dir: PathBuf::new(),
            is_explicit: true,
        };
        let source = decode_source(bytes, &origin)?;
        let diagnostics =
            Diagnostics::new(SourceText::new(origin.display_name(), Arc::from(source)));
        let (tree, errors) = DeTable::parse_recoverable(source);
        let whole = errors.iter().all(|error| error.message() == DUPLICATE);
        for error in errors {
            diagnostics.report_all(vec![syntax_error(source, &error)]);
        }
        let root = Section::root(&diagnostics, tree.get_ref());
        if bytes.len() > DEFINITION_BYTES {
            let message = format!(
                "the file has {} bytes, a definition can have at most {DEFINITION_BYTES}",
                bytes.len()
            );
            diagnostics.report(&root.place, message, None);
        }
        let definition = whole.then(|| read::read_definition(&root)).flatten();
        drop(root);
        let faulty = diagnostics.has_errors();
        let (text, errors, _) = diagnostics.into_parts();
        match definition {
            Some(mut definition) if !faulty => {
                definition.digest = hex::encode(Sha256::digest(bytes));
                Ok(definition)
            }
            _ => Err(text.into_errors(errors)),
        }
    }

    /// Whether the agent can ask for permission.
    #[must_use]
    pub const fn can_request_permission(&self) -> bool {
        self.permission.is_some()
    }

    /// Whether the agent says when it is ready.
    #[must_use]
    pub fn announces_ready(&self) -> bool {
        self.has_rule_for(RuleEvent::Ready)
    }

    /// Whether a rule produces this event.
    #[must_use]
    pub fn has_rule_for(&self, event: RuleEvent) -> bool {
        self.rules.iter().any(|rule| rule.event == event)
    }
}

/// The keys of a definition, for its schema.
pub(super) fn key_types() -> KeyTypes {
    KeyTypes::collect_from(|root| drop(read::read_definition(root)))
}
