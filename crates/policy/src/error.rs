//! The errors of a policy file.

use super::sets::PatternError;

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
        what: String,
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
