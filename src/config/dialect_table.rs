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

pub use path::{DataPath, Step};
pub use rule::{Condition, EndsTurn, Expected, Field, Rule, RuleEvent, Told};
pub use template::{Hole, Node, Piece, Template};

use super::error::{ConfigErrors, Text};
use super::form::Forms;
use super::table::{Ledger, Section};
use super::{DUPLICATE, Origin, legible, syntax};
use crate::model::words;

/// The largest file of a table, in bytes.
pub const TABLE_BYTES: usize = 64 << 10;

/// Rules of one table.
const RULES: usize = 128;

words!(
    /// What becomes of messages of a type that the table does not have.
    OtherTypes {
        /// They are kept as events.
        Tell = "tell",
        /// They are passed over.
        Ignore = "ignore",
    }
);

words!(
    /// What becomes of a permission request that nobody is asked about any more, because its turn is
    /// being cancelled.
    Unanswered {
        /// It is denied.
        Deny = "deny",
        /// It gets no answer: the cancel itself ends it.
        Nothing = "nothing",
    }
);

super::table::word!(OtherTypes, Unanswered);

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
pub struct Replies {
    /// That it may.
    pub allow: Template,
    /// That it may not.
    pub deny: Template,
    /// What becomes of requests of a turn that is cancelled.
    pub unanswered: Unanswered,
}

/// A version that is spoken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accepted {
    /// This integer.
    Integer(i64),
    /// This text.
    Text(String),
    /// A text that begins so.
    Begins(String),
}

/// The whole table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialectTable {
    /// What the protocol is called.
    pub name: String,
    /// The SHA-256 of the file, in hexadecimal.
    pub digest: String,
    /// Where a message has its type.
    pub kind: DataPath,
    /// Where a message names its turn.
    pub turn: Option<DataPath>,
    /// Types of which nothing is wanted.
    pub ignored: Vec<String>,
    /// What becomes of all others.
    pub others: OtherTypes,
    /// The versions that are spoken; empty: no version is looked at.
    pub accepted: Vec<Accepted>,
    /// Whether a message that is no greeting may come before it.
    pub early: bool,
    /// What is said first.
    pub open: Vec<Template>,
    /// What is said first to an agent that is to go on with a session; empty: it has no message for
    /// that.
    pub resume: Vec<Template>,
    /// A prompt.
    pub prompt: Template,
    /// One file that belongs to a prompt.
    pub attached: Option<Template>,
    /// The end of a turn from our side; `None`: there is no message for that.
    pub cancel: Option<Template>,
    /// A slash command.
    pub slash: Option<Template>,
    /// A goodbye.
    pub goodbye: Option<Template>,
    /// Whether its stdin is closed at a goodbye.
    pub close_input: bool,
    /// The answers to its permission requests.
    pub permission: Option<Replies>,
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
            named: true,
        };
        let source = legible(bytes, &origin)?;
        let ledger = Ledger::new(Text::new(origin.shown(), Arc::from(source)));
        let (tree, errors) = DeTable::parse_recoverable(source);
        let whole = errors.iter().all(|error| error.message() == DUPLICATE);
        for error in errors {
            ledger.faults(vec![syntax(source, &error)]);
        }
        let root = Section::root(&ledger, tree.get_ref());
        if bytes.len() > TABLE_BYTES {
            let message = format!(
                "the file has {} bytes, a table can have {TABLE_BYTES}",
                bytes.len()
            );
            ledger.fault(&root.place, message, None);
        }
        let table = whole.then(|| read::table(&root)).flatten();
        drop(root);
        let faulty = ledger.is_faulty();
        let (text, errors, _) = ledger.close();
        match table {
            Some(mut table) if !faulty => {
                table.digest = format!("{:x}", Sha256::digest(bytes));
                Ok(table)
            }
            _ => Err(text.refuse(errors)),
        }
    }

    /// Whether the agent can ask for permission.
    #[must_use]
    pub const fn asks(&self) -> bool {
        self.permission.is_some()
    }

    /// Whether the agent says when it is ready.
    #[must_use]
    pub fn greets(&self) -> bool {
        self.has(RuleEvent::Ready)
    }

    /// Whether a rule brings this about.
    #[must_use]
    pub fn has(&self, event: RuleEvent) -> bool {
        self.rules.iter().any(|rule| rule.event == event)
    }
}

/// What a table may say, for its schema.
pub(super) fn forms() -> Forms {
    Forms::learn_of(|root| drop(read::table(root)))
}
