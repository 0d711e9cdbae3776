//! Extractors: which fields of an agent's tool calls contain the command, the path and the
//! directory.
//!
//! Owns the table (TOML, one for each kind of agent) and how a call becomes a request. Must not
//! know the protocol that carried the call, nor how its JSON is read (`fields`).
//!
//! A field may have several places. All that are present must agree: if two readers could read a
//! call differently, it is not a plain request.

pub(super) mod argv;
mod fields;
mod pattern;
mod tool;
mod values;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Deserialize;
use serde_json::value::RawValue;

use self::fields::{FieldError, FieldPath, FieldRef, Fields};
use self::tool::{Tool, parse_tool};
use self::values::missing_field;
use super::cases::split_mcp_name;
use super::request::{Request, ToolClass};
use marshal_model::untrusted::escape_for_display;
use marshal_model::{UntrustedText, canonicalize};

/// The built-in tables.
const BUILTIN: &[(&str, &str)] = &[
    (
        "acp",
        concat!(
            include_str!("builtin/extract-acp.toml"),
            include_str!("builtin/extract-acp-edit.toml")
        ),
    ),
    ("claude", include_str!("builtin/extract-claude.toml")),
    ("codex", include_str!("builtin/extract-codex.toml")),
    ("gemini", include_str!("builtin/extract-gemini.toml")),
    (
        "hermes",
        concat!(
            include_str!("builtin/extract-hermes.toml"),
            include_str!("builtin/extract-acp.toml"),
            include_str!("builtin/extract-acp-edit.toml")
        ),
    ),
    (
        "opencode",
        concat!(
            include_str!("builtin/extract-acp.toml"),
            include_str!("builtin/extract-opencode.toml")
        ),
    ),
    ("scaiflux", include_str!("builtin/extract-scaiflux.toml")),
];

/// The built-in table of this name.
#[must_use]
pub fn builtin_text(name: &str) -> Option<&'static str> {
    let (_, text) = BUILTIN.iter().find(|(known, _)| *known == name)?;
    Some(text)
}

/// Turns tool calls into requests.
#[derive(Debug, Clone)]
pub struct Extractor {
    tools: BTreeMap<String, ToolEntry>,
    mcp: Option<McpText>,
    missing: OnMissing,
}

/// A tool of a table.
#[derive(Debug, Clone)]
struct ToolEntry {
    tool: Tool,
    /// The only members that may be in the object of the table's `closed`, if it has one. Any other
    /// member could change what runs without being seen here.
    known_members: Option<(String, Vec<FieldPath>)>,
}

/// Why a table was rejected.
#[derive(Debug, thiserror::Error)]
pub enum ExtractorError {
    /// A syntax error, an unknown key, a wrong type.
    #[error("extractor, line {line}: {message}")]
    Text {
        /// The line, from 1.
        line: usize,
        /// The parser's message.
        message: String,
    },
    /// A schema of another version.
    #[error("extractor: `schema` is {0}, expected 1")]
    Schema(u32),
    /// A tool's entry is invalid.
    #[error("extractor, tool `{tool}`: {what}")]
    Tool {
        /// The tool's name.
        tool: String,
        /// What is wrong; names the key.
        what: ToolError,
    },
}

/// What is wrong with a tool's entry in a table; names the key.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// Its class is unknown.
    #[error(
        "`class` is `{0}`, expected `shell`, `read`, `write`, `edit`, `delete`, `move`, `fetch` or `mcp`"
    )]
    Class(String),
    /// A key that its class does not have: the key and the class.
    #[error("`{0}` does nothing for the class `{1}`")]
    UselessKey(&'static str, String),
    /// A key that its class needs.
    #[error("`{0}` is missing, expected the name of the field")]
    Missing(&'static str),
    /// The name of a field cannot be read.
    #[error(
        "`{0}` is not a field path, expected one like `path`, `rawInput.path` or `locations[].path`"
    )]
    FieldPath(String),
    /// A list of fields is empty.
    #[error("an empty list names no field")]
    EmptyList,
    /// `arguments` leads into the elements of a list.
    #[error("`arguments` must be one object, not one per list element")]
    ArgumentsInList,
    /// `unlike` is no regular expression.
    #[error("`unlike`: {0}")]
    Unlike(regex::Error),
    /// The directory of `cwd_frame` has no begin or no end.
    #[error("`cwd_frame` needs texts before and after the directory")]
    CwdFrame,
    /// `harmless` in a table where every member is harmless.
    #[error("`harmless` does nothing in a table without `closed`")]
    Harmless,
    /// The form of MCP tools' names has no begin or no separator.
    #[error("`begins` and `between` must not be empty")]
    McpName,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    schema: u32,
    #[serde(default)]
    missing: OnMissing,
    closed: Option<String>,
    shell_text: Option<ShellText>,
    mcp: Option<McpText>,
    #[serde(default)]
    tool: BTreeMap<String, ToolText>,
}

/// The result for a call whose fields are missing or disagree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum OnMissing {
    /// Denied: this agent always sends them.
    #[default]
    Malformed,
    /// An unknown tool: this protocol leaves the fields to the agent.
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
    cwd_frame: Option<FrameText>,
    unlike: Option<String>,
    path: Option<Names>,
    #[serde(default)]
    path_optional: bool,
    pattern: Option<Names>,
    glob: Option<Names>,
    from: Option<Names>,
    to: Option<Names>,
    url: Option<Names>,
    method: Option<Names>,
    server: Option<Names>,
    name: Option<Names>,
    arguments: Option<String>,
    harmless: Option<Names>,
}

/// The form of the names of MCP servers' tools.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct McpText {
    begins: String,
    between: String,
}

/// A prefix with which an agent displays a command.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ShellText {
    field: String,
    begins: String,
}

/// The text that an agent writes around a directory.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FrameText {
    field: String,
    begins: String,
    ends: String,
}

/// One place, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum Names {
    One(String),
    Several(Vec<String>),
}

/// A text at a place: one fixed text, then a directory, then another fixed text.
#[derive(Debug, Clone)]
struct CwdFrame {
    place: FieldPath,
    begins: String,
    ends: String,
}

impl CwdFrame {
    fn from_text(text: FrameText) -> Result<Self, ToolError> {
        if text.begins.is_empty() || text.ends.is_empty() {
            return Err(ToolError::CwdFrame);
        }
        Ok(Self {
            place: FieldPath::parse(&text.field)?,
            begins: text.begins,
            ends: text.ends,
        })
    }

    /// The directory. The agent's text begins with its own words, but what follows may be the
    /// model's, so only the first end marker counts.
    fn extract_directory(&self, fields: &Fields) -> Result<String, ExtractError> {
        let found = fields.find(&self.place)?;
        let [FieldRef::Text(text)] = found.as_slice() else {
            return Err(missing_field(std::slice::from_ref(&self.place)));
        };
        let inside = text.strip_prefix(self.begins.as_str());
        match inside.and_then(|inside| inside.split_once(self.ends.as_str())) {
            Some((directory, _)) if !directory.is_empty() => Ok(directory.to_owned()),
            _ => {
                let why = format!("`{}` does not state where the command runs", self.place);
                Err(ExtractError::Unclear(why))
            }
        }
    }
}

/// The source of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CallOrigin {
    /// The agent requested permission for it.
    Requested,
    /// The agent displayed it.
    Displayed,
}

/// Why a call makes no request of its class.
#[derive(Debug, PartialEq, Eq)]
enum ExtractError {
    /// It is ambiguous.
    Malformed(String),
    /// A field is missing, or its places disagree.
    Unclear(String),
}

impl From<FieldError> for ExtractError {
    fn from(error: FieldError) -> Self {
        Self::Malformed(error.to_string())
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
        let shown = document
            .shell_text
            .map(|text| {
                let place = FieldPath::parse(&text.field);
                place.map(|place| (place, text.begins))
            })
            .transpose()
            .map_err(|what| ExtractorError::Tool {
                tool: "shell_text".to_owned(),
                what,
            })?;
        let mut tools = BTreeMap::new();
        for (name, text) in document.tool {
            let mut entry = ToolEntry::from_text(text, document.closed.as_deref());
            if let Ok(ToolEntry {
                tool: Tool::Shell {
                    displayed: of_tool, ..
                },
                ..
            }) = &mut entry
            {
                of_tool.clone_from(&shown);
            }
            let entry = entry.map_err(|what| ExtractorError::Tool {
                tool: name.clone(),
                what,
            })?;
            tools.insert(name, entry);
        }
        let empty = |mcp: &McpText| mcp.begins.is_empty() || mcp.between.is_empty();
        if document.mcp.as_ref().is_some_and(empty) {
            return Err(ExtractorError::Tool {
                tool: "mcp".to_owned(),
                what: ToolError::McpName,
            });
        }
        Ok(Self {
            tools,
            mcp: document.mcp,
            missing: document.missing,
        })
    }

    /// The class of a tool name, as metrics label it.
    pub fn class(&self, tool: &str) -> ToolClass {
        match self.tools.get(tool).map(|entry| &entry.tool) {
            Some(Tool::Shell { .. }) => ToolClass::Shell,
            Some(Tool::Read { .. }) => ToolClass::Read,
            Some(Tool::Write { .. }) => ToolClass::Write,
            Some(Tool::Edit { .. }) => ToolClass::Edit,
            Some(Tool::Delete { .. }) => ToolClass::Delete,
            Some(Tool::Move { .. }) => ToolClass::Move,
            Some(Tool::Fetch { .. }) => ToolClass::Fetch,
            Some(Tool::Mcp { .. }) => ToolClass::Mcp,
            None if self.split_mcp_name(tool).is_some() => ToolClass::Mcp,
            None => ToolClass::Unknown,
        }
    }

    /// The request of a tool call. `input` is the call's JSON as it was received, at most
    /// [`marshal_model::limits::PERMISSION_INPUT_BYTES`] long: the caller rejects longer ones.
    pub fn extract(&self, tool: &str, input: &RawValue) -> Request {
        self.extract_as(tool, input, CallOrigin::Requested)
    }

    /// The same for a call that the agent only displayed. Such a call may be incomplete, so an
    /// empty input means nothing, while a request with an empty input is malformed.
    pub fn extract_displayed(&self, tool: &str, input: &RawValue) -> Request {
        self.extract_as(tool, input, CallOrigin::Displayed)
    }

    fn extract_as(&self, tool: &str, input: &RawValue, word: CallOrigin) -> Request {
        // A bug in a reader must not end the caller.
        let read = catch_unwind(AssertUnwindSafe(|| self.build_request(tool, input, word)));
        read.unwrap_or_else(|_| Request::Malformed {
            why: "the extractor failed on its input".to_owned(),
        })
    }

    fn build_request(&self, tool: &str, input: &RawValue, word: CallOrigin) -> Request {
        // None of its fields is evaluated, but an approver must see the tool's input.
        let unknown = || match canonicalize(input) {
            Ok(_) => Request::Unknown {
                tool: UntrustedText::new(tool),
            },
            Err(why) => Request::Malformed {
                why: format!("its input is ambiguous: {why}"),
            },
        };
        let entry = self.tools.get(tool);
        let named = self.split_mcp_name(tool);
        if entry.is_none() && named.is_none() {
            return unknown();
        }
        let fields = match serde_json::from_str::<Fields>(input.get()) {
            Ok(fields) => fields,
            Err(error) => {
                // The message may repeat the input, so it becomes one escaped line.
                let why = format!(
                    "its input is not a plain JSON object: {}",
                    escape_for_display(&error.to_string(), 120)
                );
                return Request::Malformed { why };
            }
        };
        let made = match (entry, named) {
            (Some(entry), _) => self
                .hidden_command(entry, &fields, input)
                .and_then(|hidden| hidden.map_or_else(|| entry.to_request(&fields, input), Ok)),
            (None, Some((server, name))) => Ok(tool::mcp_request(server, name, None, input)),
            (None, None) => return unknown(),
        };
        let is_empty =
            word == CallOrigin::Requested && entry.is_some_and(|entry| entry.is_empty(&fields));
        match (made, self.missing) {
            (Ok(request), _) => request,
            (Err(ExtractError::Unclear(why)), _) if is_empty => Request::Malformed { why },
            (Err(ExtractError::Unclear(_)), OnMissing::Unknown) => unknown(),
            (Err(ExtractError::Unclear(why) | ExtractError::Malformed(why)), _) => {
                Request::Malformed { why }
            }
        }
    }

    /// The server and the tool of a name that contains both.
    fn split_mcp_name<'n>(&self, tool: &'n str) -> Option<(&'n str, &'n str)> {
        let mcp = self.mcp.as_ref()?;
        split_mcp_name(tool, &mcp.begins, &mcp.between)
    }

    /// The command in a call that is not named as one. Some adapters name a command line after its
    /// apparent purpose (`cat` becomes `read`). Only a shell's argv is certainly a command.
    fn hidden_command(
        &self,
        entry: &ToolEntry,
        fields: &Fields,
        input: &RawValue,
    ) -> Result<Option<Request>, ExtractError> {
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
                let is_script = matches!(found, FieldRef::List(words)
                    if argv::parse_words(words).is_ok_and(|words| argv::script(&words).is_some()));
                if is_script {
                    return shell.to_request(fields, input).map(Some);
                }
                let why = "it carries a command, but its name is not a command's";
                return Err(ExtractError::Unclear(why.to_owned()));
            }
        }
        Ok(None)
    }
}

impl ToolEntry {
    fn from_text(mut text: ToolText, closed: Option<&str>) -> Result<Self, ToolError> {
        let harmless = parse_field_paths(text.harmless.take())?;
        if closed.is_none() && !harmless.is_empty() {
            return Err(ToolError::Harmless);
        }
        let tool = parse_tool(text)?;
        let known = closed.map(|object| {
            let judged = tool.field_paths().into_iter().cloned();
            (object.to_owned(), judged.chain(harmless).collect())
        });
        Ok(Self {
            tool,
            known_members: known,
        })
    }

    /// Whether the object of the table's `closed` is present and empty. An unknown member could
    /// contain a command; if all members are known, there is none.
    fn is_empty(&self, fields: &Fields) -> bool {
        let Some((object, known)) = &self.known_members else {
            return false;
        };
        let beside: Vec<FieldPath> = match &self.tool {
            Tool::Shell { command, .. } => {
                let beside = known.iter().filter(|place| !command.contains(place));
                beside.cloned().collect()
            }
            _ => Vec::new(),
        };
        fields.has_object(object) && !fields.has_unlisted_members(object, &beside)
    }

    fn to_request(&self, fields: &Fields, input: &RawValue) -> Result<Request, ExtractError> {
        let request = self.tool.to_request(fields, input)?;
        match &self.known_members {
            Some((object, known)) if fields.has_unlisted_members(object, known) => {
                let why = format!("`{object}` has a member that the extractor does not know");
                Err(ExtractError::Unclear(why))
            }
            _ => Ok(request),
        }
    }
}

fn parse_field_paths(names: Option<Names>) -> Result<Vec<FieldPath>, ToolError> {
    let names = match names {
        None => return Ok(Vec::new()),
        Some(Names::One(name)) => vec![name],
        Some(Names::Several(names)) if names.is_empty() => {
            return Err(ToolError::EmptyList);
        }
        Some(Names::Several(names)) => names,
    };
    names.iter().map(|name| FieldPath::parse(name)).collect()
}

/// The command after the prefix with which an agent displays it.
fn displayed_command(
    fields: &Fields,
    (place, begins): &(FieldPath, String),
) -> Result<String, ExtractError> {
    let found = fields.find(place)?;
    let [FieldRef::Text(text)] = found.as_slice() else {
        return Err(missing_field(std::slice::from_ref(place)));
    };
    match text.strip_prefix(begins.as_str()) {
        Some(command) if !command.trim().is_empty() => Ok(command.to_owned()),
        _ => Err(missing_field(std::slice::from_ref(place))),
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod odd_tests;
