//! Where a request is judged, and how it is read, away from any workspace.
//!
//! Owns the tools of labelled requests (`shell`, `read`, `write`, `fetch`) and the links that paths
//! lead through. Looks at no file.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::Fault;
use crate::policy::extract::Extractor;
use crate::policy::{Look, Place, Request, Resolver};

/// Which field holds what, of a tool of labelled requests.
const PLAIN: &str = r#"
schema = 1
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
[tool.fetch]
class = "fetch"
url = "url"
"#;

/// Where labelled requests are judged, if they do not say otherwise.
const WORKSPACE: &str = "/repo/proj";
const HOME: &str = "/home/agent";
const LINKS: &[(&str, &str)] = &[
    ("/repo/proj/link_out", "/etc"),
    ("/repo/proj/link_in", "/repo/proj/src"),
];

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

    /// A symbolic link below the workspace or the home; may be repeated. Else there are
    /// /repo/proj/link_out=/etc and /repo/proj/link_in=/repo/proj/src
    #[arg(long, value_name = "PATH=TARGET", value_parser = link)]
    pub link: Vec<(String, String)>,
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

/// A file system in which there are only links.
#[derive(Debug)]
pub(super) struct Links(BTreeMap<String, String>);

impl PlaceArgs {
    /// The links that there are.
    pub(super) fn links(&self) -> Links {
        let given = self.link.iter().cloned();
        let usual = LINKS
            .iter()
            .map(|(path, to)| ((*path).to_owned(), (*to).to_owned()));
        Links(if self.link.is_empty() {
            usual.collect()
        } else {
            given.collect()
        })
    }

    /// The place; `links` are [`PlaceArgs::links`].
    pub(super) fn place<'a>(&'a self, links: &'a Links) -> Place<'a> {
        Place {
            workspace: &self.workspace,
            home: &self.home,
            cwd: Some(self.cwd.as_deref().unwrap_or(&self.workspace)),
            resolver: links,
        }
    }
}

impl Resolver for Links {
    fn look(&self, path: &str) -> Look {
        match self.0.get(path) {
            Some(target) => Look::Link(target.clone()),
            None => Look::Missing,
        }
    }

    fn links(&self, path: &str) -> Option<Vec<String>> {
        let name = |link: &String| {
            let name = link.strip_prefix(path)?.strip_prefix('/')?;
            (!name.contains('/')).then(|| name.to_owned())
        };
        Some(self.0.keys().filter_map(name).collect())
    }

    fn names(&self, path: &str) -> Option<Vec<String>> {
        self.links(path)
    }
}

/// How labelled requests are read.
pub(super) fn plain() -> Result<Extractor, Fault> {
    Extractor::parse(PLAIN).map_err(|error| Fault::Failed(error.to_string()))
}

/// The request of a tool and its one text: a command, a path, a URL.
pub(super) fn request(tool: &str, text: &str) -> Result<Request, Fault> {
    let key = match tool {
        "shell" => "command",
        "read" | "write" => "path",
        "fetch" => "url",
        _ => {
            return Err(Fault::Usage(
                "--tool is `shell`, `read`, `write` or `fetch`; any other needs its --input"
                    .to_owned(),
            ));
        }
    };
    let input = serde_json::json!({ key: text }).to_string();
    let input = RawValue::from_string(input).map_err(|error| Fault::Failed(error.to_string()))?;
    Ok(plain()?.extract(tool, &input))
}
