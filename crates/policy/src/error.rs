//! The errors of a policy file.

use marshal_model::{SandboxFact, limits};

use super::sets::PatternError;
use super::url::UrlError;

/// Why a policy was not loaded. It is never loaded in part.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The text is not a policy: a syntax error, an unknown key, a wrong type.
    #[error("policy `{policy}`, line {line}: {message}")]
    Text {
        /// The policy's name or file.
        policy: String,
        /// The line, from 1.
        line: usize,
        /// The parser's message, which names the key.
        message: String,
    },
    /// A schema of another version.
    #[error("policy `{policy}`: `schema` is {found}, expected 1")]
    Schema {
        /// The policy's name.
        policy: String,
        /// The schema version in the file.
        found: u32,
    },
    /// A key has a value that it cannot have.
    #[error("policy `{policy}`: `{key}` is `{found}`, expected {expected}")]
    Value {
        /// The policy's name.
        policy: String,
        /// The key, including its table.
        key: String,
        /// The value in the file.
        found: String,
        /// The allowed values.
        expected: String,
    },
    /// A key is missing, in this policy and in all that it extends.
    #[error("policy `{policy}`: `{key}` is missing, expected {expected}")]
    Missing {
        /// The policy's name.
        policy: String,
        /// The key.
        key: &'static str,
        /// The allowed values.
        expected: &'static str,
    },
    /// A rule is invalid.
    #[error("policy `{policy}`, rule `{rule}`: {what}")]
    Rule {
        /// The policy's name.
        policy: String,
        /// The rule's id.
        rule: String,
        /// What is wrong; names the key.
        what: Box<RuleError>,
    },
    /// A pattern of a named set is invalid.
    #[error("policy `{policy}`: `paths.{set}`: {source}")]
    Pattern {
        /// The policy's name.
        policy: String,
        /// The set's name.
        set: String,
        /// The pattern's error.
        source: PatternError,
    },
    /// An extended policy is unavailable.
    #[error("policy `{policy}` extends `{name}`: {why}")]
    Extends {
        /// The policy's name.
        policy: String,
        /// The extended policy's name.
        name: String,
        /// Why it is unavailable.
        why: String,
    },
    /// A rule does not match its own examples.
    #[error("policy `{policy}`, rule `{rule}`: `{key}` has `{example}`, but the rule {does}")]
    Example {
        /// The policy's name.
        policy: String,
        /// The rule's id.
        rule: String,
        /// `match` or `not_match`.
        key: &'static str,
        /// The example's text.
        example: String,
        /// `applies to it` or `does not apply to it`.
        does: &'static str,
    },
}

/// What is wrong with a rule; names the key.
#[derive(Debug, thiserror::Error)]
pub enum RuleError {
    /// The policies have too many rules together.
    #[error("there are more than {} rules", limits::POLICY_RULES)]
    TooMany,
    /// Another rule has the same id.
    #[error("the `id` is used twice")]
    IdTwice,
    /// A rule of a session layer allows.
    #[error(
        "a session layer can only ask or deny, but this rule allows: remove it, or move it to the pool's policy"
    )]
    AllowsInSession,
    /// The id is empty or has another character.
    #[error("`id` must be letters, digits, `-` and `_`")]
    Id,
    /// A key has a value that it cannot have: the key, the value, the allowed values.
    #[error("`{0}` is `{1}`, expected {2}")]
    Value(&'static str, String, &'static str),
    /// A key has an entry that it cannot have: the key, the entry, what is wrong with it.
    #[error("`{0}`: `{1}` {2}")]
    Entry(&'static str, String, EntryError),
    /// A key has too many entries.
    #[error("`{0}` has more than {most} entries", most = limits::RULE_NAMES)]
    TooManyEntries(&'static str),
    /// A key names a set of paths that does not exist: the key and the name.
    #[error("`{0}` names `{1}`, which is not a set of paths")]
    UnknownSet(&'static str, String),
    /// `any_command` without every fact of a sandbox.
    #[error("`any_command` needs `sandbox` with every fact: {}", sandbox_facts())]
    AnyCommandUnconfined,
    /// The place of an argument is no JSON pointer.
    #[error("`args`: `at` is `{0}`, expected a JSON pointer such as `/path`")]
    ArgumentPlace(String),
    /// The range of an argument is empty.
    #[error("`args`: `min` is above `max`, so no number matches")]
    ArgumentRange,
    /// `zone` without `hours`.
    #[error("`zone` needs `hours`, which is missing")]
    ZoneAlone,
    /// `max_per_turn` is 0.
    #[error("`max_per_turn` is 0, so the rule never allows anything")]
    MaxPerTurnZero,
    /// A condition that a tool of the rule can never meet: the key and its tools.
    #[error("`{0}` is only for the tools {1}")]
    WrongTool(&'static str, String),
    /// A key in a rule that cannot have it: the key, and which rules can.
    #[error("`{0}` is only for {1}")]
    OnlyFor(&'static str, &'static str),
    /// A key with a value that it cannot have: the key, and what it can do or be.
    #[error("{0} can only {1}")]
    CanOnly(&'static str, &'static str),
    /// A program is empty or has a directory: the beginning of a sentence about it.
    #[error("{0}, without a directory")]
    Directory(&'static str),
    /// A key beside other conditions: the key and why it stands alone.
    #[error("`{0}` cannot be combined with other conditions: it {1}")]
    NotAlone(&'static str, &'static str),
    /// `unless` has no condition.
    #[error("`unless` is empty")]
    EmptyUnless,
    /// `not_programs` beside `argv`.
    #[error(
        "`not_programs` is for rules without `argv`: it lists the programs that a rule for all programs excludes"
    )]
    NotProgramsWithArgv,
    /// A rule that allows a tool without the key that limits it: the tool and the keys.
    #[error("a rule that allows `{0}` needs {1}")]
    Unlimited(&'static str, &'static str),
    /// `any_path` in a rule that allows `mcp`.
    #[error("`any_path` cannot allow `mcp`: name the argument in `args`")]
    AnyPathAllowsMcp,
}

/// What is wrong with one entry of a key.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// No URL or host.
    #[error("has {0}")]
    Url(UrlError),
    /// A command with a construct that has no single reading, as a noun.
    #[error("has {0}")]
    NotPlain(&'static str),
    /// Not just one command.
    #[error("is not one simple command")]
    NotOneCommand,
    /// No method, in a rule that allows.
    #[error("is not a method, expected one like `GET`")]
    Method,
    /// No method, in a rule that asks or denies.
    #[error("is not a method, expected one like `GET`; case does not matter in a call")]
    MethodAnyCase,
    /// No pattern for names.
    #[error("is not a pattern: {0}")]
    Pattern(globset::ErrorKind),
    /// No regular expression.
    #[error("is not a regular expression")]
    Regex,
    /// None or several of the tests of an argument.
    #[error("needs exactly one of `is`, `glob`, `regex`, `min` and `max`, `path`, `absent`")]
    ArgumentTests,
    /// No flag.
    #[error("is not a flag: it must begin with `-`")]
    Flag,
    /// No fact of a sandbox.
    #[error("is not a fact of a sandbox, expected {}", sandbox_facts())]
    Fact,
    /// No name.
    #[error("is empty or has surrounding blanks")]
    Blank,
    /// No time span.
    #[error("is not a time span, expected one like `22:00-06:00`, to 24:00 at most")]
    Span,
    /// A time span without length.
    #[error("is empty; the whole day is `00:00-24:00`")]
    EmptySpan,
}

impl EntryError {
    /// The error of a rule that has this entry under a key.
    pub(super) fn of(self, key: &'static str, entry: &str) -> RuleError {
        RuleError::Entry(key, entry.to_owned(), self)
    }
}

/// The facts of a sandbox as a message lists them.
pub(super) fn sandbox_facts() -> String {
    let facts: Vec<_> = SandboxFact::ALL.iter().map(|fact| fact.as_str()).collect();
    format!("`{}`", facts.join("`, `"))
}
