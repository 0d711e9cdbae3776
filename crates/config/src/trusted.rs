//! What the supervisor runs outside of every sandbox or trusts: programs of hooks and delegates
//! with all that their arguments and environments name, and the files that decide what agents may
//! do.
//!
//! Owns that no agent can write one of them, as far as the paths show it. Must not know files:
//! links are followed by the code that accesses them (`cli/programs.rs`, `fleet/path_lookup.rs`).

use std::path::{Path, PathBuf};

use super::delegate::{Delegate, DelegateTarget};
use super::error::quote;
use super::hook::{Hook, HookTarget};
use super::paths;
use super::pool::PoolDraft;
use super::table::Section;
use super::types::{Config, Pool, Seccomp, WorkspaceMode};

/// A path that no agent may write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedPath {
    /// The key that names it.
    pub key: String,
    /// The path, absolute, without `.` and `..`.
    pub path: PathBuf,
    /// The use of the path.
    pub purpose: PathPurpose,
}

/// The use of a path that no agent may write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathPurpose {
    /// A program that the supervisor runs.
    Program,
    /// A whole argument of such a program: it may be a script.
    Argument,
    /// Named somewhere in an argument, or in the environment of a program.
    Mentioned,
    /// A file that decides: the configuration, a policy, a seccomp profile, ssh's configuration.
    DecisionFile,
    /// A file that grants access to the supervisor: a token, a certificate, its key.
    CredentialFile,
}

impl PathPurpose {
    /// The end of the message about an agent that could write the path.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Program => "which the supervisor runs",
            Self::Argument | Self::Mentioned => {
                "which is an argument of a program that the supervisor runs"
            }
            Self::DecisionFile => "which decides what agents may do",
            Self::CredentialFile => "which grants access to the supervisor",
        }
    }
}

/// The directory that programs start in, which a relative argument is relative to.
const WORKING_DIR: &str = "/";

/// Characters that can surround a path in an argument, as in `--script=/srv/x` or `. /srv/x; y`.
const DELIMITERS: &[char] = &[
    ' ', '\t', '\n', '"', '\'', '`', '=', ':', ';', ',', '|', '&', '<', '>', '(', ')', '@',
];

/// The paths that a text may name.
fn paths_in_text(key: &str, text: &str) -> impl Iterator<Item = TrustedPath> {
    let pieces = text
        .split(DELIMITERS)
        .filter(|piece| piece.starts_with('/'));
    pieces.map(|piece| TrustedPath {
        key: key.to_owned(),
        path: paths::absolute(Path::new(WORKING_DIR), piece),
        purpose: PathPurpose::Mentioned,
    })
}

fn argv_paths(key: &str, argv: &[String]) -> Vec<TrustedPath> {
    let mut all = Vec::new();
    for (at, word) in argv.iter().enumerate() {
        if word.is_empty() {
            continue;
        }
        all.push(TrustedPath {
            key: key.to_owned(),
            path: paths::absolute(Path::new(WORKING_DIR), word),
            purpose: if at == 0 {
                PathPurpose::Program
            } else {
                PathPurpose::Argument
            },
        });
        all.extend(paths_in_text(key, word));
    }
    all
}

fn delegate_paths(delegate: &Delegate) -> Vec<TrustedPath> {
    match &delegate.target {
        DelegateTarget::Command(argv) => {
            argv_paths(&format!("delegate.{}.command", delegate.name), argv)
        }
        DelegateTarget::Url(_) => Vec::new(),
    }
}

fn hook_paths(hook: &Hook) -> Vec<TrustedPath> {
    let HookTarget::Command(command) = &hook.target else {
        return Vec::new();
    };
    let mut all = argv_paths(&format!("hook.{}.command", hook.name), &command.argv);
    for (name, value) in &command.env {
        all.extend(paths_in_text(
            &format!("hook.{}.env.{name}", hook.name),
            value,
        ));
    }
    all
}

fn pool_paths(pool: &Pool) -> impl Iterator<Item = TrustedPath> {
    let table = pool.custom_dialect.iter().map(|own| TrustedPath {
        key: format!("pool.{}.dialect.custom", pool.name),
        path: own.file.clone(),
        purpose: PathPurpose::DecisionFile,
    });
    let plane = pool.file_plane.iter().map(|plane| TrustedPath {
        key: format!("pool.{}.file_plane.dir", pool.name),
        path: plane.dir.clone(),
        purpose: PathPurpose::CredentialFile,
    });
    let ssh = pool.ssh.iter();
    table.chain(plane).chain(ssh.flat_map(|ssh| {
        let files = [
            ("config_file", &ssh.config_file),
            ("known_hosts", &ssh.known_hosts),
        ];
        files.into_iter().filter_map(|(key, file)| {
            Some(TrustedPath {
                key: format!("pool.{}.ssh.{key}", pool.name),
                path: file.clone()?,
                purpose: PathPurpose::DecisionFile,
            })
        })
    }))
}

impl Config {
    /// Every path of the configuration that no agent may write, except files that policies extend
    /// and secrets.
    #[must_use]
    pub fn trusted_paths(&self) -> Vec<TrustedPath> {
        let decides = |key: String, path: &PathBuf| TrustedPath {
            key,
            path: path.clone(),
            purpose: PathPurpose::DecisionFile,
        };
        let mut all: Vec<_> = self.hooks.iter().flat_map(hook_paths).collect();
        all.extend(self.delegates.values().flat_map(delegate_paths));
        all.extend(self.pools.iter().flat_map(pool_paths));
        let credentials = self.credential_files().into_iter();
        all.extend(credentials.map(|(key, path)| TrustedPath {
            key,
            path: path.to_owned(),
            purpose: PathPurpose::CredentialFile,
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

/// The name for a directory in which agents work.
const WORKSPACE: &str = "the workspace";
const RUNNER_DIR: &str = "the runner.dir";

/// The directories of this host that the agents of a pool see, each with what it is.
pub fn working_dirs(pool: &Pool) -> impl Iterator<Item = (&Path, &'static str)> {
    let workspace = pool.local_workspace().map(|dir| (dir, WORKSPACE));
    let repos = pool.workspace.repos.iter();
    let repos = repos.map(|repo| (&*repo.path, WORKSPACE));
    workspace.into_iter().chain(repos).chain(runner_dir(pool))
}

/// The directories that they change in place.
pub fn writable_dirs(pool: &Pool) -> impl Iterator<Item = (&Path, &'static str)> {
    let is_written = pool.workspace.mode == WorkspaceMode::Rw;
    let workspace = pool
        .local_workspace()
        .filter(|_| is_written)
        .map(|dir| (dir, WORKSPACE));
    workspace.into_iter().chain(runner_dir(pool))
}

fn runner_dir(pool: &Pool) -> Option<(&Path, &'static str)> {
    pool.runner_dir().map(|(dir, _)| (dir, RUNNER_DIR))
}

/// No agent may write what the supervisor runs, as far as the paths show it.
pub(super) fn check_outside_workspaces<'c>(
    root: &Section<'_>,
    drafts: &[PoolDraft],
    hooks: &[Hook],
    delegates: impl Iterator<Item = &'c Delegate>,
) {
    let mut all: Vec<_> = hooks.iter().flat_map(hook_paths).collect();
    all.extend(delegates.flat_map(delegate_paths));
    for draft in drafts {
        let mut listed: Vec<&TrustedPath> = Vec::new();
        let written: Vec<&Path> = writable_dirs(&draft.pool).map(|(dir, _)| dir).collect();
        let is_written = |of: &&TrustedPath| written.iter().any(|dir| of.path.starts_with(dir));
        for of in all.iter().filter(is_written) {
            if listed
                .iter()
                .any(|other| other.path == of.path && other.key == of.key)
            {
                continue;
            }
            listed.push(of);
            let message = format!(
                "the agent could write {}, {} ({})",
                quote(&of.path.to_string_lossy()),
                of.purpose.reason(),
                of.key
            );
            let help = "with mode \"rw\", and in a runner.dir, all that the supervisor runs must be outside of it; mode \"copy\" has no such limit";
            root.diagnostics
                .report(&draft.workspace_place, message, Some(help.to_owned()));
        }
    }
}
