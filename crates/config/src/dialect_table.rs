//! The table of a custom dialect: what an agent's messages mean and what it is told, as data.
//!
//! Owns what such a file may say, its bounds and its faults with their places, by the same reader as
//! the configuration. Pure. Must not know in which order messages come, or what becomes of an event:
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

/// The largest file of a table, in bytes.
pub const TABLE_BYTES: usize = 64 << 10;

/// Rules of one table.
const RULES: usize = 128;

string_enum!(
    /// What becomes of messages of a type that the table does not have.
    UnlistedTypes {
        /// They are kept as events.
        Record = "tell",
        /// They are passed over.
        Ignore = "ignore",
    }
);

string_enum!(
    /// What becomes of a permission request that nobody is asked about any more, because its turn is
    /// being cancelled.
    UnansweredPolicy {
        /// It is denied.
        Deny = "deny",
        /// It gets no answer: the cancel itself ends it.
        Nothing = "nothing",
    }
);

super::table::word!(UnlistedTypes, UnansweredPolicy);

/// A pool's custom dialect.
#[derive(Debug, Clone)]
pub struct CustomDialect {
    /// The file of its table, absolute.
    pub file: PathBuf,
    /// The table, once whoever looks for files has read it.
    pub table: Option<Arc<DialectTable>>,
}

/// What the agent is answered when it asks for permission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionReplies {
    /// That it may.
    pub allow: Template,
    /// That it may not.
    pub deny: Template,
    /// What becomes of requests of a turn that is cancelled.
    pub unanswered: UnansweredPolicy,
}

/// A version that is spoken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AcceptedVersion {
    /// This integer.
    Integer(i64),
    /// This text.
    Text(String),
    /// A text that begins so.
    Prefix(String),
}

/// The whole table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialectTable {
    /// What the protocol is called.
    pub name: String,
    /// The SHA-256 of the file, in hexadecimal.
    pub digest: String,
    /// Where a message has its type.
    pub type_path: DataPath,
    /// Where a message names its turn.
    pub turn_path: Option<DataPath>,
    /// Types of which nothing is wanted.
    pub ignored_types: Vec<String>,
    /// What becomes of all others.
    pub unlisted_types: UnlistedTypes,
    /// The versions that are spoken; empty: no version is looked at.
    pub accepted_versions: Vec<AcceptedVersion>,
    /// Whether a message that is no greeting may come before it.
    pub allows_early: bool,
    /// What is said first.
    pub open: Vec<Template>,
    /// What is said first to an agent that is to go on with a session; empty: it has no message for
    /// that.
    pub resume: Vec<Template>,
    /// A prompt.
    pub prompt: Template,
    /// One file that belongs to a prompt.
    pub attachment: Option<Template>,
    /// The end of a turn from our side; `None`: there is no message for that.
    pub cancel: Option<Template>,
    /// A slash command.
    pub slash: Option<Template>,
    /// A goodbye.
    pub goodbye: Option<Template>,
    /// Whether its stdin is closed at a goodbye.
    pub close_input: bool,
    /// The answers to its permission requests.
    pub permission: Option<PermissionReplies>,
    /// What its messages mean.
    pub rules: Vec<Rule>,
}

impl DialectTable {
    /// Reads and checks the bytes of a table. `file` is its name for people.
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
        let ledger = Diagnostics::new(SourceText::new(origin.display_name(), Arc::from(source)));
        let (tree, errors) = DeTable::parse_recoverable(source);
        let whole = errors.iter().all(|error| error.message() == DUPLICATE);
        for error in errors {
            ledger.report_all(vec![syntax_error(source, &error)]);
        }
        let root = Section::root(&ledger, tree.get_ref());
        if bytes.len() > TABLE_BYTES {
            let message = format!(
                "the file has {} bytes, a table can have {TABLE_BYTES}",
                bytes.len()
            );
            ledger.report(&root.place, message, None);
        }
        let table = whole.then(|| read::read_table(&root)).flatten();
        drop(root);
        let faulty = ledger.has_errors();
        let (text, errors, _) = ledger.into_parts();
        match table {
            Some(mut table) if !faulty => {
                table.digest = hex::encode(Sha256::digest(bytes));
                Ok(table)
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

    /// Whether a rule brings this about.
    #[must_use]
    pub fn has_rule_for(&self, event: RuleEvent) -> bool {
        self.rules.iter().any(|rule| rule.event == event)
    }
}

/// What a table may say, for its schema.
pub(super) fn key_types() -> KeyTypes {
    KeyTypes::collect_from(|root| drop(read::read_table(root)))
}
