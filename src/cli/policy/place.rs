//! The file system and the tools that `policy` commands assume for a request, without a workspace.
//!
//! Owns the tools that `check` and `explain` know without a pool, and the simulated files. Reads no
//! file of this host.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::PolicyCommandError;
use marshal_model::SandboxFacts;
use marshal_policy::cases::{FixtureFs, HOME, WORKSPACE};
use marshal_policy::extract::Extractor;
use marshal_policy::{EvaluationContext, FsContext, FsEntry, Request, Resolver, TimeOfDay};

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
    /// Path of the workspace, as the agent sees it
    #[arg(long, value_name = "PATH", default_value = WORKSPACE, value_parser = absolute)]
    pub workspace: String,

    /// Path of the home directory, as the agent sees it
    #[arg(long, value_name = "PATH", default_value = HOME, value_parser = absolute)]
    pub home: String,

    /// Directory that a command starts in; without it, the workspace
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    pub cwd: Option<String>,

    /// Assume this symbolic link below the workspace or the home; may be repeated
    ///
    /// With --link, no other files are assumed. Without it, and with the default workspace and
    /// home, the file tree of the built-in labelled requests is assumed.
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

/// The files that are assumed to exist.
#[derive(Debug)]
pub(super) enum SimulatedFiles {
    /// The file tree of the built-in labelled requests.
    Ground(FixtureFs),
    /// Only the links of `--link`.
    Links(BTreeMap<String, String>),
}

impl PlaceArgs {
    /// The assumed files.
    pub(super) fn files(&self) -> SimulatedFiles {
        let elsewhere = self.workspace != WORKSPACE || self.home != HOME;
        if self.link.is_empty() && !elsewhere {
            SimulatedFiles::Ground(FixtureFs::default())
        } else {
            SimulatedFiles::Links(self.link.iter().cloned().collect())
        }
    }

    /// The file system context; `standing` is [`PlaceArgs::files`].
    pub(super) fn place<'a>(&'a self, standing: &'a SimulatedFiles) -> FsContext<'a> {
        FsContext {
            workspace: &self.workspace,
            home: &self.home,
            cwd: Some(self.cwd.as_deref().unwrap_or(&self.workspace)),
            resolver: standing,
        }
    }
}

impl Resolver for SimulatedFiles {
    fn lookup(&self, path: &str) -> FsEntry {
        match self {
            Self::Ground(ground) => ground.lookup(path),
            Self::Links(links) => links
                .get(path)
                .map_or(FsEntry::Missing, |target| FsEntry::Link(target.clone())),
        }
    }

    fn list_links(&self, path: &str) -> Option<Vec<String>> {
        let links = match self {
            Self::Ground(ground) => return ground.list_links(path),
            Self::Links(links) => links,
        };
        let name = |link: &String| {
            let name = link.strip_prefix(path)?.strip_prefix('/')?;
            (!name.contains('/')).then(|| name.to_owned())
        };
        Some(links.keys().filter_map(name).collect())
    }

    fn list_names(&self, path: &str) -> Option<Vec<String>> {
        match self {
            Self::Ground(ground) => ground.list_names(path),
            Self::Links(_) => self.list_links(path),
        }
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
