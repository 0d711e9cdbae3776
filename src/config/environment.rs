//! `env = { pass, set, path_add }`: what a child's environment holds.
//!
//! Must not know the supervisor's own environment.

use std::path::{Component, Path, PathBuf};

use super::error::quoted;
use super::paths;
use super::table::{Found, Place, Section};
use super::types::{Env, Secret, SecretSource};

/// Names that the supervisor gives every child itself, with what to do instead.
const OWN: &[(&str, &str)] = &[
    ("TERM", "TERM is never passed: no child has a terminal"),
    (
        "PATH",
        "PATH is made for the child: add directories with path_add",
    ),
    ("HOME", "HOME is the session's own home"),
    ("USER", "USER is set for the child"),
    ("LOGNAME", "LOGNAME is set for the child"),
    ("PWD", "PWD is the workspace"),
    ("OLDPWD", "OLDPWD says nothing to a new child"),
    ("TMPDIR", "TMPDIR is the child's own /tmp"),
];

/// Beginnings of names that the supervisor uses itself.
const OWN_PREFIXES: &[&str] = &[
    "MARSHAL_",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_KEY_",
    "GIT_CONFIG_VALUE_",
];

/// What stands for the child's home at the beginning of a directory of `path_add`.
pub const HOME: &str = "$HOME";

/// Parts of names that usually hold a secret.
const SECRETIVE: &[&str] = &[
    "KEY",
    "TOKEN",
    "SECRET",
    "PASSW",
    "CREDENTIAL",
    "AUTH",
    "COOKIE",
    "SESSION",
];

/// What the schema says of a variable's name.
const NAME_PATTERN: &str = "^[A-Za-z_][A-Za-z0-9_]{0,127}$";

/// What the schema says of a directory of `path_add`.
const DIRECTORY_PATTERN: &str = r"^(\$HOME)?/(?!(.*/)?\.\.(/|$))[^:]*$";

/// Reads the table. `found`: the file was found, not named, so it may not reach for secrets.
pub(super) fn read(section: &Section<'_>, found: bool, dir: &Path) -> Env {
    let mut env = Env::default();
    for name in section
        .texts_like("pass", NAME_PATTERN)
        .map_or(Vec::new(), |list| list.value)
    {
        check_name(section, &name.place, &name.value);
        if found && is_secretive(&name.value) {
            let message = format!(
                "{} looks like a secret, and a supervisor.toml that was found may not pass secrets",
                quoted(&name.value)
            );
            let help = Some("name the file with --config if you trust it".to_owned());
            section.ledger.fault(&name.place, message, help);
        }
        if env.pass.contains(&name.value) {
            let message = format!("{} is in the list twice", quoted(&name.value));
            section.ledger.fault(&name.place, message, None);
        }
        env.pass.push(name.value);
    }
    for (name, item) in section.section("set").named(NAME_PATTERN) {
        check_name(section, &item.place, &name);
        if env.pass.contains(&name) {
            let message = format!("{} is in pass as well as in set", quoted(&name));
            section.ledger.fault(&item.place, message, None);
        }
        let Some(value) = item.text() else { continue };
        match secret(section, &value, dir) {
            Some(source) if found => {
                let message = format!(
                    "a supervisor.toml that was found may not use secrets, found {}",
                    quoted(source.kind())
                );
                let help = Some("name the file with --config if you trust it".to_owned());
                section.ledger.fault(&value.place, message, help);
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
        // The child's home is not known here: whoever makes its PATH fills it in.
        let path = Path::new(dir.value.strip_prefix(HOME).unwrap_or(&dir.value));
        let plain = path
            .components()
            .all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
        if path.is_absolute() && plain && !dir.value.contains(':') {
            env.path_add.push(PathBuf::from(&dir.value));
            continue;
        }
        let message = format!(
            "expected a directory as the child sees it, absolute or below $HOME, without \":\" and \"..\", found {}",
            quoted(&dir.value)
        );
        section.ledger.fault(&dir.place, message, None);
    }
    section.close(&[], &[]);
    env
}

/// What the schema says of a secret that must stand elsewhere.
pub(super) const SECRET_PATTERN: &str = "^(env:[A-Za-z_][A-Za-z0-9_]{0,127}|file:.+|‹secret›)$";

/// Where a value comes from, if it stands elsewhere: `env:NAME` or `file:PATH`.
fn secret(section: &Section<'_>, value: &Found<String>, dir: &Path) -> Option<SecretSource> {
    if let Some(name) = value.value.strip_prefix("env:") {
        if !is_name(name) {
            let message = format!(
                "expected the name of a variable after \"env:\", [A-Za-z_][A-Za-z0-9_]{{0,127}}, found {}",
                quoted(name)
            );
            section.ledger.fault(&value.place, message, None);
        }
        return Some(SecretSource::Variable(name.to_owned()));
    }
    let path = value.value.strip_prefix("file:")?;
    if let Some(fault) = paths::fault(path) {
        section.ledger.fault(&value.place, fault, None);
    }
    Some(SecretSource::File(paths::absolute(dir, path)))
}

/// What is shown instead of a secret.
pub(super) const HIDDEN: &str = "‹secret›";

/// Whether a variable's name says that it holds a secret.
#[must_use]
pub fn is_secretive(name: &str) -> bool {
    let name = name.to_ascii_uppercase().replace("AUTHOR", "");
    SECRETIVE.iter().any(|part| name.contains(part))
}

/// Reads a value that must be a secret: the words of one that was not shown are one too.
pub(super) fn only_secret(
    section: &Section<'_>,
    value: &Found<String>,
    dir: &Path,
) -> Option<SecretSource> {
    match value.value.as_str() {
        HIDDEN => Some(SecretSource::NotShown),
        _ => secret(section, value, dir),
    }
}

fn check_name(section: &Section<'_>, place: &Place, name: &str) {
    let own = OWN.iter().find(|(own, _)| *own == name);
    let message = if let Some((_, message)) = own {
        (*message).to_owned()
    } else if OWN_PREFIXES.iter().any(|prefix| name.starts_with(prefix)) {
        format!("{} is set by the supervisor itself", quoted(name))
    } else if !is_name(name) {
        format!(
            "expected the name of a variable, [A-Za-z_][A-Za-z0-9_]{{0,127}}, found {}",
            quoted(name)
        )
    } else {
        return;
    };
    section.ledger.fault(place, message, None);
}

fn is_name(name: &str) -> bool {
    (1..=128).contains(&name.len())
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}
