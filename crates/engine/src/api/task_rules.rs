//! Validates tasks from all sources: files, arguments, HTTP.
//!
//! Owns the rules, except those of ids. Must not know where the task was written.

use std::path::Path;

use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_sandbox::workspace::branch::rebase::is_branch_name;

/// What is wrong with a key of a task and what to do, as a fragment that follows the key's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TaskRuleError {
    /// The prompt is blank.
    #[error("is empty; describe what the agent should do")]
    BlankPrompt,
    /// The prompt is too long: its bytes.
    #[error(
        "has {0} bytes; the limit is {limit}, so put the rest into a file of the workspace",
        limit = limits::PROMPT_BYTES
    )]
    LongPrompt(usize),
    /// The number of attempts is out of range.
    #[error("is {0}; give a number from 1 to {most}", most = limits::TASK_ATTEMPTS)]
    Attempts(u64),
    /// The priority is out of range, or no integer.
    #[error("is not an integer from -100 to 100")]
    Priority,
    /// The argv has no words.
    #[error("is empty; give a program and its arguments, or omit it")]
    EmptyArgv,
    /// The first word of the argv is empty.
    #[error("has no program as its first word")]
    NoProgram,
    /// The argv is too long: its words.
    #[error(
        "has {0} words; the limit is {limit}, so put them into a script",
        limit = limits::CHECK_WORDS
    )]
    LongArgv(usize),
    /// An argument or a path (which of them) has a NUL.
    #[error("contains a NUL character, which {0} cannot contain")]
    Nul(&'static str),
    /// Too many files: how many.
    #[error("has {0} files; the limit is {limit}", limit = limits::TASK_FILES)]
    TooManyFiles(usize),
    /// A file is not named by a path below the workspace.
    #[error(
        "contains {shown:?}; give paths relative to the workspace, such as src/main.rs",
        shown = escape_for_display(.0, 100)
    )]
    FilePath(String),
    /// The path of a file is too long.
    #[error("contains a path that is too long: {shown}", shown = escape_for_display(.0, 100))]
    LongPath(String),
    /// The name of a policy is invalid.
    #[error(
        "is not the name of a policy: {shown:?}; give the NAME of a [policy.NAME]",
        shown = escape_for_display(.0, 40)
    )]
    PolicyName(String),
    /// The name of a branch is invalid.
    #[error(
        "is not the name of a branch: {shown:?}; give the name as `git branch` shows it",
        shown = escape_for_display(.0, 60)
    )]
    BranchName(String),
    /// The workspace is relative.
    #[error("is not an absolute path")]
    RelativePath,
}

impl From<TaskRuleError> for String {
    fn from(error: TaskRuleError) -> Self {
        error.to_string()
    }
}

/// Checks that a prompt is not blank and has at most [`limits::PROMPT_BYTES`] bytes.
pub fn check_prompt(text: &str) -> Result<(), TaskRuleError> {
    if text.trim().is_empty() {
        return Err(TaskRuleError::BlankPrompt);
    }
    if text.len() > limits::PROMPT_BYTES {
        return Err(TaskRuleError::LongPrompt(text.len()));
    }
    Ok(())
}

/// Checks a number of attempts: 1 to [`limits::TASK_ATTEMPTS`].
pub fn check_attempts(number: u64) -> Result<u32, TaskRuleError> {
    u32::try_from(number)
        .ok()
        .filter(|n| (1..=limits::TASK_ATTEMPTS).contains(n))
        .ok_or(TaskRuleError::Attempts(number))
}

/// Checks a priority: an integer from -100 to 100. `None` means that the value is not an integer.
pub fn check_priority(number: Option<i64>) -> Result<i8, TaskRuleError> {
    let fits = number
        .and_then(|number| i8::try_from(number).ok())
        .filter(|number| (-100..=100).contains(number));
    fits.ok_or(TaskRuleError::Priority)
}

/// Checks an argv: at least a program, no NUL, at most [`limits::CHECK_WORDS`] words.
pub fn check_argv(argv: &[String]) -> Result<(), TaskRuleError> {
    match argv.first() {
        None => return Err(TaskRuleError::EmptyArgv),
        Some(program) if program.is_empty() => return Err(TaskRuleError::NoProgram),
        Some(_) => {}
    }
    if argv.len() > limits::CHECK_WORDS {
        return Err(TaskRuleError::LongArgv(argv.len()));
    }
    if argv.iter().any(|word| word.contains('\0')) {
        return Err(TaskRuleError::Nul("an argument"));
    }
    Ok(())
}

/// Checks paths relative to the workspace: no `..`, at most [`limits::TASK_FILES`]. Whether they
/// exist is checked when the prompt is built.
pub fn check_files(paths: &[String]) -> Result<(), TaskRuleError> {
    if paths.len() > limits::TASK_FILES {
        return Err(TaskRuleError::TooManyFiles(paths.len()));
    }
    for path in paths {
        let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        if path.contains('\0') || !path.split('/').all(is_plain) {
            return Err(TaskRuleError::FilePath(path.clone()));
        }
        if path.len() > limits::MANIFEST_PATH_BYTES {
            return Err(TaskRuleError::LongPath(path.clone()));
        }
    }
    Ok(())
}

/// Checks the name of a policy. Whether it exists, and fits here, is checked when the task is
/// submitted.
pub fn check_policy_layer(name: &str) -> Result<(), TaskRuleError> {
    let is_name = (1..=32).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if is_name {
        Ok(())
    } else {
        Err(TaskRuleError::PolicyName(name.to_owned()))
    }
}

/// Checks the name of a branch. Whether it exists is checked when work lands on it.
pub fn check_branch(name: &str) -> Result<(), TaskRuleError> {
    if is_branch_name(name) {
        Ok(())
    } else {
        Err(TaskRuleError::BranchName(name.to_owned()))
    }
}

/// Checks that a workspace is an absolute path without NUL. Whether it exists is checked when it is
/// used.
pub fn check_workspace(path: &Path) -> Result<(), TaskRuleError> {
    use std::os::unix::ffi::OsStrExt as _;
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(TaskRuleError::Nul("a path"));
    }
    if !path.is_absolute() {
        return Err(TaskRuleError::RelativePath);
    }
    Ok(())
}
