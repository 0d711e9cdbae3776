//! Extractors: which fields of an agent's tool calls hold command, path and directory.
//!
//! Owns the table (TOML, one for each kind of agent) and how a call becomes a request. Must not
//! know the protocol that carried the call, nor how its JSON is read (`fields`).
//!
//! A field may have several places. Then all that are there must say the same: what one reader
//! could take for one thing and another for another is no plain request.

pub(super) mod argv;
mod fields;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

use self::fields::{Fields, Found, Place};
use super::request::{Request, Target, ToolClass};
use crate::limits::CALL_PATHS;
use crate::model::Foreign;
use crate::model::foreign::show;

/// The tables that come with the program.
const BUILTIN: &[(&str, &str)] = &[
    ("acp", include_str!("builtin/extract-acp.toml")),
    ("scaiflux", include_str!("builtin/extract-scaiflux.toml")),
];

/// The table that comes with the program under this name.
#[must_use]
pub fn builtin_text(name: &str) -> Option<&'static str> {
    let (_, text) = BUILTIN.iter().find(|(known, _)| *known == name)?;
    Some(text)
}

/// Turns tool calls into requests.
#[derive(Debug, Clone)]
pub struct Extractor {
    tools: BTreeMap<String, Entry>,
    missing: Missing,
}

/// A tool of a table.
#[derive(Debug, Clone)]
struct Entry {
    tool: Tool,
    /// The only members that may be in the object of the table's `closed`, if it has that: any
    /// other could change what runs, and nothing here would see it.
    known: Option<(String, Vec<Place>)>,
}

/// Why a table was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ExtractorError {
    /// A syntax error, an unknown key, a wrong type.
    #[error("extractor, line {line}: {message}")]
    Text {
        /// The line, from 1.
        line: usize,
        /// What the reader says.
        message: String,
    },
    /// A schema of another version.
    #[error("extractor: `schema` is {0}, expected 1")]
    Schema(u32),
    /// A tool's entry is wrong.
    #[error("extractor, tool `{tool}`: {what}")]
    Tool {
        /// The tool.
        tool: String,
        /// What is wrong, naming the key.
        what: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: u32,
    #[serde(default)]
    missing: Missing,
    closed: Option<String>,
    #[serde(default)]
    tool: BTreeMap<String, ToolText>,
}

/// What a call is whose fields are not there, or do not agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Missing {
    /// Denied: this agent always sends them.
    #[default]
    Malformed,
    /// A tool that no table knows: this protocol leaves it to the agent what it sends.
    Unknown,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ToolText {
    class: String,
    command: Option<Names>,
    #[serde(default)]
    argv: bool,
    cwd: Option<Names>,
    path: Option<Names>,
    #[serde(default)]
    path_optional: bool,
    pattern: Option<Names>,
    url: Option<Names>,
    harmless: Option<Names>,
}

/// One place, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Names {
    One(String),
    Several(Vec<String>),
}

#[derive(Debug, Clone)]
enum Tool {
    Shell {
        command: Vec<Place>,
        /// The command may be an array of words.
        argv: bool,
        cwd: Vec<Place>,
    },
    Read {
        path: Vec<Place>,
        optional: bool,
        pattern: Vec<Place>,
    },
    Write {
        path: Vec<Place>,
    },
    Fetch {
        url: Vec<Place>,
    },
}

/// Why a call makes no request of its class.
#[derive(Debug, PartialEq, Eq)]
enum Trouble {
    /// It cannot be read in one way only.
    Malformed(String),
    /// A field is missing, or its places do not agree.
    Unclear(String),
}

impl From<String> for Trouble {
    fn from(why: String) -> Self {
        Self::Malformed(why)
    }
}

impl Extractor {
    /// Reads a table.
    pub fn parse(text: &str) -> Result<Self, ExtractorError> {
        let document: Document = toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            ExtractorError::Text {
                line: before.map_or(1, |t| t.matches('\n').count() + 1),
                message: error.message().to_owned(),
            }
        })?;
        if document.schema != 1 {
            return Err(ExtractorError::Schema(document.schema));
        }
        let mut tools = BTreeMap::new();
        for (name, text) in document.tool {
            let entry = Entry::read(text, document.closed.as_deref());
            let entry = entry.map_err(|what| ExtractorError::Tool {
                tool: name.clone(),
                what,
            })?;
            tools.insert(name, entry);
        }
        Ok(Self {
            tools,
            missing: document.missing,
        })
    }

    /// What kind of tool a name stands for, as metrics label it.
    pub fn class(&self, tool: &str) -> ToolClass {
        match self.tools.get(tool).map(|entry| &entry.tool) {
            Some(Tool::Shell { .. }) => ToolClass::Shell,
            Some(Tool::Read { .. }) => ToolClass::Read,
            Some(Tool::Write { .. }) => ToolClass::Write,
            Some(Tool::Fetch { .. }) => ToolClass::Fetch,
            None => ToolClass::Unknown,
        }
    }

    /// The request that a tool call makes. `input` is the call's JSON as it came, at most
    /// [`crate::limits::ASK_INPUT_BYTES`] long: the caller refuses longer ones.
    pub fn extract(&self, tool: &str, input: &RawValue) -> Request {
        let unknown = || Request::Unknown {
            tool: Foreign::new(tool),
        };
        let Some(entry) = self.tools.get(tool) else {
            return unknown();
        };
        let fields = match serde_json::from_str::<Fields>(input.get()) {
            Ok(fields) => fields,
            Err(error) => {
                // The message may repeat the input: one line, nothing that acts.
                let why = format!(
                    "its input is no plain JSON object: {}",
                    show(&error.to_string(), 120)
                );
                return Request::Malformed { why };
            }
        };
        let made = self
            .hidden_command(entry, &fields)
            .and_then(|hidden| hidden.map_or_else(|| entry.request(&fields), Ok));
        match (made, self.missing) {
            (Ok(request), _) => request,
            (Err(Trouble::Unclear(_)), Missing::Unknown) => unknown(),
            (Err(Trouble::Unclear(why) | Trouble::Malformed(why)), _) => Request::Malformed { why },
        }
    }

    /// The command that a call carries which is not called one: some adapters name a command line
    /// after what they take it for (`cat` becomes `read`). Only a shell's argv is sure to be one.
    fn hidden_command(&self, entry: &Entry, fields: &Fields) -> Result<Option<Request>, Trouble> {
        if matches!(entry.tool, Tool::Shell { .. }) {
            return Ok(None);
        }
        for shell in self.tools.values() {
            let Tool::Shell {
                command,
                argv: true,
                ..
            } = &shell.tool
            else {
                continue;
            };
            for place in command {
                let Some(found) = fields.find(place)?.into_iter().next() else {
                    continue;
                };
                let is_script = matches!(found, Found::List(words)
                    if argv::words(words).is_ok_and(|words| argv::script(&words).is_some()));
                if is_script {
                    return shell.request(fields).map(Some);
                }
                let why = "it has a command and is not called one";
                return Err(Trouble::Unclear(why.to_owned()));
            }
        }
        Ok(None)
    }
}

impl Entry {
    fn read(mut text: ToolText, closed: Option<&str>) -> Result<Self, String> {
        let harmless = places(text.harmless.take())?;
        if closed.is_none() && !harmless.is_empty() {
            return Err("`harmless` does nothing in a table without `closed`".to_owned());
        }
        let tool = tool(text)?;
        let known = closed.map(|object| {
            let judged = tool.places().into_iter().cloned();
            (object.to_owned(), judged.chain(harmless).collect())
        });
        Ok(Self { tool, known })
    }

    fn request(&self, fields: &Fields) -> Result<Request, Trouble> {
        let request = self.tool.request(fields)?;
        match &self.known {
            Some((object, known)) if fields.has_others(object, known) => {
                let why = format!("`{object}` has a member that no table knows");
                Err(Trouble::Unclear(why))
            }
            _ => Ok(request),
        }
    }
}

fn places(names: Option<Names>) -> Result<Vec<Place>, String> {
    let names = match names {
        None => return Ok(Vec::new()),
        Some(Names::One(name)) => vec![name],
        Some(Names::Several(names)) if names.is_empty() => {
            return Err("an empty list names no field".to_owned());
        }
        Some(Names::Several(names)) => names,
    };
    names.iter().map(|name| Place::parse(name)).collect()
}

fn tool(text: ToolText) -> Result<Tool, String> {
    let class = ToolClass::from_word(&text.class);
    let is = |wanted: &[ToolClass]| class.is_some_and(|class| wanted.contains(&class));
    let shell = is(&[ToolClass::Shell]);
    let read = is(&[ToolClass::Read]);
    let file = is(&[ToolClass::Read, ToolClass::Write]);
    let fetch = is(&[ToolClass::Fetch]);
    let spare = [
        ("command", text.command.is_some(), shell),
        ("argv", text.argv, shell),
        ("cwd", text.cwd.is_some(), shell),
        ("path", text.path.is_some(), file),
        ("path_optional", text.path_optional, read),
        ("pattern", text.pattern.is_some(), read),
        ("url", text.url.is_some(), fetch),
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
        }),
        Some(ToolClass::Read) => Ok(Tool::Read {
            path: needed("path", text.path)?,
            optional: text.path_optional,
            pattern: places(text.pattern)?,
        }),
        Some(ToolClass::Write) => Ok(Tool::Write {
            path: needed("path", text.path)?,
        }),
        Some(ToolClass::Fetch) => Ok(Tool::Fetch {
            url: needed("url", text.url)?,
        }),
        Some(ToolClass::Unknown) | None => Err(format!(
            "`class` is `{}`, expected `shell`, `read`, `write` or `fetch`",
            text.class
        )),
    }
}

impl Tool {
    /// Every place that is judged.
    fn places(&self) -> Vec<&Place> {
        match self {
            Self::Shell { command, cwd, .. } => command.iter().chain(cwd).collect(),
            Self::Read { path, pattern, .. } => path.iter().chain(pattern).collect(),
            Self::Write { path } => path.iter().collect(),
            Self::Fetch { url } => url.iter().collect(),
        }
    }

    fn request(&self, fields: &Fields) -> Result<Request, Trouble> {
        match self {
            Self::Shell { command, argv, cwd } => {
                let read = |found: Found<'_>| match found {
                    Found::List(words) if *argv => argv::command(&argv::words(words)?),
                    other => other.text(),
                };
                Ok(Request::Shell {
                    command: required(command, one(fields, command, read)?)?,
                    cwd: one(fields, cwd, text)?,
                })
            }
            Self::Read {
                path,
                optional,
                pattern: at,
            } => {
                let named = files(fields, path)?;
                let pattern = one(fields, at, text)?;
                if named.is_empty() && !*optional {
                    return Err(lacks(path));
                }
                if pattern.is_none() && !at.is_empty() {
                    return Err(lacks(at));
                }
                let mut targets = Vec::new();
                if let Some(pattern) = pattern {
                    if named.is_empty() {
                        targets.push(leading(None, &pattern));
                    }
                    let below = |path: &String| leading(Some(path), &pattern);
                    targets.extend(named.iter().map(below));
                }
                if named.is_empty() {
                    targets.push(Target::Workspace);
                }
                targets.extend(named.into_iter().map(Target::Path));
                Ok(Request::Read { targets })
            }
            Self::Write { path } => match files(fields, path)? {
                paths if paths.is_empty() => Err(lacks(path)),
                paths => Ok(Request::Write { paths }),
            },
            Self::Fetch { url } => Ok(Request::Fetch {
                url: required(url, one(fields, url, text)?)?,
            }),
        }
    }
}

/// A value that must be a text.
fn text(found: Found<'_>) -> Result<String, String> {
    found.text()
}

fn lacks(places: &[Place]) -> Trouble {
    let first = places.first().map(ToString::to_string).unwrap_or_default();
    Trouble::Unclear(format!("`{first}` is missing"))
}

fn required(places: &[Place], found: Option<String>) -> Result<String, Trouble> {
    found.ok_or_else(|| lacks(places))
}

/// The one value of a field, if it is there; all its places must have the same.
fn one(
    fields: &Fields,
    places: &[Place],
    read: impl Fn(Found<'_>) -> Result<String, String>,
) -> Result<Option<String>, Trouble> {
    let mut value: Option<String> = None;
    for place in places {
        for found in fields.find(place)? {
            let text = read(found).map_err(|why| format!("`{place}` {why}"))?;
            match &value {
                Some(before) if *before != text => {
                    let why = format!("`{place}` says another thing than a field before it");
                    return Err(Trouble::Unclear(why));
                }
                _ => value = Some(text),
            }
        }
    }
    Ok(value)
}

/// The paths of a call, all of which are judged. Each place that has any must speak of the same
/// files as every other.
fn files(fields: &Fields, places: &[Place]) -> Result<Vec<String>, Trouble> {
    let mut all: Vec<String> = Vec::new();
    let mut groups: Vec<Vec<String>> = Vec::new();
    for place in places {
        let mut group = Vec::new();
        for found in fields.find(place)? {
            let text = found.text().map_err(|why| format!("`{place}` {why}"))?;
            if !all.contains(&text) {
                all.push(text.clone());
            }
            if all.len() > CALL_PATHS {
                let why = format!("it names more than {CALL_PATHS} files");
                return Err(Trouble::Malformed(why));
            }
            group.push(text);
        }
        let strangers = groups.first().is_some_and(|first| {
            let speaks = |of: &[String], path: &String| of.iter().any(|p| same_file(p, path));
            !group.iter().all(|path| speaks(first, path))
                || !first.iter().all(|path| speaks(&group, path))
        });
        if !group.is_empty() && strangers {
            let why = format!("`{place}` names other files than a field before it");
            return Err(Trouble::Unclear(why));
        }
        if !group.is_empty() {
            groups.push(group);
        }
    }
    Ok(all)
}

/// Whether two spellings can be of one file: they are the same, or one is the relative end of the
/// other. Both are judged, so this need not be sure.
fn same_file(a: &str, b: &str) -> bool {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let short = short.strip_prefix("./").unwrap_or(short);
    let below = long
        .strip_suffix(short)
        .is_some_and(|dir| dir.ends_with('/'));
    a == b || (below && !short.starts_with('/') && !short.split('/').any(|part| part == ".."))
}

/// What a search pattern reads: the directory before its first wildcard, or anything if it goes
/// up behind one.
fn leading(path: Option<&str>, pattern: &str) -> Target {
    let magic = pattern
        .find(['*', '?', '[', '{', '(', '!', '\\'])
        .unwrap_or(pattern.len());
    let (fixed, rest) = pattern.split_at(magic);
    let joined = |tail: &str| match path {
        Some(path) if !tail.starts_with(['/', '~']) => format!("{path}/{tail}"),
        _ => tail.to_owned(),
    };
    if rest.contains("..") {
        return Target::Anywhere(joined(pattern));
    }
    if rest.is_empty() {
        return Target::Path(joined(pattern));
    }
    // Its last name is judged, too: a pattern for a secret's name is a search for secrets.
    match fixed.rfind('/') {
        Some(slash) => Target::Path(joined(&fixed[..=slash])),
        None => path.map_or(Target::Workspace, |path| Target::Path(path.to_owned())),
    }
}

#[cfg(test)]
mod tests;
