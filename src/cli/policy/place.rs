//! The file system and the tools that `policy` commands assume for a request.
//!
//! Owns the tools that `check` and `explain` know without a pool, and the assumed files. Of this host
//! it reads the workspace of a pool, and never the content of a file.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::PolicyCommandError;
use marshal_config::Pool;
use marshal_model::SandboxFacts;
use marshal_model::untrusted::escape_for_display;
use marshal_policy::cases::{FixtureFs, HOME, WORKSPACE};
use marshal_policy::extract::Extractor;
use marshal_policy::{
    EvaluationContext, FsContext, FsEntry, OpaqueFs, Request, Resolver, TimeOfDay,
};
use marshal_sandbox::WORKSPACE_INSIDE;
use marshal_sandbox::workspace::{Root, TreeResolver};

/// The extractor table for the tools of labelled requests: which field has which fact.
const PLAIN: &str = r#"
schema = 1
mcp = { begins = "mcp__", between = "__" }
[tool.shell]
class = "shell"
command = "command"
cwd = "cwd"
[tool.read]
class = "read"
path = "path"
[tool.write]
class = "write"
path = "path"
[tool.edit]
class = "edit"
path = "path"
[tool.delete]
class = "delete"
path = "path"
[tool.move]
class = "move"
from = "from"
to = "to"
[tool.fetch]
class = "fetch"
url = "url"
method = "method"
"#;

/// The options for the file system that requests are evaluated in.
#[derive(Debug, Clone, clap::Args)]
pub struct PlaceArgs {
    /// Path of the workspace, as the agent sees it [default: /workspace; policy test: /repo/proj]
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    pub workspace: Option<String>,

    /// Path of the home directory, as the agent sees it
    #[arg(long, value_name = "PATH", default_value = HOME, value_parser = absolute)]
    pub home: String,

    /// Directory that a command starts in; without it, the workspace
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    pub cwd: Option<String>,

    /// Assume this symbolic link below the workspace or the home; may be repeated
    ///
    /// With --link, no other files are assumed.
    #[arg(long, value_name = "PATH=TARGET", value_parser = link)]
    pub link: Vec<(String, String)>,
}

/// The options for the circumstances of a request. A circumstance that is not given is unknown, and
/// an allow rule that depends on it does not apply.
#[derive(Debug, Clone, clap::Args)]
pub struct OccasionArgs {
    /// The agent, by its name in the configuration
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,

    /// The mode of the session
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,

    /// The time of day; used as local time and as UTC
    #[arg(long, value_name = "HH:MM", value_parser = time)]
    pub at: Option<TimeOfDay>,

    /// The sandbox; `None`: one of which every fact is assumed to hold
    #[arg(skip)]
    pub sandbox: Option<SandboxFacts>,
}

fn time(text: &str) -> Result<TimeOfDay, String> {
    TimeOfDay::parse(text).ok_or_else(|| "expected a time of day such as 22:30".to_owned())
}

impl OccasionArgs {
    /// The circumstances of a request in a pool, as far as they are known.
    pub(super) fn occasion<'a>(&'a self, pool: Option<&'a str>) -> EvaluationContext<'a> {
        EvaluationContext {
            pool,
            agent: self.agent.as_deref(),
            mode: self.mode.as_deref(),
            time_of_day: self.at,
            sandbox: self.sandbox.unwrap_or(SandboxFacts::CONFINED),
            rule_uses: None,
        }
    }
}

fn absolute(text: &str) -> Result<String, String> {
    let is_canonical = text.len() > 1
        && text.strip_prefix('/').is_some_and(|rest| {
            let mut parts = rest.split('/');
            parts.all(|part| !matches!(part, "" | "." | ".."))
        });
    if is_canonical {
        Ok(text.to_owned())
    } else {
        Err("expected an absolute path without `.`, `..`, `//` or a `/` at its end".to_owned())
    }
}

fn link(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((path, target)) if !target.is_empty() => Ok((absolute(path)?, target.to_owned())),
        _ => Err("expected PATH=TARGET".to_owned()),
    }
}

/// Where a request is evaluated: its directories, as the agent sees them, and the files in them.
#[derive(Debug)]
pub(super) struct AssumedPlace {
    workspace: String,
    home: String,
    cwd: String,
    files: AssumedFiles,
}

/// The files that are assumed to exist.
#[derive(Debug)]
enum AssumedFiles {
    /// The file tree of the built-in labelled requests, with this workspace.
    Labelled { workspace: String, tree: FixtureFs },
    /// These only.
    Listed(BTreeMap<String, FsEntry>),
    /// The workspace of a pool, read from this host, and an empty home.
    OfPool {
        workspace: String,
        tree: TreeResolver,
    },
    /// Files that cannot be seen from this host.
    Unseen(OpaqueFs),
}

impl PlaceArgs {
    /// The place of a request without a pool: by default the file tree that labelled requests share,
    /// in this workspace.
    pub(super) fn labelled(&self, default_workspace: &str) -> AssumedPlace {
        let workspace = self.workspace.as_deref().unwrap_or(default_workspace);
        let files = if self.link.is_empty() && self.home == HOME {
            AssumedFiles::Labelled {
                workspace: workspace.to_owned(),
                tree: FixtureFs::default(),
            }
        } else {
            AssumedFiles::Listed(self.links())
        };
        self.place(workspace, files)
    }

    /// The place of a pool's requests: its workspace on this host, at the path where its agents see
    /// it.
    ///
    /// # Errors
    /// The workspace cannot be read.
    pub(super) fn of_pool(&self, pool: &Pool) -> Result<AssumedPlace, PolicyCommandError> {
        let at_host = pool.workspace.path.to_string_lossy();
        let inside = if pool.launcher.has_sandbox() {
            WORKSPACE_INSIDE
        } else {
            &*at_host
        };
        if !self.link.is_empty() || self.workspace.is_some() {
            return Ok(self.place(inside, AssumedFiles::Listed(self.links())));
        }
        if pool.launcher.is_remote() {
            return Ok(self.place(inside, AssumedFiles::Unseen(OpaqueFs)));
        }
        let root = Root::open_resolved(&pool.workspace.path).map_err(|error| {
            PolicyCommandError::Failed(format!(
                "the workspace of pool {} cannot be read: {}: {error}; --workspace PATH judges without \
                 its files",
                pool.name,
                escape_for_display(&at_host, 300),
            ))
        })?;
        let files = AssumedFiles::OfPool {
            workspace: inside.to_owned(),
            tree: TreeResolver::new().with(inside, root),
        };
        Ok(self.place(inside, files))
    }

    fn links(&self) -> BTreeMap<String, FsEntry> {
        let entry =
            |(path, target): &(String, String)| (path.clone(), FsEntry::Link(target.clone()));
        self.link.iter().map(entry).collect()
    }

    fn place(&self, default_workspace: &str, files: AssumedFiles) -> AssumedPlace {
        let workspace = self
            .workspace
            .as_deref()
            .unwrap_or(default_workspace)
            .to_owned();
        AssumedPlace {
            cwd: self.cwd.clone().unwrap_or_else(|| workspace.clone()),
            workspace,
            home: self.home.clone(),
            files,
        }
    }
}

impl AssumedPlace {
    pub(super) fn fs_context(&self) -> FsContext<'_> {
        FsContext {
            workspace: &self.workspace,
            home: &self.home,
            cwd: Some(&self.cwd),
            resolver: &self.files,
        }
    }
}

impl AssumedFiles {
    /// Who answers for a path; `None`: nothing is there.
    fn resolver(&self, path: &str) -> Option<&dyn Resolver> {
        match self {
            Self::Labelled { tree, .. } => Some(tree),
            Self::Listed(_) => None,
            Self::OfPool { workspace, tree } => {
                let rest = path.strip_prefix(workspace.as_str());
                let is_below = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
                is_below.then_some(tree as &dyn Resolver)
            }
            Self::Unseen(unseen) => Some(unseen),
        }
    }

    /// A path of the workspace as the one who answers for it knows it.
    fn translate<'p>(&self, path: &'p str) -> Cow<'p, str> {
        match self {
            Self::Labelled { workspace, .. } => rebase(path, workspace, WORKSPACE),
            _ => path.into(),
        }
    }

    /// The names of the listed entries directly in a directory.
    fn listed(&self, path: &str, is_wanted: impl Fn(&FsEntry) -> bool) -> Vec<String> {
        let Self::Listed(entries) = self else {
            return Vec::new();
        };
        let name = |(entry, what): (&String, &FsEntry)| {
            let name = entry.strip_prefix(path)?.strip_prefix('/')?;
            (!name.contains('/') && is_wanted(what)).then(|| name.to_owned())
        };
        entries.iter().filter_map(name).collect()
    }
}

impl Resolver for AssumedFiles {
    fn lookup(&self, path: &str) -> FsEntry {
        match (self, self.resolver(path)) {
            (Self::Labelled { workspace, .. }, Some(resolver)) => {
                match resolver.lookup(&self.translate(path)) {
                    FsEntry::Link(target) => {
                        FsEntry::Link(rebase(&target, WORKSPACE, workspace).into_owned())
                    }
                    other => other,
                }
            }
            (_, Some(resolver)) => resolver.lookup(path),
            (Self::Listed(entries), None) => entries.get(path).cloned().unwrap_or(FsEntry::Missing),
            (_, None) => FsEntry::Missing,
        }
    }

    fn list_links(&self, path: &str) -> Option<Vec<String>> {
        match self.resolver(path) {
            Some(resolver) => resolver.list_links(&self.translate(path)),
            None => Some(self.listed(path, |what| matches!(what, FsEntry::Link(_)))),
        }
    }

    fn list_names(&self, path: &str) -> Option<Vec<String>> {
        match self.resolver(path) {
            Some(resolver) => resolver.list_names(&self.translate(path)),
            None => Some(self.listed(path, |_| true)),
        }
    }

    fn exists(&self, path: &str) -> bool {
        match self.resolver(path) {
            Some(resolver) => resolver.exists(&self.translate(path)),
            None => self.lookup(path) != FsEntry::Missing,
        }
    }
}

/// A path with another directory in the place of the one that it is in.
fn rebase<'p>(path: &'p str, from: &str, to: &str) -> Cow<'p, str> {
    match path.strip_prefix(from) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => format!("{to}{rest}").into(),
        _ => path.into(),
    }
}

/// The extractor for labelled requests.
pub(super) fn plain() -> Result<Extractor, PolicyCommandError> {
    Extractor::parse(PLAIN).map_err(|error| PolicyCommandError::Failed(error.to_string()))
}

/// The request of a tool from its text argument: a command, a path, `FROM -> TO` or a URL.
pub(super) fn request(tool: &str, text: &str) -> Result<Request, PolicyCommandError> {
    let input = match tool {
        "shell" => serde_json::json!({ "command": text }),
        "read" | "write" | "edit" | "delete" => serde_json::json!({ "path": text }),
        "fetch" => serde_json::json!({ "url": text }),
        "move" => {
            let Some((from, to)) = text.split_once(" -> ") else {
                let text = "the text of a `move` must be FROM -> TO".to_owned();
                return Err(PolicyCommandError::Usage(text));
            };
            serde_json::json!({ "from": from, "to": to })
        }
        _ => {
            return Err(PolicyCommandError::Usage(
                "--tool must be `shell`, `read`, `write`, `edit`, `delete`, `move` or `fetch`; any other \
                tool, such as mcp__SERVER__NAME, needs --input"
                    .to_owned(),
            ));
        }
    };
    let input = RawValue::from_string(input.to_string())
        .map_err(|error| PolicyCommandError::Failed(error.to_string()))?;
    Ok(plain()?.extract(tool, &input))
}
