//! What the configuration accepts, what it refuses and in which words.

mod accepted;
#[rustfmt::skip]
mod cache;
mod container;
#[rustfmt::skip]
mod delegates;
#[rustfmt::skip]
mod dialect_definition;
mod documented;
mod egress;
mod file_plane;
mod hook;
#[rustfmt::skip]
mod roles;
#[rustfmt::skip]
mod http;
// One case a line.
#[rustfmt::skip]
mod refused;
#[rustfmt::skip]
mod refused_pool;
mod schema;
mod show;
#[rustfmt::skip]
mod runner;
#[rustfmt::skip]
mod trees;
#[rustfmt::skip]
mod workspaces;

use std::path::PathBuf;

use super::{Config, ConfigErrors, DEFAULT, Origin};

/// A file named with `--config` in `/etc/marshal`.
fn explicit_origin() -> Origin {
    Origin {
        file: Some(PathBuf::from("/etc/marshal/supervisor.toml")),
        dir: PathBuf::from("/etc/marshal"),
        is_explicit: true,
    }
}

/// A file that was found in `/home/me/project`.
fn discovered_origin() -> Origin {
    Origin {
        file: Some(PathBuf::from("/home/me/project/supervisor.toml")),
        dir: PathBuf::from("/home/me/project"),
        is_explicit: false,
    }
}

fn errors_text(errors: &ConfigErrors) -> String {
    let lines: Vec<_> = errors.errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// The text has exactly one fault, and its line holds every one of `expect`, divided by `…`.
fn refused_by(origin: &Origin, text: &str, expect: &str) {
    let Err(errors) = Config::parse(text, origin) else {
        panic!("accepted, expected {expect:?}:\n{text}");
    };
    schema::refuses(text, &errors);
    let shown = errors_text(&errors);
    assert_eq!(errors.errors.len(), 1, "{text}\n{shown}");
    for part in expect.split('…') {
        assert!(
            shown.contains(part),
            "{text}\nexpected {part:?} in\n{shown}"
        );
    }
}

fn accepted_by(origin: &Origin, text: &str) -> Config {
    let config = Config::parse(text, origin)
        .unwrap_or_else(|errors| panic!("{text}\n{}", errors_text(&errors)));
    schema::accepts(text);
    show::is_read_again(&config, origin);
    config
}

/// A file with one pool that has a command and `keys`.
fn pool(keys: &str) -> String {
    format!("[pool.demo]\ncommand = [\"agent\"]\n{keys}\n")
}

/// A file with one pool of the script agent and `keys`.
fn script(keys: &str) -> String {
    format!("[pool.demo]\nagent = \"script\"\n{keys}\n")
}

/// A file with one good pool after `text`.
fn file(text: &str) -> String {
    format!("{text}\n[pool.demo]\nagent = \"script\"\n")
}

/// The one pool of a good file.
fn only(config: &Config) -> &super::Pool {
    config.only_pool().expect("one pool")
}

#[test]
fn the_built_in_configuration_is_good_wherever_it_is_used() {
    for origin in [
        Origin::built_in(PathBuf::from("/home/me/project")),
        discovered_origin(),
        explicit_origin(),
    ] {
        let config = accepted_by(&origin, DEFAULT);
        assert_eq!(config.notes, Vec::<String>::new());
        assert_eq!(only(&config).size, 4);
    }
}
