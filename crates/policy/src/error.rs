//! Everything that can be wrong with a policy file.

use super::sets::PatternError;

/// Why a policy was not loaded. It is never loaded in part.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The text is no policy: a syntax error, an unknown key, a wrong type.
    #[error("policy `{policy}`, line {line}: {message}")]
    Text {
        /// The policy's name or file.
        policy: String,
        /// The line, from 1.
        line: usize,
        /// What the reader says; names the key.
        message: String,
    },
    /// A schema of another version.
    #[error("policy `{policy}`: `schema` is {found}, expected 1")]
    Schema {
        /// The policy.
        policy: String,
        /// What it says.
        found: u32,
    },
    /// A key has a value that it cannot have.
    #[error("policy `{policy}`: `{key}` is `{found}`, expected {expected}")]
    Value {
        /// The policy.
        policy: String,
        /// The key, with its table.
        key: String,
        /// What it says.
        found: String,
        /// What it may say.
        expected: String,
    },
    /// A key is missing that no extended policy gives either.
    #[error("policy `{policy}`: `{key}` is missing, expected {expected}")]
    Missing {
        /// The policy.
        policy: String,
        /// The key.
        key: &'static str,
        /// What it may say.
        expected: &'static str,
    },
    /// A rule is wrong.
    #[error("policy `{policy}`, rule `{rule}`: {what}")]
    Rule {
        /// The policy.
        policy: String,
        /// The rule's id.
        rule: String,
        /// What is wrong, naming the key.
        what: String,
    },
    /// A pattern of a named set is wrong.
    #[error("policy `{policy}`: `paths.{set}`: {source}")]
    Pattern {
        /// The policy.
        policy: String,
        /// The set.
        set: String,
        /// What is wrong.
        source: PatternError,
    },
    /// A policy that is extended cannot be had.
    #[error("policy `{policy}` extends `{name}`: {why}")]
    Extends {
        /// The policy.
        policy: String,
        /// What it extends.
        name: String,
        /// Why it cannot be had.
        why: String,
    },
    /// A rule does not do what its own examples say.
    #[error("policy `{policy}`, rule `{rule}`: `{key}` has `{example}`, but the rule {does}")]
    Example {
        /// The policy.
        policy: String,
        /// The rule's id.
        rule: String,
        /// `match` or `not_match`.
        key: &'static str,
        /// The example.
        example: String,
        /// `applies to it` or `does not apply to it`.
        does: &'static str,
    },
}
