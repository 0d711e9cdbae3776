//! Resolves the workspaces, roles and files that a chat names. A client sends names, never paths of
//! the host.
//!
//! Must not know sessions.

use std::path::{Component, Path, PathBuf};

use super::{ChatError, WorkRequest};
use marshal_config::{Config, RegisteredWorkspace, Role};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{RoleName, WorkspaceName};

/// A request to create a chat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreateRequest {
    /// The goal, which is the first message.
    pub goal: String,
    /// Paths relative to the workspace.
    pub files: Vec<String>,
    /// The role's name; optional if there is only one role.
    pub role: Option<String>,
    /// The model's name; if set, it must be the role's.
    pub model: Option<String>,
    /// The settings of autonomous chats and plans.
    pub work: WorkRequest,
}

/// Returns the workspace with a name.
pub(super) fn workspace<'a>(
    config: &'a Config,
    name: &str,
) -> Result<(WorkspaceName, &'a RegisteredWorkspace), ChatError> {
    let found = WorkspaceName::new(name)
        .ok()
        .and_then(|name| Some((name.clone(), config.workspaces.get(&name)?)));
    found.ok_or_else(|| {
        ChatError::NotFound(format!(
            "there is no workspace {0:?}; a chat needs a table [workspace.{0}] in the daemon's configuration, with its path, and a role",
            escape_for_display(name, 40)
        ))
    })
}

/// Returns the requested role; without a name, the only one.
pub(super) fn role<'a>(
    config: &'a Config,
    create_request: &CreateRequest,
) -> Result<(RoleName, &'a Role), ChatError> {
    let there = || {
        let names: Vec<&str> = config.roles.keys().map(RoleName::as_str).collect();
        match names.as_slice() {
            [] => "the configuration has no [role.NAME]".to_owned(),
            names => format!("there are: {}", names.join(", ")),
        }
    };
    let Some(name) = &create_request.role else {
        let mut roles = config.roles.iter();
        return match (roles.next(), roles.next()) {
            (Some((name, role)), None) => Ok((name.clone(), role)),
            _ => Err(ChatError::Unprocessable(format!(
                "\"role\" is missing; {}",
                there()
            ))),
        };
    };
    let found = RoleName::new(name)
        .ok()
        .and_then(|name| Some((name.clone(), config.roles.get(&name)?)));
    let (name, role) = found.ok_or_else(|| {
        let shown = escape_for_display(name, 40);
        ChatError::Unprocessable(format!("there is no role {shown:?}; {}", there()))
    })?;
    match &create_request.model {
        Some(model) if role.model.as_ref() != Some(model) => {
            let has = match &role.model {
                Some(has) => format!("its model is {has:?}"),
                None => "it has no model of its own: omit \"model\"".to_owned(),
            };
            let shown = escape_for_display(model, 80);
            Err(ChatError::Unprocessable(format!(
                "the role {name} has no model {shown:?}; {has}"
            )))
        }
        _ => Ok((name, role)),
    }
}

/// Checks that each path is a file in the workspace, and that no link leads out of it. Blocks.
pub(super) fn check_files(root: &Path, files: &[String]) -> Result<(), ChatError> {
    if files.len() > limits::CHAT_FILES {
        let most = limits::CHAT_FILES;
        return Err(ChatError::Unprocessable(format!(
            "\"files\" names {} files; name at most {most}",
            files.len()
        )));
    }
    let unfit = |path: &str, why: &str| {
        let shown = escape_for_display(path, 200);
        ChatError::Unprocessable(format!("the file {shown:?} {why}"))
    };
    let root = std::fs::canonicalize(root).map_err(|error| {
        ChatError::Unavailable(format!("the workspace cannot be read: {error}"))
    })?;
    for path in files {
        let parts = Path::new(path).components();
        let is_plain = !path.is_empty()
            && path.len() <= limits::CHAT_FILE_BYTES
            && !path.chars().any(char::is_control)
            && parts
                .clone()
                .all(|part| matches!(part, Component::Normal(_)));
        if !is_plain {
            let why = "must be a path relative to the workspace, without \"..\"";
            return Err(unfit(path, why));
        }
        let resolved: Option<PathBuf> = std::fs::canonicalize(root.join(path)).ok();
        let is_there =
            resolved.is_some_and(|resolved| resolved.starts_with(&root) && resolved.is_file());
        if !is_there {
            return Err(unfit(path, "is not in the workspace"));
        }
    }
    Ok(())
}

/// Refuses a key that adds our own text to a prompt, if the role's pool has tools that would run it
/// as a command.
pub(super) fn check_supports_remarks(
    config: &Config,
    name: &RoleName,
    role: &Role,
    key: &str,
) -> Result<(), ChatError> {
    let mut pools = config.pools.iter();
    let pool = pools.find(|pool| pool.name == role.pool);
    if pool.is_none_or(|pool| pool.dialect.supports_remarks()) {
        return Ok(());
    }
    Err(ChatError::Unprocessable(format!(
        "\"{key}\" adds text to the prompt, and the role {name} has a tool that would run that text as a command (pool {}): omit it",
        role.pool
    )))
}

/// Returns the first prompt: the role's instructions, the files and the goal.
pub(super) fn first_prompt(role: Option<&Role>, files: &[String], content: &str) -> String {
    let mut text = String::new();
    if let Some(instructions) = role.and_then(|role| role.instructions.as_ref()) {
        text.push_str(instructions.trim());
        text.push_str("\n\n");
    }
    if !files.is_empty() {
        let files = files.join(", ");
        text.push_str("[System: These files of the workspace belong to the task: ");
        text.push_str(&files);
        text.push_str("]\n\n");
    }
    text.push_str(content);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_in_the_workspace_or_refused() {
        let dir = tempfile::tempdir().expect("directory");
        let root = dir.path().join("work");
        std::fs::create_dir_all(root.join("src")).expect("made");
        std::fs::write(root.join("src/a.rs"), "a").expect("written");
        std::fs::write(dir.path().join("secret"), "s").expect("written");
        std::os::unix::fs::symlink("../secret", root.join("out")).expect("a link");
        let check = |path: &str| check_files(&root, &[path.to_owned()]);
        assert!(check("src/a.rs").is_ok());
        for bad in [
            "",
            "src",
            "none",
            "../secret",
            "/etc/passwd",
            "out",
            "src/../src/a.rs",
            "a\nb",
        ] {
            assert!(
                matches!(check(bad), Err(ChatError::Unprocessable(_))),
                "{bad:?}"
            );
        }
        assert!(check_files(&root, &vec!["src/a.rs".to_owned(); 65]).is_err());
    }

    #[test]
    fn the_first_prompt_names_the_files_before_the_goal() {
        let text = first_prompt(None, &["a".to_owned(), "b".to_owned()], "Do it.");
        let expected = "[System: These files of the workspace belong to the task: a, b]\n\nDo it.";
        assert_eq!(text, expected);
    }
}
