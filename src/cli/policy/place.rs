//! Where a request is judged, and how it is read, away from any workspace.
//!
//! Owns the tools that `check` and `explain` know without a pool, and what stands where requests are
//! judged. Looks at no file.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::PolicyCommandError;
use marshal_policy::cases::{FixtureFs, HOME, WORKSPACE};
use marshal_policy::extract::Extractor;
use marshal_policy::{EvaluationContext, FsContext, FsEntry, Request, Resolver, TimeOfDay};

/// Which field holds what, of a tool of labelled requests.
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

/// Where requests are judged.
#[derive(Debug, Clone, clap::Args)]
pub struct PlaceArgs {
    /// The workspace, as the agent sees it
    #[arg(long, value_name = "PATH", default_value = WORKSPACE, value_parser = absolute)]
    pub workspace: String,

    /// The home, as the agent sees it
    #[arg(long, value_name = "PATH", default_value = HOME, value_parser = absolute)]
    pub home: String,

    /// The directory that a command starts in; else the workspace
    #[arg(long, value_name = "PATH", value_parser = absolute)]
    pub cwd: Option<String>,

    /// A symbolic link below the workspace or the home; may be repeated, and there is nothing else then.
    /// Without any, and with the usual workspace and home, there is the tree of labelled requests
    #[arg(long, value_name = "PATH=TARGET", value_parser = link)]
    pub link: Vec<(String, String)>,
}

/// On which occasion requests are made; what is not said is not known, which counts against rules that
/// allow.
#[derive(Debug, Clone, clap::Args)]
pub struct OccasionArgs {
    /// The agent, as a pool of the configuration names it
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,

    /// The mode that the session is set to
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,

    /// The time of day, taken for the time here and for UTC
    #[arg(long, value_name = "HH:MM", value_parser = time)]
    pub at: Option<TimeOfDay>,
}

fn time(text: &str) -> Result<TimeOfDay, String> {
    TimeOfDay::parse(text).ok_or_else(|| "expected a time of day such as 22:30".to_owned())
}

impl OccasionArgs {
    /// The occasion in a pool, as far as it is known.
    pub(super) fn occasion<'a>(&'a self, pool: Option<&'a str>) -> EvaluationContext<'a> {
        EvaluationContext {
            pool,
            agent: self.agent.as_deref(),
            mode: self.mode.as_deref(),
            time_of_day: self.at,
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

/// What stands where requests are judged.
#[derive(Debug)]
pub(super) enum SimulatedFiles {
    /// The tree of labelled requests.
    Ground(FixtureFs),
    /// Only links.
    Links(BTreeMap<String, String>),
}

impl PlaceArgs {
    /// What stands there.
    pub(super) fn files(&self) -> SimulatedFiles {
        let elsewhere = self.workspace != WORKSPACE || self.home != HOME;
        if self.link.is_empty() && !elsewhere {
            SimulatedFiles::Ground(FixtureFs::default())
        } else {
            SimulatedFiles::Links(self.link.iter().cloned().collect())
        }
    }

    /// The place; `standing` is [`PlaceArgs::files`].
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

/// How labelled requests are read.
pub(super) fn plain() -> Result<Extractor, PolicyCommandError> {
    Extractor::parse(PLAIN).map_err(|error| PolicyCommandError::Failed(error.to_string()))
}

/// The request of a tool and its one text: a command, a path, `FROM -> TO`, a URL.
pub(super) fn request(tool: &str, text: &str) -> Result<Request, PolicyCommandError> {
    let input = match tool {
        "shell" => serde_json::json!({ "command": text }),
        "read" | "write" | "edit" | "delete" => serde_json::json!({ "path": text }),
        "fetch" => serde_json::json!({ "url": text }),
        "move" => {
            let Some((from, to)) = text.split_once(" -> ") else {
                let text = "what a `move` is about is written FROM -> TO".to_owned();
                return Err(PolicyCommandError::Usage(text));
            };
            serde_json::json!({ "from": from, "to": to })
        }
        _ => {
            return Err(PolicyCommandError::Usage(
                "--tool is `shell`, `read`, `write`, `edit`, `delete`, `move` or `fetch`; any other, \
                 mcp__SERVER__NAME among them, needs its --input"
                    .to_owned(),
            ));
        }
    };
    let input = RawValue::from_string(input.to_string())
        .map_err(|error| PolicyCommandError::Failed(error.to_string()))?;
    Ok(plain()?.extract(tool, &input))
}
