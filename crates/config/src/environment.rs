//! `env = { pass, set, path_add }`: a child's environment.
//!
//! Must not know the supervisor's own environment.

use std::path::{Component, Path, PathBuf};

use super::error::quote;
use super::paths;
use super::table::{Located, Place, Section};
use super::types::{Env, Secret, SecretSource};

/// Variables that the supervisor sets for every child itself, each with the reason or the
/// alternative.
const SUPERVISOR_VARIABLES: &[(&str, &str)] = &[
    ("TERM", "TERM is never passed: no child has a terminal"),
    (
        "PATH",
        "PATH is made for the child: add directories with path_add",
    ),
    ("HOME", "HOME is the session's own home"),
    ("USER", "USER is set for the child"),
    ("LOGNAME", "LOGNAME is set for the child"),
    ("PWD", "PWD is the workspace"),
    ("OLDPWD", "OLDPWD has no meaning for a new child"),
    ("TMPDIR", "TMPDIR is the child's own /tmp"),
];

/// Beginnings of names that the supervisor uses itself.
const RESERVED_PREFIXES: &[&str] = &[
    "MARSHAL_",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_KEY_",
    "GIT_CONFIG_VALUE_",
];

/// The placeholder for the child's home at the start of a directory of `path_add`.
pub const HOME_PLACEHOLDER: &str = "$HOME";

/// Parts of names of variables that usually contain a secret.
const SECRET_NAME_PARTS: &[&str] = &[
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSW",
    "CREDENTIAL",
    "AUTH",
    "COOKIE",
    "SESSION",
];

/// The JSON-schema pattern of a variable's name.
pub(super) const NAME_PATTERN: &str = "^[A-Za-z_][A-Za-z0-9_]{0,127}$";

/// The JSON-schema pattern of a directory of `path_add`.
const DIRECTORY_PATTERN: &str = r"^(\$HOME)?/(?!(.*/)?\.\.(/|$))[^:]*$";

/// Reads the table. `is_discovered`: the file was discovered, not named, so it may not use secrets.
pub(super) fn read(section: &Section<'_>, is_discovered: bool, dir: &Path) -> Env {
    let mut env = Env::default();
    for name in section
        .texts_like("pass", NAME_PATTERN)
        .map_or(Vec::new(), |list| list.value)
    {
        check_name(section, &name.place, &name.value);
        if is_discovered && is_likely_secret(&name.value) {
            let message = format!(
                "{} looks like a secret, and a discovered supervisor.toml may not pass secrets",
                quote(&name.value)
            );
            let help = Some(
                "`marshal trust` says that you trust the file as it is; or name it with --config"
                    .to_owned(),
            );
            section.diagnostics.report(&name.place, message, help);
        }
        if env.pass.contains(&name.value) {
            let message = format!("{} is in the list twice", quote(&name.value));
            section.diagnostics.report(&name.place, message, None);
        }
        env.pass.push(name.value);
    }
    for (name, item) in section.section("set").named_entries(NAME_PATTERN) {
        check_name(section, &item.place, &name);
        if env.pass.contains(&name) && item.is_fallback() {
            // The file has another value for what its agent's preset sets.
            continue;
        }
        if env.pass.contains(&name) {
            let message = format!("{} is in pass as well as in set", quote(&name));
            section.diagnostics.report(&item.place, message, None);
        }
        let Some(value) = item.text() else { continue };
        match parse_secret_source(section, &value, dir) {
            Some(source) if is_discovered => {
                let message = format!(
                    "a discovered supervisor.toml may not use secrets, found {}",
                    quote(source.kind())
                );
                let help = Some("`marshal trust` says that you trust the file as it is; or name it with --config".to_owned());
                section.diagnostics.report(&value.place, message, help);
            }
            Some(source) => {
                env.secrets.insert(name, Secret::new(source));
            }
            None => {
                env.set.insert(name, value.value);
            }
        }
    }
    for dir in section
        .texts_like("path_add", DIRECTORY_PATTERN)
        .map_or(Vec::new(), |list| list.value)
    {
        // The child's home is not known here: the code that makes its PATH fills it in.
        let path = Path::new(
            dir.value
                .strip_prefix(HOME_PLACEHOLDER)
                .unwrap_or(&dir.value),
        );
        let plain = path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if path.is_absolute() && plain && !dir.value.contains(':') {
            env.path_add.push(PathBuf::from(&dir.value));
            continue;
        }
        let message = format!(
            "expected a directory as the child sees it, absolute or below $HOME, without \":\" and \"..\", found {}",
            quote(&dir.value)
        );
        section.diagnostics.report(&dir.place, message, None);
    }
    section.reject_unknown_keys(&[], &[]);
    env
}

/// The schema's pattern of a secret, which is never in the file itself.
pub(super) const SECRET_PATTERN: &str = "^(env:[A-Za-z_][A-Za-z0-9_]{0,127}|file:.+|credential:[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}|‹secret›)$";

/// The source of a value that is not in the file: `env:NAME`, `file:PATH` or `credential:NAME`.
fn parse_secret_source(
    section: &Section<'_>,
    value: &Located<String>,
    dir: &Path,
) -> Option<SecretSource> {
    if let Some(name) = value.value.strip_prefix("env:") {
        if !is_variable_name(name) {
            let message = format!(
                "expected the name of a variable after \"env:\", [A-Za-z_][A-Za-z0-9_]{{0,127}}, found {}",
                quote(name)
            );
            section.diagnostics.report(&value.place, message, None);
        }
        return Some(SecretSource::Variable(name.to_owned()));
    }
    if let Some(name) = value.value.strip_prefix("credential:") {
        if !is_credential_name(name) {
            let message = format!(
                "expected the name of a credential after \"credential:\", [A-Za-z0-9._-]{{1,128}} without a leading dot, found {}",
                quote(name)
            );
            section.diagnostics.report(&value.place, message, None);
        }
        return Some(SecretSource::Credential(name.to_owned()));
    }
    let path = value.value.strip_prefix("file:")?;
    if let Some(fault) = paths::path_error(path) {
        section.diagnostics.report(&value.place, fault, None);
    }
    Some(SecretSource::File(paths::absolute(dir, path)))
}

/// Whether this can be the name of a file in the directory of credentials, and of no other file.
fn is_credential_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=128).contains(&name.len()) && name.bytes().all(is_plain) && !name.starts_with('.')
}

/// What is shown instead of a secret.
pub(super) const REDACTED: &str = "‹secret›";

/// Whether a variable's name suggests that it contains a secret.
#[must_use]
pub fn is_likely_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase().replace("AUTHOR", "");
    SECRET_NAME_PARTS.iter().any(|part| name.contains(part))
}

/// Reads a value that must be a secret; the placeholder of a hidden secret counts as one too.
pub(super) fn require_secret_source(
    section: &Section<'_>,
    value: &Located<String>,
    dir: &Path,
) -> Option<SecretSource> {
    match value.value.as_str() {
        REDACTED => Some(SecretSource::Redacted),
        _ => parse_secret_source(section, value, dir),
    }
}

fn check_name(section: &Section<'_>, place: &Place, name: &str) {
    let own = SUPERVISOR_VARIABLES.iter().find(|(own, _)| *own == name);
    let message = if let Some((_, message)) = own {
        (*message).to_owned()
    } else if RESERVED_PREFIXES
        .iter()
        .any(|prefix| name.starts_with(prefix))
    {
        format!("{} is set by the supervisor itself", quote(name))
    } else if !is_variable_name(name) {
        format!(
            "expected the name of a variable, [A-Za-z_][A-Za-z0-9_]{{0,127}}, found {}",
            quote(name)
        )
    } else {
        return;
    };
    section.diagnostics.report(place, message, None);
}

pub(super) fn is_variable_name(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
