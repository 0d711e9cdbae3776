//! What the supervisor runs outside of every sandbox or believes without asking: programs of hooks
//! and delegates with whatever their arguments and environments name, and the files that decide.
//!
//! Owns that no agent is given one of them to write, as far as texts show it. Must not know files:
//! links are followed by whoever looks at the tree (`cli/programs.rs`, `fleet/trusted.rs`).

use std::path::{Path, PathBuf};

use super::delegate::{Decider, Delegate};
use super::error::quoted;
use super::hook::{Hook, HookTo};
use super::paths;
use super::pool::Draft;
use super::table::Section;
use super::types::{Config, Pool, Seccomp, WorkspaceMode};

/// A path that no agent may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trusted {
    /// The key that names it.
    pub key: String,
    /// It, absolute, without `.` and `..`.
    pub path: PathBuf,
    /// What it is for.
    pub part: Part,
}

/// What a path that no agent may write is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A program that the supervisor runs.
    Program,
    /// A whole argument of one: perhaps a script.
    Argument,
    /// Named somewhere in an argument, or in the environment of a program.
    Named,
    /// A file that decides: the configuration, a policy, a filter, what ssh goes by.
    Decides,
    /// A file by which people come in: a token, a certificate, its key.
    Opens,
}

impl Part {
    /// The end of a sentence that begins with the agent that could write it.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::Program => "which the supervisor runs",
            Self::Argument | Self::Named => "which a program that the supervisor runs is given",
            Self::Decides => "which decides what agents may do",
            Self::Opens => "by which people come in",
        }
    }
}

/// What programs are started in, so what a relative argument begins at.
const AT: &str = "/";

/// What may stand around a path in an argument, as in `--script=/srv/x` or `. /srv/x; y`.
const AROUND: &[char] = &[
    ' ', '\t', '\n', '"', '\'', '`', '=', ':', ';', ',', '|', '&', '<', '>', '(', ')', '@',
];

/// The paths that a text may name.
fn named(key: &str, text: &str) -> impl Iterator<Item = Trusted> {
    let pieces = text.split(AROUND).filter(|piece| piece.starts_with('/'));
    pieces.map(|piece| Trusted {
        key: key.to_owned(),
        path: paths::absolute(Path::new(AT), piece),
        part: Part::Named,
    })
}

fn of_argv(key: &str, argv: &[String]) -> Vec<Trusted> {
    let mut all = Vec::new();
    for (at, word) in argv.iter().enumerate() {
        if word.is_empty() {
            continue;
        }
        all.push(Trusted {
            key: key.to_owned(),
            path: paths::absolute(Path::new(AT), word),
            part: if at == 0 {
                Part::Program
            } else {
                Part::Argument
            },
        });
        all.extend(named(key, word));
    }
    all
}

fn of_delegate(delegate: &Delegate) -> Vec<Trusted> {
    match &delegate.how {
        Decider::Command(argv) => of_argv(&format!("delegate.{}.command", delegate.name), argv),
        Decider::Url(_) => Vec::new(),
    }
}

fn of_hook(hook: &Hook) -> Vec<Trusted> {
    let HookTo::Command(command) = &hook.to else {
        return Vec::new();
    };
    let mut all = of_argv(&format!("hook.{}.command", hook.name), &command.argv);
    for (name, value) in &command.env {
        all.extend(named(&format!("hook.{}.env.{name}", hook.name), value));
    }
    all
}

fn of_pool(pool: &Pool) -> impl Iterator<Item = Trusted> {
    let table = pool.custom.iter().map(|own| Trusted {
        key: format!("pool.{}.dialect.custom", pool.name),
        path: own.file.clone(),
        part: Part::Decides,
    });
    let plane = pool.file_plane.iter().map(|plane| Trusted {
        key: format!("pool.{}.file_plane.dir", pool.name),
        path: plane.dir.clone(),
        part: Part::Opens,
    });
    let ssh = pool.ssh.iter();
    table.chain(plane).chain(ssh.flat_map(|ssh| {
        let files = [
            ("config_file", &ssh.config_file),
            ("known_hosts", &ssh.known_hosts),
        ];
        files.into_iter().filter_map(|(key, file)| {
            Some(Trusted {
                key: format!("pool.{}.ssh.{key}", pool.name),
                path: file.clone()?,
                part: Part::Decides,
            })
        })
    }))
}

impl Config {
    /// Every path of the configuration that no agent may write, but for what policies extend and
    /// secrets.
    #[must_use]
    pub fn trusted(&self) -> Vec<Trusted> {
        let decides = |key: String, path: &PathBuf| Trusted {
            key,
            path: path.clone(),
            part: Part::Decides,
        };
        let mut all: Vec<_> = self.hooks.iter().flat_map(of_hook).collect();
        all.extend(self.delegates.values().flat_map(of_delegate));
        all.extend(self.pools.iter().flat_map(of_pool));
        let doors = self.door_files().into_iter();
        all.extend(doors.map(|(key, path)| Trusted {
            key,
            path: path.to_owned(),
            part: Part::Opens,
        }));
        all.extend(
            self.file
                .iter()
                .map(|file| decides("pool".to_owned(), file)),
        );
        for (name, file) in &self.policies {
            all.push(decides(format!("policy.{name}.file"), file));
        }
        for (name, profile) in &self.sandboxes {
            if let Seccomp::File(file) = &profile.seccomp {
                all.push(decides(format!("sandbox.{name}.seccomp"), file));
            }
        }
        all
    }
}

/// What a directory is called in which agents work.
const WORKSPACE: &str = "the workspace";
const RUNNER_DIR: &str = "the runner.dir";

/// The directories of this host that the agents of a pool see, each with what it is.
pub fn works_in(pool: &Pool) -> impl Iterator<Item = (&Path, &'static str)> {
    let workspace = pool.local_workspace().map(|dir| (dir, WORKSPACE));
    workspace.into_iter().chain(driven(pool))
}

/// Those that they change in place.
pub fn writes_in_place(pool: &Pool) -> impl Iterator<Item = (&Path, &'static str)> {
    let is_written = pool.workspace.mode == WorkspaceMode::Rw;
    let workspace = pool.local_workspace().filter(|_| is_written);
    let workspace = workspace.map(|dir| (dir, WORKSPACE));
    workspace.into_iter().chain(driven(pool))
}

fn driven(pool: &Pool) -> Option<(&Path, &'static str)> {
    pool.runner_dir().map(|(dir, _)| (dir, RUNNER_DIR))
}

/// No agent may write what the supervisor runs, as far as the texts show it.
pub(super) fn stay_outside<'c>(
    root: &Section<'_>,
    drafts: &[Draft],
    hooks: &[Hook],
    delegates: impl Iterator<Item = &'c Delegate>,
) {
    let mut all: Vec<_> = hooks.iter().flat_map(of_hook).collect();
    all.extend(delegates.flat_map(of_delegate));
    for draft in drafts {
        let mut told: Vec<&Trusted> = Vec::new();
        let written: Vec<&Path> = writes_in_place(&draft.pool).map(|(dir, _)| dir).collect();
        let is_written = |of: &&Trusted| written.iter().any(|dir| of.path.starts_with(dir));
        for of in all.iter().filter(is_written) {
            if told
                .iter()
                .any(|other| other.path == of.path && other.key == of.key)
            {
                continue;
            }
            told.push(of);
            let message = format!(
                "the agent could write {}, {} ({})",
                quoted(&of.path.to_string_lossy()),
                of.part.why(),
                of.key
            );
            let help = "with mode \"rw\", and in a runner.dir, all that the supervisor runs must lie outside of it; mode \"copy\" needs no such care";
            root.ledger
                .fault(&draft.workspace, message, Some(help.to_owned()));
        }
    }
}
