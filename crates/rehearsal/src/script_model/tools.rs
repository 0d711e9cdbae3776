//! The tools that an agent declared: which one is its shell, which one writes files, and how each
//! is called.
//!
//! Agents use different names, so a tool is recognized by its name and its schema. Must not know a
//! provider's form of a call.

use serde_json::{Map, Value, json};

use super::request::minimal_value;
use super::script::{ToolIntent, ToolRequest};

/// A tool of the agent.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tool {
    /// Its group, in an API with groups (OpenAI's namespaces).
    pub(super) group: Option<String>,
    /// Its name.
    pub(super) name: String,
    /// The kind of its input.
    pub(super) input_kind: InputKind,
}

impl Tool {
    /// A tool with arguments; its name is a member of its description.
    pub(super) fn new(described: &Value, schema: &Value) -> Option<Self> {
        Some(Self {
            group: None,
            name: described.get("name")?.as_str()?.to_owned(),
            input_kind: InputKind::Schema(schema.clone()),
        })
    }

    fn call(&self, input: Input) -> ToolCall {
        ToolCall {
            group: self.group.clone(),
            name: self.name.clone(),
            input,
        }
    }
}

/// The kind of a tool's input.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum InputKind {
    /// Arguments that satisfy this JSON schema.
    Schema(Value),
    /// A text (OpenAI's custom tools).
    Text,
    /// An action of the provider's own shell tool (OpenAI's `local_shell`).
    LocalShell,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ToolCall {
    /// The tool's group.
    pub(super) group: Option<String>,
    /// The tool's name.
    pub(super) name: String,
    /// The input.
    pub(super) input: Input,
}

/// The input of a tool call.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Input {
    /// Arguments.
    Arguments(Value),
    /// One text.
    Text(String),
    /// The argument vector of a shell.
    LocalShell(Vec<String>),
}

/// Names of shell tools, preferred ones first.
const SHELLS: &[&str] = &[
    "bash",
    "shell",
    "shell_command",
    "exec_command",
    "run_shell_command",
    "terminal",
    "run_terminal_cmd",
    "execute_command",
    "execute",
    "run_command",
    "exec",
    "local_shell",
];

/// Names of tools that write a whole file, preferred ones first.
const WRITERS: &[&str] = &[
    "write_file",
    "write",
    "create_file",
    "apply_patch",
    "edit_file",
    "edit",
];

/// Names of arguments, preferred ones first.
const COMMANDS: &[&str] = &["command", "cmd", "script", "commands"];
const PATHS: &[&str] = &["file_path", "filePath", "path", "absolute_path", "filename"];
const CONTENTS: &[&str] = &["content", "contents", "text", "file_text", "new_string"];

/// The call that fulfils the intent, with the declared tools; `None` if no tool can.
pub(super) fn choose_call(tools: &[Tool], want: &ToolIntent) -> Option<ToolCall> {
    match want {
        ToolIntent::Run(command) => shell_call(tools, command),
        ToolIntent::Write { path, text } => write_call(tools, path, text).or_else(|| {
            // Every shell can write a file.
            let command = format!(
                "printf '%s\\n' {} > {}",
                shell_quote(text),
                shell_quote(path)
            );
            shell_call(tools, &command)
        }),
        ToolIntent::Tool(wanted) => call_by_name(tools, wanted),
    }
}

/// The separators between a server's name and its tool's name.
const SEPARATORS: [char; 4] = ['_', '-', '.', '/'];

/// Finds a tool by its name. Agents join the names of a server and its tool, each in its own way:
/// `mcp__SERVER__NAME`, `mcp_SERVER_NAME`, `SERVER_NAME`.
fn call_by_name(tools: &[Tool], wanted: &ToolRequest) -> Option<ToolCall> {
    let is_it = |tool: &&Tool| {
        let Some(server) = &wanted.server else {
            return tool.group.is_none() && tool.name == wanted.name;
        };
        let before = match &tool.group {
            Some(group) => (tool.name == wanted.name).then_some(group.as_str()),
            // A separator must stand between the two names.
            None => (tool.name.strip_suffix(wanted.name.as_str()))
                .filter(|before| before.ends_with(SEPARATORS)),
        };
        let alone = before.and_then(|before| {
            before
                .trim_end_matches(SEPARATORS)
                .strip_suffix(server.as_str())
        });
        alone.is_some_and(|start| start.is_empty() || start.trim_end_matches(SEPARATORS) == "mcp")
    };
    let tool = tools.iter().find(is_it)?;
    let input = match &tool.input_kind {
        InputKind::Schema(_) => Input::Arguments(Value::Object(wanted.arguments.clone())),
        InputKind::Text | InputKind::LocalShell => return None,
    };
    Some(tool.call(input))
}

fn by_name<'t>(tools: &'t [Tool], names: &[&str]) -> Option<&'t Tool> {
    let is = |tool: &&Tool, name: &str| tool.name.eq_ignore_ascii_case(name);
    names
        .iter()
        .find_map(|name| tools.iter().find(|tool| is(tool, name)))
}

fn shell_call(tools: &[Tool], command: &str) -> Option<ToolCall> {
    let by_shape = || {
        tools.iter().find(|tool| match &tool.input_kind {
            InputKind::Schema(schema) => member(schema, COMMANDS).is_some(),
            InputKind::Text => false,
            InputKind::LocalShell => true,
        })
    };
    let tool = by_name(tools, SHELLS).or_else(by_shape)?;
    let argv = || ["bash", "-lc", command].map(str::to_owned).to_vec();
    let input = match &tool.input_kind {
        InputKind::LocalShell => Input::LocalShell(argv()),
        InputKind::Text => Input::Text(command.to_owned()),
        InputKind::Schema(schema) => {
            let name = member(schema, COMMANDS)?;
            let value = match kind(schema, name) {
                Some("array") => json!(argv()),
                _ => json!(command),
            };
            Input::Arguments(with_required(schema, &[(name, value)]))
        }
    };
    let call = tool.call(input);
    Some(ToolCall {
        group: None,
        ..call
    })
}

fn write_call(tools: &[Tool], path: &str, text: &str) -> Option<ToolCall> {
    let tool = by_name(tools, WRITERS)?;
    let patch = || {
        let lines: Vec<String> = text.lines().map(|line| format!("+{line}")).collect();
        format!(
            "*** Begin Patch\n*** Add File: {path}\n{}\n*** End Patch\n",
            lines.join("\n")
        )
    };
    let input = match &tool.input_kind {
        InputKind::LocalShell => return None,
        InputKind::Text => Input::Text(patch()),
        InputKind::Schema(schema) if tool.name == "apply_patch" => {
            let name = member(schema, &["input", "patch", "patchText"])?;
            Input::Arguments(with_required(schema, &[(name, json!(patch()))]))
        }
        InputKind::Schema(schema) => {
            let (at, content) = (member(schema, PATHS)?, member(schema, CONTENTS)?);
            let given = [(at, json!(path)), (content, json!(format!("{text}\n")))];
            Input::Arguments(with_required(schema, &given))
        }
    };
    let call = tool.call(input);
    Some(ToolCall {
        group: None,
        ..call
    })
}

/// The first of these names that the schema has as a property.
fn member<'n>(schema: &Value, names: &[&'n str]) -> Option<&'n str> {
    let members = schema.get("properties")?.as_object()?;
    names
        .iter()
        .find(|name| members.contains_key(**name))
        .copied()
}

fn kind<'s>(schema: &'s Value, name: &str) -> Option<&'s str> {
    schema.get("properties")?.get(name)?.get("type")?.as_str()
}

/// The given arguments, and the smallest value of every other required one.
fn with_required(schema: &Value, given: &[(&str, Value)]) -> Value {
    let mut members = match minimal_value(schema, 3) {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    let given = given.iter();
    members.extend(given.map(|(name, value)| ((*name).to_owned(), value.clone())));
    Value::Object(members)
}

fn shell_quote(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str, properties: &Value, required: &[&str]) -> Tool {
        Tool {
            group: None,
            name: name.to_owned(),
            input_kind: InputKind::Schema(json!({
                "type": "object", "properties": properties, "required": required
            })),
        }
    }

    fn run(tools: &[Tool]) -> ToolCall {
        choose_call(tools, &ToolIntent::Run("ls".into())).expect("a shell")
    }

    #[test]
    fn a_shell_is_known_by_its_name_and_called_as_its_schema_says() {
        let text = json!({ "type": "string" });
        let list = json!({ "type": "array", "items": { "type": "string" } });
        let described =
            json!({ "command": text, "description": text, "timeout": { "type": "number" } });
        let read = tool("Read", &json!({ "command": text }), &[]);
        let bash = tool("Bash", &described, &["command", "description"]);
        let call = run(&[read.clone(), bash]);
        assert_eq!(call.name, "Bash");
        assert_eq!(
            call.input,
            Input::Arguments(json!({ "command": "ls", "description": "rehearsal" }))
        );
        let call = run(&[tool("shell", &json!({ "command": list }), &["command"])]);
        assert_eq!(
            call.input,
            Input::Arguments(json!({ "command": ["bash", "-lc", "ls"] }))
        );
        let call = run(&[tool("exec_command", &json!({ "cmd": text }), &["cmd"])]);
        assert_eq!(call.input, Input::Arguments(json!({ "cmd": "ls" })));
        // Recognized only by its schema.
        assert_eq!(run(&[read]).name, "Read");
        let local = Tool {
            group: None,
            name: "local_shell".into(),
            input_kind: InputKind::LocalShell,
        };
        let argv = ["bash", "-lc", "ls"].map(str::to_owned).to_vec();
        assert_eq!(run(&[local]).input, Input::LocalShell(argv));
    }

    #[test]
    fn without_a_shell_nothing_is_called() {
        let odd = tool("search", &json!({ "query": { "type": "string" } }), &[]);
        assert_eq!(choose_call(&[odd], &ToolIntent::Run("ls".into())), None);
        assert_eq!(choose_call(&[], &ToolIntent::Run("ls".into())), None);
    }

    #[test]
    fn a_file_is_written_by_the_tool_for_it_by_a_patch_or_by_the_shell() {
        let want = ToolIntent::Write {
            path: "a.txt".into(),
            text: "it's".into(),
        };
        let text = json!({ "type": "string" });
        let writer = tool(
            "Write",
            &json!({ "file_path": text, "content": text }),
            &["file_path", "content"],
        );
        let made = choose_call(&[writer], &want).expect("a call");
        assert_eq!(
            made.input,
            Input::Arguments(json!({ "file_path": "a.txt", "content": "it's\n" }))
        );
        let patch = Tool {
            group: None,
            name: "apply_patch".into(),
            input_kind: InputKind::Text,
        };
        let Some(Input::Text(patch)) = choose_call(&[patch], &want).map(|call| call.input) else {
            panic!("a patch");
        };
        assert!(patch.contains("*** Add File: a.txt\n+it's\n"), "{patch}");
        let shell = tool("bash", &json!({ "command": text }), &["command"]);
        let made = choose_call(&[shell], &want).expect("a call");
        assert_eq!(
            made.input,
            Input::Arguments(json!({ "command": "printf '%s\\n' 'it'\\''s' > 'a.txt'" }))
        );
    }
}
