//! The tools of a table: which fields each class has, and the request that they make.
//!
//! Must not know how a call's JSON is read, nor how tables are found.

use regex::Regex;
use serde_json::value::RawValue;

use super::fields::{Fields, Found, Place};
use super::pattern::{self, searched};
use super::values::{files, lacks, one, required, text};
use super::{Frame, Names, ToolText, Trouble, argv, places, shown_command};
use crate::policy::request::{Request, Target, ToolClass};

#[derive(Debug, Clone)]
pub(super) enum Tool {
    Shell {
        command: Vec<Place>,
        /// The command may be an array of words.
        argv: bool,
        cwd: Vec<Place>,
        /// The directory stands in a text of the agent's own, which must be there.
        frame: Option<Frame>,
        /// What the agent would run otherwise than it says.
        unlike: Option<Regex>,
        /// Where the command stands behind a text, in a call that has none of its fields.
        shown: Option<(Place, String)>,
    },
    Read {
        path: Vec<Place>,
        optional: bool,
        pattern: Vec<Place>,
        glob: Vec<Place>,
    },
    Write {
        path: Vec<Place>,
    },
    Edit {
        path: Vec<Place>,
    },
    Delete {
        path: Vec<Place>,
    },
    Move {
        from: Vec<Place>,
        to: Vec<Place>,
    },
    Fetch {
        url: Vec<Place>,
        method: Vec<Place>,
    },
    Mcp {
        server: Vec<Place>,
        name: Vec<Place>,
        arguments: Option<Place>,
    },
}

pub(super) fn tool(text: ToolText) -> Result<Tool, String> {
    let class = ToolClass::from_word(&text.class);
    let is = |wanted: &[ToolClass]| class.is_some_and(|class| wanted.contains(&class));
    let shell = is(&[ToolClass::Shell]);
    let read = is(&[ToolClass::Read]);
    let file = is(&[
        ToolClass::Read,
        ToolClass::Write,
        ToolClass::Edit,
        ToolClass::Delete,
    ]);
    let moves = is(&[ToolClass::Move]);
    let mcp = is(&[ToolClass::Mcp]);
    let fetch = is(&[ToolClass::Fetch]);
    let spare = [
        ("command", text.command.is_some(), shell),
        ("argv", text.argv, shell),
        ("cwd", text.cwd.is_some(), shell),
        ("cwd_frame", text.cwd_frame.is_some(), shell),
        ("unlike", text.unlike.is_some(), shell),
        ("path", text.path.is_some(), file),
        ("path_optional", text.path_optional, read),
        ("pattern", text.pattern.is_some(), read),
        ("glob", text.glob.is_some(), read),
        ("from", text.from.is_some(), moves),
        ("to", text.to.is_some(), moves),
        ("url", text.url.is_some(), fetch),
        ("method", text.method.is_some(), fetch),
        ("server", text.server.is_some(), mcp),
        ("name", text.name.is_some(), mcp),
        ("arguments", text.arguments.is_some(), mcp),
    ];
    if let Some((key, ..)) = spare.iter().find(|(_, given, fits)| *given && !*fits) {
        return Err(format!(
            "`{key}` does nothing for the class `{}`",
            text.class
        ));
    }
    let needed = |key: &str, names: Option<Names>| match places(names)? {
        places if places.is_empty() => Err(format!(
            "`{key}` is missing, expected the name of the field"
        )),
        places => Ok(places),
    };
    match class {
        Some(ToolClass::Shell) => Ok(Tool::Shell {
            command: needed("command", text.command)?,
            argv: text.argv,
            cwd: places(text.cwd)?,
            frame: text.cwd_frame.map(Frame::read).transpose()?,
            unlike: text
                .unlike
                .map(|pattern| Regex::new(&pattern).map_err(|error| format!("`unlike`: {error}")))
                .transpose()?,
            shown: None,
        }),
        Some(ToolClass::Read) => Ok(Tool::Read {
            path: needed("path", text.path)?,
            optional: text.path_optional,
            pattern: places(text.pattern)?,
            glob: places(text.glob)?,
        }),
        Some(ToolClass::Write) => Ok(Tool::Write {
            path: needed("path", text.path)?,
        }),
        Some(ToolClass::Edit) => Ok(Tool::Edit {
            path: needed("path", text.path)?,
        }),
        Some(ToolClass::Delete) => Ok(Tool::Delete {
            path: needed("path", text.path)?,
        }),
        Some(ToolClass::Move) => Ok(Tool::Move {
            from: needed("from", text.from)?,
            to: needed("to", text.to)?,
        }),
        Some(ToolClass::Fetch) => Ok(Tool::Fetch {
            url: needed("url", text.url)?,
            method: places(text.method)?,
        }),
        Some(ToolClass::Mcp) => Ok(Tool::Mcp {
            server: needed("server", text.server)?,
            name: needed("name", text.name)?,
            arguments: text.arguments.as_deref().map(object).transpose()?,
        }),
        Some(ToolClass::Unknown) | None => Err(format!(
            "`class` is `{}`, expected `shell`, `read`, `write`, `edit`, `delete`, `move`, `fetch` or `mcp`",
            text.class
        )),
    }
}

/// The place of one object.
fn object(name: &str) -> Result<Place, String> {
    let place = Place::parse(name)?;
    if place.is_spread() {
        return Err("`arguments` is one object, not one in every element".to_owned());
    }
    Ok(place)
}

impl Tool {
    /// Every place that is judged.
    pub(super) fn places(&self) -> Vec<&Place> {
        match self {
            Self::Shell { command, cwd, .. } => command.iter().chain(cwd).collect(),
            Self::Read {
                path,
                pattern,
                glob,
                ..
            } => path.iter().chain(pattern).chain(glob).collect(),
            Self::Write { path } | Self::Edit { path } | Self::Delete { path } => {
                path.iter().collect()
            }
            Self::Move { from, to } => from.iter().chain(to).collect(),
            Self::Fetch { url, method } => url.iter().chain(method).collect(),
            Self::Mcp {
                server,
                name,
                arguments,
            } => server.iter().chain(name).chain(arguments).collect(),
        }
    }

    pub(super) fn request(&self, fields: &Fields, input: &RawValue) -> Result<Request, Trouble> {
        match self {
            Self::Shell {
                command,
                argv,
                cwd,
                frame,
                unlike,
                shown,
            } => {
                let read = |found: Found<'_>| match found {
                    Found::List(words) if *argv => argv::command(&argv::words(words)?),
                    other => other.text(),
                };
                let command = match (one(fields, command, read)?, shown) {
                    (None, Some(shown)) => Some(shown_command(fields, shown)?),
                    (named, _) => named,
                }
                .ok_or_else(|| lacks(command))?;
                if unlike
                    .as_ref()
                    .is_some_and(|unlike| unlike.is_match(&command))
                {
                    let why = "the agent would run something else than this says";
                    return Err(Trouble::Unclear(why.to_owned()));
                }
                let framed = frame.as_ref().map(|frame| frame.directory(fields));
                let named = one(fields, cwd, text)?;
                Ok(Request::Shell {
                    command,
                    cwd: framed.transpose()?.or(named),
                })
            }
            Self::Read {
                path,
                optional,
                pattern: at,
                glob: globs,
            } => {
                let targets = targets(fields, path, *optional, at, globs)?;
                Ok(Request::Read { targets })
            }
            Self::Write { path } => Ok(Request::Write {
                paths: some_files(fields, path)?,
            }),
            Self::Edit { path } => Ok(Request::Edit {
                paths: some_files(fields, path)?,
            }),
            Self::Delete { path } => Ok(Request::Delete {
                paths: some_files(fields, path)?,
            }),
            Self::Move { from, to } => Ok(Request::Move {
                from: some_files(fields, from)?,
                to: some_files(fields, to)?,
            }),
            Self::Fetch { url, method } => {
                let said = one(fields, method, text)?;
                Ok(Request::Fetch {
                    url: required(url, one(fields, url, text)?)?,
                    // Where a call may name a method and does not, it is a plain one.
                    method: said.or_else(|| (!method.is_empty()).then(|| "GET".to_owned())),
                })
            }
            Self::Mcp {
                server,
                name,
                arguments,
            } => {
                let server = required(server, one(fields, server, text)?)?;
                let name = required(name, one(fields, name, text)?)?;
                Ok(mcp(&server, &name, arguments.as_ref(), input))
            }
        }
    }
}

fn some_files(fields: &Fields, places: &[Place]) -> Result<Vec<String>, Trouble> {
    match files(fields, places)? {
        paths if paths.is_empty() => Err(lacks(places)),
        paths => Ok(paths),
    }
}

/// What a call reads: its paths, and what its patterns may name below them.
fn targets(
    fields: &Fields,
    path: &[Place],
    optional: bool,
    at: &[Place],
    globs: &[Place],
) -> Result<Vec<Target>, Trouble> {
    let named = files(fields, path)?;
    if named.is_empty() && !optional {
        return Err(lacks(path));
    }
    let pattern = one(fields, at, text)?;
    let glob = one(fields, globs, text)?;
    if pattern.is_none() && glob.is_none() && !at.is_empty() {
        return Err(lacks(at));
    }
    let mut targets = Vec::new();
    let below: Vec<Option<&str>> = if named.is_empty() {
        vec![None]
    } else {
        named.iter().map(|path| Some(path.as_str())).collect()
    };
    // Beside a pattern for files the other one is a text to look for, if the tool reads
    // it; which it does is its own business, so that it is judged where it leads.
    for below in below {
        if let Some(pattern) = &pattern {
            searched(below, pattern, !globs.is_empty(), &mut targets);
        }
        if let Some(pattern) = glob.as_ref() {
            searched(below, pattern, false, &mut targets);
        }
        if let Some(pattern) = glob.as_ref().or(pattern.as_ref()) {
            pattern::named(below, pattern, &mut targets);
        }
    }
    if named.is_empty() {
        targets.push(Target::Workspace);
    }
    targets.extend(named.into_iter().map(Target::Path));
    Ok(targets)
}

/// A call of an MCP server's tool, whose arguments stand at a place of the input or are all of it.
pub(super) fn mcp(server: &str, name: &str, at: Option<&Place>, input: &RawValue) -> Request {
    // It has been read once already, so this cannot fail; if it did, nothing would be allowed.
    let Ok(whole) = serde_json::from_str::<serde_json::Value>(input.get()) else {
        let why = "its input is no JSON".to_owned();
        return Request::Malformed { why };
    };
    let arguments = match at {
        Some(place) => whole.pointer(&place.pointer()).cloned().unwrap_or_default(),
        None => whole,
    };
    Request::Mcp {
        server: server.into(),
        name: name.into(),
        arguments,
    }
}
