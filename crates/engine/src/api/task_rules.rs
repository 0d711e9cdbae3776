//! What a task may ask for, wherever it comes from: a file, an argument, the control socket.
//!
//! Owns the rules beside those of ids. Each function says what is wrong and what to do, in a
//! fragment that follows the key's name. Must not know where the task was written.

use std::path::Path;

use marshal_model::limits;

/// A prompt has something in it and is at most [`limits::PROMPT_BYTES`] long.
///
/// # Errors
/// What is wrong.
pub fn check_prompt(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("is empty; say what the agent shall do".to_owned());
    }
    if text.len() > limits::PROMPT_BYTES {
        return Err(format!(
            "has {} bytes; at most {} fit, put the rest into a file of the workspace",
            text.len(),
            limits::PROMPT_BYTES
        ));
    }
    Ok(())
}

/// Attempts: 1 to [`limits::TASK_ATTEMPTS`].
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

/// A priority: a whole number from -100 to 100. `None`: it is no whole number.
///
/// # Errors
/// What is wrong.
pub fn check_priority(number: Option<i64>) -> Result<i8, String> {
    let fits = number.and_then(|number| i8::try_from(number).ok());
    let fits = fits.filter(|number| (-100..=100).contains(number));
    fits.ok_or_else(|| "is no whole number from -100 to 100".to_owned())
}

/// A check is an argv: at least a program, no NUL, at most [`limits::CHECK_WORDS`] words.
///
/// # Errors
/// What is wrong.
pub fn check_argv(argv: &[String]) -> Result<(), String> {
    match argv.first() {
        None => return Err("is empty; give a program and its arguments, or leave it out".into()),
        Some(program) if program.is_empty() => {
            return Err("has no program as its first word".to_owned());
        }
        Some(_) => {}
    }
    if argv.len() > limits::CHECK_WORDS {
        return Err(format!(
            "has {} words; at most {} fit, put them into a script",
            argv.len(),
            limits::CHECK_WORDS
        ));
    }
    if argv.iter().any(|word| word.contains('\0')) {
        return Err("holds a NUL character, which no argument can".to_owned());
    }
    Ok(())
}

/// Files are paths from the top of the workspace, without `..`, at most [`limits::TASK_FILES`].
/// Whether they exist is seen when the prompt is made.
///
/// # Errors
/// What is wrong.
pub fn check_files(paths: &[String]) -> Result<(), String> {
    if paths.len() > limits::TASK_FILES {
        return Err(format!(
            "has {} files; at most {} fit",
            paths.len(),
            limits::TASK_FILES
        ));
    }
    for path in paths {
        let shown = marshal_model::untrusted::escape_for_display(path, 100);
        let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        if path.contains('\0') || !path.split('/').all(is_plain) {
            return Err(format!(
                "holds {shown:?}; give paths from the top of the workspace, such as src/main.rs"
            ));
        }
        if path.len() > limits::MANIFEST_PATH_BYTES {
            return Err(format!("holds a path that is too long: {shown}"));
        }
    }
    Ok(())
}

/// The name of a policy. Whether there is one, and for this, is seen when the task is taken in.
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
            "is no name of a policy: {shown:?}; give the NAME of a [policy.NAME]"
        ))
    }
}

/// A workspace is an absolute path without NUL. Whether it exists is seen when it is used.
///
/// # Errors
/// What is wrong.
pub fn check_workspace(path: &Path) -> Result<(), String> {
    use std::os::unix::ffi::OsStrExt as _;
    if path.as_os_str().as_bytes().contains(&0) {
        return Err("holds a NUL character, which no path can".to_owned());
    }
    if !path.is_absolute() {
        return Err("is not an absolute path".to_owned());
    }
    Ok(())
}
