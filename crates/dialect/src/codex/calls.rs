//! What an item, or a request about one, says will run: the tool's name and its input, as they are
//! evaluated.
//!
//! Owns these two; a tool table (`codex`) says what they mean. Must not know turns. The input is an
//! object with the one member `call`. A table knows all its members: an unknown member of a request
//! stays in it and makes it an unknown tool.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::members::Members;
use super::shell_words;
use crate::lenient::{BoundedList, parse, parse_object, parse_string};
use crate::mcp_tool_call::McpToolCall;
use marshal_model::limits;
use marshal_model::{PermissionRequest, UntrustedText};

/// The tool that runs a command.
pub(super) const COMMAND: &str = "commandExecution";
/// Input for a running command.
const STDIN: &str = "writeStdin";
/// The tool that writes files.
const WRITES: &str = "fileChange";
/// The tools that only delete or move files.
const DELETES: &str = "fileDelete";
const MOVES: &str = "fileMove";
/// The tool that calls a tool server's tool.
const MCP_TOOL_CALL: &str = "mcpToolCall";
/// Changes of several kinds in one call: in no table.
const MIXED: &str = "fileChanges";

/// A call as it is evaluated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolCall {
    pub(super) name: UntrustedText,
    /// The input as JSON.
    pub(super) input: String,
    /// A short description, for the agent itself.
    pub(super) about: UntrustedText,
}

/// An item, as far as it is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThreadItem<'a> {
    #[serde(rename = "type")]
    pub(super) kind: String,
    #[serde(borrow)]
    pub(super) id: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) status: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) text: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) summary: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) content: Option<&'a RawValue>,
    #[serde(borrow)]
    command: Option<&'a RawValue>,
    #[serde(borrow)]
    cwd: Option<&'a RawValue>,
    #[serde(borrow)]
    source: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) aggregated_output: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) exit_code: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) duration_ms: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) changes: Option<&'a RawValue>,
    #[serde(borrow)]
    server: Option<&'a RawValue>,
    #[serde(borrow)]
    tool: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) result: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) error: Option<&'a RawValue>,
    #[serde(borrow)]
    path: Option<&'a RawValue>,
}

impl ThreadItem<'_> {
    /// The item's id, if it is usable.
    pub(super) fn name(&self) -> Option<String> {
        let id = parse_string(self.id)?.into_raw();
        (id.len() <= limits::FOREIGN_ID_BYTES).then_some(id)
    }
}

/// Whether items of that kind are tool calls.
pub(super) fn is_call(kind: &str) -> bool {
    matches!(
        kind,
        COMMAND
            | WRITES
            | MCP_TOOL_CALL
            | "dynamicToolCall"
            | "collabAgentToolCall"
            | "webSearch"
            | "imageView"
            | "imageGeneration"
    )
}

/// The call of an item; `whole` is the item as it was received.
pub(super) fn call_from_item(item: &ThreadItem<'_>, whole: &RawValue) -> Option<ToolCall> {
    match item.kind.as_str() {
        COMMAND => {
            let (command, cwd) = (parse_string(item.command)?, parse_string(item.cwd)?);
            let source = parse_string(item.source);
            let is_input = source.is_some_and(|entry| entry.raw() == "unifiedExecInteraction");
            let mut call =
                command_call(&command_json(&command), Some(&cwd), [].into_iter(), command);
            if is_input {
                call.name = UntrustedText::from(STDIN);
            }
            Some(call)
        }
        WRITES => changes(item.changes?),
        MCP_TOOL_CALL => mcp_call(item.server?, item.tool?, item.arguments),
        "imageView" => {
            let path = parse_string(item.path)?;
            let input = object(&[("path", item.path.map(RawValue::get))]);
            Some(ToolCall {
                name: UntrustedText::new(item.kind.clone()),
                input: wrap_call(&input),
                about: path,
            })
        }
        kind => Some(ToolCall {
            name: UntrustedText::from(kind),
            input: wrap_call(whole.get()),
            about: UntrustedText::from(kind),
        }),
    }
}

/// A call of a tool server's tool.
fn mcp_call(server: &RawValue, tool: &RawValue, arguments: Option<&RawValue>) -> Option<ToolCall> {
    let about = [
        parse_string(Some(server))?.into_raw(),
        parse_string(Some(tool))?.into_raw(),
    ];
    let input = object(&[
        ("server", Some(server.get())),
        ("tool", Some(tool.get())),
        ("arguments", arguments.map(RawValue::get)),
    ]);
    Some(ToolCall {
        name: UntrustedText::from(MCP_TOOL_CALL),
        input: wrap_call(&input),
        about: UntrustedText::new(about.join("/")),
    })
}

/// The call of a request that precedes a tool server's tool call; `None` if it is another request
/// in that form, one of the server's own.
pub(super) fn call_from_tool_request(members: &Members<'_>) -> Option<ToolCall> {
    let meta = Members::read(members.get("_meta")?)?;
    let kind = meta.text("codex_approval_kind")?;
    if kind.raw() != "mcp_tool_call" {
        return None;
    }
    let server = members.get("serverName")?;
    mcp_call(server, meta.get("tool_name")?, meta.get("tool_params"))
}

impl ToolCall {
    /// Whether both are of the same tool, with the same input in any order.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let read = |call: &Self| serde_json::from_str::<Value>(&call.input).ok();
        self.name == other.name && read(self).is_some_and(|it| read(other) == Some(it))
    }
}

/// The tool of that server for which permission is requested.
pub(crate) fn parse_mcp_tool_call(
    request: &PermissionRequest,
    server: &str,
) -> Option<McpToolCall> {
    #[derive(Deserialize)]
    struct Input {
        call: Of,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Of {
        server: String,
        tool: String,
        arguments: Value,
    }
    let is_one = request.tool.raw() == MCP_TOOL_CALL && request.tool_id.is_some();
    let input: Input = serde_json::from_str(request.input.get()).ok()?;
    let Of {
        server: entry,
        tool,
        arguments,
    } = input.call;
    (is_one && entry == server && arguments.is_object()).then_some(McpToolCall { tool, arguments })
}

/// A command call; `command` is JSON.
fn command_call<'a>(
    command: &str,
    cwd: Option<&UntrustedText>,
    others: impl Iterator<Item = (&'a str, &'a RawValue)>,
    about: UntrustedText,
) -> ToolCall {
    let cwd = cwd.map(|cwd| quoted(cwd.raw()));
    let mut list = vec![("command", Some(command)), ("cwd", cwd.as_deref())];
    list.extend(others.map(|(name, raw)| (name, Some(raw.get()))));
    ToolCall {
        name: UntrustedText::from(COMMAND),
        input: wrap_call(&object(&list)),
        about,
    }
}

/// The command line as a list of words, where that is the only reading.
fn command_json(line: &UntrustedText) -> String {
    match shell_words::split(line.raw()) {
        Some(words) => serde_json::to_string(&words).unwrap_or_default(),
        None => quoted(line.raw()),
    }
}

/// Members of a command request that say nothing about what will run.
const COMMAND_METADATA: &[&str] = &[
    "kind",
    "threadId",
    "turnId",
    "itemId",
    "approvalId",
    "startedAtMs",
    "reason",
    "command",
    "cwd",
    "commandActions",
    "proposedExecpolicyAmendment",
    "proposedNetworkPolicyAmendments",
    "availableDecisions",
];

/// The agent's own environment.
const LOCAL: &str = "local";

/// The call of a command request; `None` if it has nothing that could be named.
pub(super) fn call_from_request(members: &Members<'_>) -> Option<ToolCall> {
    // A member of another type than the known one could mean anything.
    if ["kind", "environmentId", "command", "cwd"]
        .iter()
        .any(|name| members.is_not_string(name))
    {
        return None;
    }
    let kind = members.text("kind");
    let is_here = members
        .text("environmentId")
        .is_none_or(|entry| entry.raw() == LOCAL);
    let others = members
        .others(COMMAND_METADATA)
        .filter(|(name, _)| !(*name == "environmentId" && is_here));
    let line = members.text("command");
    let command = line
        .as_ref()
        .map_or_else(|| "null".to_owned(), command_json);
    let about = line.unwrap_or_else(|| UntrustedText::from("an unnamed command"));
    let cwd = members.text("cwd");
    let mut call = command_call(&command, cwd.as_ref(), others, about);
    if let Some(kind) = kind.filter(|kind| kind.raw() != "command") {
        call.name = kind;
    }
    Some(call)
}

/// Members of an older command request that say nothing about what will run.
const LEGACY_COMMAND_METADATA: &[&str] = &[
    "conversationId",
    "callId",
    "approvalId",
    "command",
    "cwd",
    "reason",
    "parsedCmd",
];

/// The call of an older request, which has the words themselves.
pub(super) fn call_from_legacy_request(members: &Members<'_>) -> Option<ToolCall> {
    if members.is_not_string("cwd") {
        return None;
    }
    let words: Vec<String> = parse(members.get("command")?)?;
    let cwd = members.text("cwd");
    let about = UntrustedText::new(words.join(" "));
    let command = serde_json::to_string(&words).ok()?;
    Some(command_call(
        &command,
        cwd.as_ref(),
        members.others(LEGACY_COMMAND_METADATA),
        about,
    ))
}

/// The changes of an older request: an object by path.
pub(super) fn call_from_legacy_patch(members: &Members<'_>) -> Option<ToolCall> {
    #[derive(Deserialize)]
    struct Old<'a> {
        #[serde(borrow, rename = "type")]
        kind: &'a RawValue,
        #[serde(borrow)]
        move_path: Option<&'a RawValue>,
        #[serde(borrow)]
        unified_diff: Option<&'a RawValue>,
        #[serde(borrow)]
        content: Option<&'a RawValue>,
    }
    let by_path = Members::read(members.get("fileChanges")?)?;
    let mut list = Vec::new();
    for (path, raw) in by_path.others(&[]) {
        let old: Old<'_> = parse_object(raw)?;
        let kind = object(&[
            ("type", Some(old.kind.get())),
            ("move_path", old.move_path.map(RawValue::get)),
        ]);
        let diff = old.unified_diff.or(old.content).map(RawValue::get);
        list.push(object(&[
            ("path", Some(&quoted(path))),
            ("kind", Some(&kind)),
            ("diff", diff),
        ]));
    }
    let list = RawValue::from_string(format!("[{}]", list.join(","))).ok()?;
    changes(&list)
}

/// One changed file.
#[derive(Deserialize)]
pub(super) struct Change<'a> {
    #[serde(borrow)]
    pub(super) path: &'a RawValue,
    #[serde(borrow)]
    kind: &'a RawValue,
    #[serde(borrow)]
    diff: Option<&'a RawValue>,
}

/// The kind of change.
#[derive(Deserialize)]
struct ChangeKind<'a> {
    #[serde(rename = "type")]
    tag: String,
    #[serde(borrow)]
    move_path: Option<&'a RawValue>,
}

/// All changes of an item as one call: of one kind, or of several, which is in no table.
fn changes(list: &RawValue) -> Option<ToolCall> {
    let list: BoundedList<'_, { limits::CALL_PATHS }> = parse(list)?;
    if list.omitted > 0 || list.items.is_empty() {
        return None;
    }
    let mut names = Vec::new();
    let mut entries = Vec::new();
    let mut about = Vec::new();
    for raw in list.items {
        let change: Change<'_> = parse_object(raw)?;
        let kind: ChangeKind<'_> = parse_object(change.kind)?;
        let goes = kind.move_path.filter(|path| path.get() != "null");
        let name = match (kind.tag.as_str(), goes) {
            ("add" | "update", None) => WRITES,
            ("delete", None) => DELETES,
            ("update", Some(_)) => MOVES,
            _ => MIXED,
        };
        names.push(name);
        about.push(parse_string(Some(change.path))?.into_raw());
        // A long difference is left out, so that a large edit can still be evaluated by its paths.
        let diff = change.diff.map(RawValue::get);
        let diff = diff.filter(|diff| diff.len() <= limits::DIFF_BYTES);
        entries.push(object(&[
            ("path", Some(change.path.get())),
            ("kind", Some(change.kind.get())),
            ("diff", diff),
        ]));
    }
    let first = names.first().copied().unwrap_or(MIXED);
    let name = if names.iter().all(|name| *name == first) {
        first
    } else {
        MIXED
    };
    let list = format!("[{}]", entries.join(","));
    Some(ToolCall {
        name: UntrustedText::from(name),
        input: wrap_call(&object(&[("changes", Some(&list))])),
        about: UntrustedText::new(about.join(", ")),
    })
}

/// The paths of an item's changes, for people.
pub(super) fn changed_paths(list: &RawValue) -> Vec<UntrustedText> {
    let list: BoundedList<'_, { limits::CALL_PATHS }> = parse(list).unwrap_or_default();
    let path = |raw: &RawValue| parse_string(Some(parse_object::<Change<'_>>(raw)?.path));
    list.items.into_iter().filter_map(path).collect()
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

/// An object of the given members.
fn object(list: &[(&str, Option<&str>)]) -> String {
    let mut text = String::from("{");
    for (name, value) in list {
        let Some(value) = value else { continue };
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&quoted(name));
        text.push(':');
        text.push_str(value);
    }
    text.push('}');
    text
}

fn wrap_call(call: &str) -> String {
    format!("{{\"call\":{call}}}")
}
