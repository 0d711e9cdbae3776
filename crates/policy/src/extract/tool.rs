//! The tools of a table: the fields of each class, and the requests that they make.
//!
//! Must not know how a call's JSON is read, nor how tables are found.

use regex::Regex;
use serde_json::value::RawValue;

use super::fields::{FieldPath, FieldRef, Fields};
use super::pattern::{self, push_search_targets};
use super::values::{files, missing_field, required, single_value, text_value};
use super::{
    CwdFrame, ExtractError, Names, ToolError, ToolText, argv, displayed_command, parse_field_paths,
};
use crate::request::{ReadTarget, Request, ToolClass};

#[derive(Debug, Clone)]
pub(super) enum Tool {
    Shell {
        command: Vec<FieldPath>,
        /// Whether the command may be an array of words.
        argv: bool,
        cwd: Vec<FieldPath>,
        /// The text of the agent that contains the directory, and that must be present.
        frame: Option<CwdFrame>,
        /// Inputs that the agent would run differently from what they say.
        unlike: Option<Regex>,
        /// The place and prefix of a displayed command, in a call without command fields.
        displayed: Option<(FieldPath, String)>,
    },
    Read {
        path: Vec<FieldPath>,
        optional: bool,
        pattern: Vec<FieldPath>,
        glob: Vec<FieldPath>,
    },
    Write {
        path: Vec<FieldPath>,
    },
    Edit {
        path: Vec<FieldPath>,
    },
    Delete {
        path: Vec<FieldPath>,
    },
    Move {
        from: Vec<FieldPath>,
        to: Vec<FieldPath>,
    },
    Fetch {
        url: Vec<FieldPath>,
        method: Vec<FieldPath>,
    },
    Mcp {
        server: Vec<FieldPath>,
        name: Vec<FieldPath>,
        arguments: Option<FieldPath>,
    },
}

pub(super) fn parse_tool(text: ToolText) -> Result<Tool, ToolError> {
    let class = ToolClass::parse(&text.class);
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
        return Err(ToolError::UselessKey(key, text.class));
    }
    let needed = |key: &'static str, names: Option<Names>| match parse_field_paths(names)? {
        places if places.is_empty() => Err(ToolError::Missing(key)),
        places => Ok(places),
    };
    match class {
        Some(ToolClass::Shell) => Ok(Tool::Shell {
            command: needed("command", text.command)?,
            argv: text.argv,
            cwd: parse_field_paths(text.cwd)?,
            frame: text.cwd_frame.map(CwdFrame::from_text).transpose()?,
            unlike: text
                .unlike
                .map(|pattern| Regex::new(&pattern).map_err(ToolError::Unlike))
                .transpose()?,
            displayed: None,
        }),
        Some(ToolClass::Read) => Ok(Tool::Read {
            path: needed("path", text.path)?,
            optional: text.path_optional,
            pattern: parse_field_paths(text.pattern)?,
            glob: parse_field_paths(text.glob)?,
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
            method: parse_field_paths(text.method)?,
        }),
        Some(ToolClass::Mcp) => Ok(Tool::Mcp {
            server: needed("server", text.server)?,
            name: needed("name", text.name)?,
            arguments: text
                .arguments
                .as_deref()
                .map(parse_object_path)
                .transpose()?,
        }),
        Some(ToolClass::Unknown) | None => Err(ToolError::Class(text.class)),
    }
}

/// The place of one object.
fn parse_object_path(name: &str) -> Result<FieldPath, ToolError> {
    let place = FieldPath::parse(name)?;
    if place.has_list_step() {
        return Err(ToolError::ArgumentsInList);
    }
    Ok(place)
}

impl Tool {
    /// Every place that is evaluated.
    pub(super) fn field_paths(&self) -> Vec<&FieldPath> {
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

    pub(super) fn to_request(
        &self,
        fields: &Fields,
        input: &RawValue,
    ) -> Result<Request, ExtractError> {
        match self {
            Self::Shell {
                command,
                argv,
                cwd,
                frame,
                unlike,
                displayed: shown,
            } => {
                let read = |found: FieldRef<'_>| match found {
                    FieldRef::List(words) if *argv => {
                        argv::to_command_line(&argv::parse_words(words)?)
                    }
                    other => other.to_text(),
                };
                let command = match (single_value(fields, command, read)?, shown) {
                    (None, Some(shown)) => Some(displayed_command(fields, shown)?),
                    (named, _) => named,
                }
                .ok_or_else(|| missing_field(command))?;
                if unlike
                    .as_ref()
                    .is_some_and(|unlike| unlike.is_match(&command))
                {
                    let why = "the agent would run something else than the input says";
                    return Err(ExtractError::Unclear(why.to_owned()));
                }
                let framed = frame.as_ref().map(|frame| frame.extract_directory(fields));
                let named = single_value(fields, cwd, text_value)?;
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
                let targets = read_targets(fields, path, *optional, at, globs)?;
                Ok(Request::Read { targets })
            }
            Self::Write { path } => Ok(Request::Write {
                paths: required_files(fields, path)?,
            }),
            Self::Edit { path } => Ok(Request::Edit {
                paths: required_files(fields, path)?,
            }),
            Self::Delete { path } => Ok(Request::Delete {
                paths: required_files(fields, path)?,
            }),
            Self::Move { from, to } => Ok(Request::Move {
                from: required_files(fields, from)?,
                to: required_files(fields, to)?,
            }),
            Self::Fetch { url, method } => {
                let named_method = single_value(fields, method, text_value)?;
                Ok(Request::Fetch {
                    url: required(url, single_value(fields, url, text_value)?)?,
                    // A call that may name a method and does not is a plain one.
                    method: named_method.or_else(|| (!method.is_empty()).then(|| "GET".to_owned())),
                })
            }
            Self::Mcp {
                server,
                name,
                arguments,
            } => {
                let server = required(server, single_value(fields, server, text_value)?)?;
                let name = required(name, single_value(fields, name, text_value)?)?;
                Ok(mcp_request(&server, &name, arguments.as_ref(), input))
            }
        }
    }
}

fn required_files(fields: &Fields, places: &[FieldPath]) -> Result<Vec<String>, ExtractError> {
    match files(fields, places)? {
        paths if paths.is_empty() => Err(missing_field(places)),
        paths => Ok(paths),
    }
}

/// The targets of a reading call: its paths, and what its patterns may match below them.
fn read_targets(
    fields: &Fields,
    path: &[FieldPath],
    optional: bool,
    at: &[FieldPath],
    globs: &[FieldPath],
) -> Result<Vec<ReadTarget>, ExtractError> {
    let named = files(fields, path)?;
    if named.is_empty() && !optional {
        return Err(missing_field(path));
    }
    let pattern = single_value(fields, at, text_value)?;
    let glob = single_value(fields, globs, text_value)?;
    if pattern.is_none() && glob.is_none() && !at.is_empty() {
        return Err(missing_field(at));
    }
    let mut targets = Vec::new();
    let below: Vec<Option<&str>> = if named.is_empty() {
        vec![None]
    } else {
        named.iter().map(|path| Some(path.as_str())).collect()
    };
    // Beside a file pattern the other one is a text to search for, if the tool reads it. This
    // program cannot know which one the tool uses, so it is evaluated by where it leads.
    for below in below {
        if let Some(pattern) = &pattern {
            push_search_targets(below, pattern, !globs.is_empty(), &mut targets);
        }
        if let Some(pattern) = glob.as_ref() {
            push_search_targets(below, pattern, false, &mut targets);
        }
        if let Some(pattern) = glob.as_ref().or(pattern.as_ref()) {
            pattern::push_named_targets(below, pattern, &mut targets);
        }
    }
    if named.is_empty() {
        targets.push(ReadTarget::Workspace);
    }
    targets.extend(named.into_iter().map(ReadTarget::Path));
    Ok(targets)
}

/// A call of an MCP server's tool. Its arguments are at a place of the input, or all of the input.
pub(super) fn mcp_request(
    server: &str,
    name: &str,
    at: Option<&FieldPath>,
    input: &RawValue,
) -> Request {
    // It was read once, so this cannot fail. If it did, nothing would be allowed.
    let Ok(whole) = serde_json::from_str::<serde_json::Value>(input.get()) else {
        let why = "its input is not JSON".to_owned();
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
