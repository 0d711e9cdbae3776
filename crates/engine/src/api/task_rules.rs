//! Validates tasks from all sources: files, arguments, HTTP.
//!
//! Owns the rules, except those of ids. Each function returns what is wrong and what to do, as a
//! fragment that follows the key's name. Must not know where the task was written.

use std::path::Path;

use marshal_model::limits;

/// Checks that a prompt is not blank and has at most [`limits::PROMPT_BYTES`] bytes.
///
/// # Errors
/// What is wrong.
pub fn check_prompt(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("is empty; describe what the agent should do".to_owned());
    }
    if text.len() > limits::PROMPT_BYTES {
        return Err(format!(
            "has {} bytes; the limit is {}, so put the rest into a file of the workspace",
            text.len(),
            limits::PROMPT_BYTES
        ));
    }
    Ok(())
}

/// Checks a number of attempts: 1 to [`limits::TASK_ATTEMPTS`].
///
/// # Errors
/// What is wrong.
pub fn check_attempts(number: u64) -> Result<u32, String> {
    u32::try_from(number)
        .ok()
        .filter(|n| (1..=limits::TASK_ATTEMPTS).contains(n))
        .ok_or_else(|| {
            format!(
                "is {number}; give a number from 1 to {}",
                limits::TASK_ATTEMPTS
            )
        })
}

/// Checks a priority: an integer from -100 to 100. `None` means that the value is not an integer.
///
/// # Errors
/// What is wrong.
pub fn check_priority(number: Option<i64>) -> Result<i8, String> {
    let fits = number
        .and_then(|number| i8::try_from(number).ok())
        .filter(|number| (-100..=100).contains(number));
    fits.ok_or_else(|| "is not an integer from -100 to 100".to_owned())
}

/// Checks an argv: at least a program, no NUL, at most [`limits::CHECK_WORDS`] words.
///
/// # Errors
/// What is wrong.
pub fn check_argv(argv: &[String]) -> Result<(), String> {
    match argv.first() {
        None => return Err("is empty; give a program and its arguments, or omit it".into()),
        Some(program) if program.is_empty() => {
            return Err("has no program as its first word".to_owned());
        }
        Some(_) => {}
    }
    if argv.len() > limits::CHECK_WORDS {
        return Err(format!(
            "has {} words; the limit is {}, so put them into a script",
            argv.len(),
            limits::CHECK_WORDS
        ));
    }
    if argv.iter().any(|word| word.contains('\0')) {
        return Err("contains a NUL character, which an argument cannot contain".to_owned());
    }
    Ok(())
}

/// Checks paths relative to the workspace: no `..`, at most [`limits::TASK_FILES`]. Whether they
/// exist is checked when the prompt is built.
///
/// # Errors
/// What is wrong.
pub fn check_files(paths: &[String]) -> Result<(), String> {
    if paths.len() > limits::TASK_FILES {
        return Err(format!(
            "has {} files; the limit is {}",
            paths.len(),
            limits::TASK_FILES
        ));
    }
    for path in paths {
        let shown = marshal_model::untrusted::escape_for_display(path, 100);
        let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        if path.contains('\0') || !path.split('/').all(is_plain) {
            return Err(format!(
                "contains {shown:?}; give paths relative to the workspace, such as src/main.rs"
            ));
        }
        if path.len() > limits::MANIFEST_PATH_BYTES {
            return Err(format!("contains a path that is too long: {shown}"));
        }
    }
    Ok(())
}

/// Checks the name of a policy. Whether it exists, and fits here, is checked when the task is
/// submitted.
///
/// # Errors
/// What is wrong.
pub fn check_policy_layer(name: &str) -> Result<(), String> {
    let is_name = (1..=32).contains(&name.len())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    if is_name {
        Ok(())
    } else {
        let shown = marshal_model::untrusted::escape_for_display(name, 40);
        Err(format!(
            "is not the name of a policy: {shown:?}; give the NAME of a [policy.NAME]"
        ))
    }
}

/// Checks that a workspace is an absolute path without NUL. Whether it exists is checked when it is
/// used.
///
/// # Errors
/// What is wrong.
pub fn check_workspace(path: &Path) -> Result<(), String> {
    use std::os::unix::ffi::OsStrExt as _;
    if path.as_os_str().as_bytes().contains(&0) {
        return Err("contains a NUL character, which a path cannot contain".to_owned());
    }
    if !path.is_absolute() {
        return Err("is not an absolute path".to_owned());
    }
    Ok(())
}
