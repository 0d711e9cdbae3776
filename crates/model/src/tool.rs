//! The tools that the supervisor itself gives to an agent, and a call of one.
//!
//! Plain data. Must not know how a protocol encodes them, nor who executes them.
//!
//! A new tool also touches `dialect/mcp/arguments.rs`, `dialect/mcp/schema.rs`, `policy/client/tools.rs`,
//! `fleet/channel/tools.rs` and `docs/engine-tools.md`.

use std::ops::Not;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{ClientError, UntrustedText, string_enum};

/// The name under which an agent gets the server of these tools; rules name it so.
pub const ENGINE_SERVER: &str = "marshal";

/// The longest text of a call that its record has in full, in bytes; of a longer one it has length
/// and digest.
const RECORDED_TEXT_BYTES: usize = 8 << 10;

string_enum!(
    /// A tool of the supervisor's.
    EngineTool {
        /// Replaces a file, or makes one.
        WriteFile = "write_file",
        /// Changes an exact text of a file.
        EditFile = "edit_file",
        /// Gives lines of a file.
        ReadFile = "read_file",
        /// Asks a person and gives their answer.
        AskPerson = "ask_person",
        /// Reports the status of a step of the plan.
        PlanStep = "plan_step",
    }
);

string_enum!(
    /// The status of a step of a plan.
    StepStatus {
        /// It has not started.
        Pending = "pending",
        /// It is in progress.
        Running = "running",
        /// It is done.
        Done = "done",
        /// It cannot be done now.
        Blocked = "blocked",
    }
);

/// A change of an exact text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextEdit {
    /// The text to replace.
    pub old: String,
    /// The new text.
    pub new: String,
    /// Whether all occurrences are replaced; otherwise there must be exactly one.
    pub replace_all: bool,
}

/// One call of a tool, as the agent makes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EngineCall {
    /// [`EngineTool::WriteFile`]
    Write {
        /// The file, as the agent names it.
        path: String,
        /// Its whole text from then on.
        content: String,
        /// The version that it was made from, 0 for none; `None`: what the session saw last.
        base: Option<u64>,
    },
    /// [`EngineTool::EditFile`]
    Edit {
        /// The file, as the agent names it.
        path: String,
        /// The change.
        edit: TextEdit,
        /// The version that it was made from; `None` means the one that the session saw last.
        base: Option<u64>,
    },
    /// [`EngineTool::ReadFile`]
    Read {
        /// The file, as the agent names it.
        path: String,
        /// The first line wanted, from 1.
        line: u64,
        /// The most lines wanted.
        limit: Option<u64>,
    },
    /// [`EngineTool::AskPerson`]
    Ask {
        /// The question.
        question: String,
        /// Answers that the agent proposes.
        options: Vec<String>,
    },
    /// [`EngineTool::PlanStep`]
    Step {
        /// The step, in the agent's words.
        step: String,
        /// The status.
        status: StepStatus,
    },
}

/// What the policy decides before a call is executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineRequest {
    /// The tool.
    pub tool: EngineTool,
    /// The file that it is about, if it is about one.
    pub path: Option<String>,
    /// Its arguments, as its record has them.
    pub arguments: Value,
}

/// The result of a call.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EngineOutput {
    /// The text of the result.
    pub text: String,
    /// The version of its file, where versions are stored.
    pub version: Option<u64>,
}

impl From<String> for EngineOutput {
    fn from(text: String) -> Self {
        Self {
            text,
            version: None,
        }
    }
}

/// The answer to [`EngineTool::AskPerson`] when the approver gave no comment.
pub const AGREED_WITHOUT_COMMENT: &str = "the person agreed, without a comment";

/// The reply to the agent: the result, or why there is none.
pub type EngineResult = Result<EngineOutput, ClientError>;

/// A version of a file of a registered workspace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    /// The workspace's name.
    pub workspace: UntrustedText,
    /// The file's path below it.
    pub path: UntrustedText,
    /// The version, from 1.
    #[serde(rename = "v")]
    pub version: u64,
    /// The file's id, which stays when it is moved; `None` in records of older versions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Whether it was found on the disk, not written through the supervisor.
    #[serde(default, skip_serializing_if = "Not::not")]
    pub observed: bool,
    /// The path before, if the file was moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved_from: Option<UntrustedText>,
}

impl EngineTool {
    /// The tool of a record that names it as [`EngineTool::record_name`] does.
    #[must_use]
    pub fn from_record_name(name: &str) -> Option<Self> {
        let tool = name.strip_prefix(ENGINE_SERVER)?.strip_prefix('/')?;
        Self::parse(tool)
    }

    /// Its name on record: server and tool.
    #[must_use]
    pub fn record_name(self) -> String {
        format!("{ENGINE_SERVER}/{}", self.as_str())
    }

    /// Whether it changes files.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::WriteFile | Self::EditFile)
    }
}

impl EngineRequest {
    /// Whether a call that the agent reports with this input is this call.
    #[must_use]
    pub fn matches_input(&self, input: &Value) -> bool {
        let text = |name: &str| input.get(name).and_then(Value::as_str);
        let same = |name: &str| {
            let requested = self.arguments.get(name).and_then(Value::as_str);
            requested.is_some() && requested == text(name)
        };
        // Of a text there is always the digest, and not always the text.
        let same_text = |name: &str, requested: &str| {
            let requested = self.arguments.get(requested).and_then(Value::as_str);
            text(name).is_some_and(|text| requested == Some(sha256_hex(text).as_str()))
        };
        let number = |name: &str, default: Option<u64>| {
            let requested = self.arguments.get(name).and_then(Value::as_u64);
            requested == input.get(name).and_then(Value::as_u64).or(default)
        };
        match self.tool {
            EngineTool::WriteFile => same("path") && same_text("content", "sha256"),
            EngineTool::EditFile => {
                same("path")
                    && same_text("old_text", "old_sha256")
                    && same_text("new_text", "sha256")
            }
            EngineTool::ReadFile => {
                same("path") && number("line", Some(1)) && number("limit", None)
            }
            EngineTool::AskPerson => same("question"),
            EngineTool::PlanStep => {
                let step = text("step").or(text("item"));
                same("status") && step == self.arguments.get("step").and_then(Value::as_str)
            }
        }
    }
}

impl EngineCall {
    /// Its tool.
    #[must_use]
    pub const fn tool(&self) -> EngineTool {
        match self {
            Self::Write { .. } => EngineTool::WriteFile,
            Self::Edit { .. } => EngineTool::EditFile,
            Self::Read { .. } => EngineTool::ReadFile,
            Self::Ask { .. } => EngineTool::AskPerson,
            Self::Step { .. } => EngineTool::PlanStep,
        }
    }

    /// The size of its text, which is held until it is executed, in bytes.
    #[must_use]
    pub const fn text_bytes(&self) -> usize {
        match self {
            Self::Write { content, .. } => content.len(),
            Self::Edit { edit, .. } => edit.old.len() + edit.new.len(),
            Self::Read { .. } | Self::Ask { .. } | Self::Step { .. } => 0,
        }
    }

    /// What the policy decides on and the journal records.
    #[must_use]
    pub fn policy_request(&self) -> EngineRequest {
        let (path, arguments) = match self {
            Self::Write {
                path,
                content,
                base,
            } => {
                let mut arguments = json!({
                    "path": path,
                    "bytes": content.len(),
                    "sha256": sha256_hex(content),
                });
                if content.len() <= RECORDED_TEXT_BYTES {
                    arguments["content"] = content.as_str().into();
                }
                if let Some(base) = base {
                    arguments["base"] = (*base).into();
                }
                (Some(path), arguments)
            }
            Self::Edit { path, edit, base } => {
                let mut arguments = json!({
                    "path": path,
                    "replace_all": edit.replace_all,
                    "bytes": edit.new.len(),
                    "sha256": sha256_hex(&edit.new),
                    "old_sha256": sha256_hex(&edit.old),
                });
                if edit.old.len() + edit.new.len() <= RECORDED_TEXT_BYTES {
                    arguments["old_text"] = edit.old.as_str().into();
                    arguments["new_text"] = edit.new.as_str().into();
                }
                if let Some(base) = base {
                    arguments["base"] = (*base).into();
                }
                (Some(path), arguments)
            }
            Self::Read { path, line, limit } => {
                let arguments = json!({"path": path, "line": line, "limit": limit});
                (Some(path), arguments)
            }
            Self::Ask { question, options } => {
                (None, json!({"question": question, "options": options}))
            }
            Self::Step { step, status } => (None, json!({"step": step, "status": status.as_str()})),
        };
        EngineRequest {
            tool: self.tool(),
            path: path.cloned(),
            arguments,
        }
    }
}

/// SHA-256 of a text, in hexadecimal.
#[must_use]
pub fn sha256_hex(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

/// Why an edit cannot be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// Old and new text are the same.
    #[error("old_text and new_text are the same: nothing would change")]
    Unchanged,
    /// The file does not contain the old text.
    #[error(
        "the file does not contain old_text: read the file again, and pass the text exactly as the file has it"
    )]
    Missing,
    /// The file contains it more than once.
    #[error(
        "old_text occurs {0} times in the file: add more of the surrounding text, or set replace_all"
    )]
    Ambiguous(usize),
    /// The result would be too long.
    #[error("the file would become longer than {0} bytes")]
    TooLong(usize),
}

impl TextEdit {
    /// The text with the change made, which is at most `most` bytes long.
    ///
    /// # Errors
    /// [`EditError`]: the file does not contain the old text as given.
    pub fn apply(&self, text: &str, most: usize) -> Result<String, EditError> {
        if self.old == self.new {
            return Err(EditError::Unchanged);
        }
        let Some(first) = text.find(&self.old) else {
            return Err(EditError::Missing);
        };
        let found = text.matches(&self.old).count();
        if !self.replace_all {
            // Where it stands at two places that overlap, it is not said which is meant.
            let next = text.get(first..).and_then(|rest| rest.chars().next());
            let next = first + next.map_or(1, char::len_utf8);
            let again = text
                .get(next..)
                .is_some_and(|rest| rest.contains(&self.old));
            if again {
                return Err(EditError::Ambiguous(found.max(2)));
            }
        }
        // Before it is made: a short text that stands at many places may become a long one.
        let grown = self.new.len().saturating_sub(self.old.len());
        if text.len().saturating_add(grown.saturating_mul(found)) > most {
            return Err(EditError::TooLong(most));
        }
        Ok(text.replace(&self.old, &self.new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(old: &str, new: &str, all: bool) -> TextEdit {
        TextEdit {
            old: old.to_owned(),
            new: new.to_owned(),
            replace_all: all,
        }
    }

    #[test]
    fn a_text_is_changed_where_it_stands_exactly_once() {
        let made = |old, new, all, text: &str| edit(old, new, all).apply(text, 64);
        assert_eq!(made("b", "x", false, "abc").unwrap(), "axc");
        assert_eq!(made("b", "x", false, "abcb"), Err(EditError::Ambiguous(2)));
        assert_eq!(made("b", "x", true, "abcb").unwrap(), "axcx");
        assert_eq!(made("d", "x", true, "abc"), Err(EditError::Missing));
        assert_eq!(made("b", "b", true, "abc"), Err(EditError::Unchanged));
        // Overlapping occurrences count as two.
        assert_eq!(made("aa", "x", false, "aaa"), Err(EditError::Ambiguous(2)));
        assert_eq!(made("éé", "x", false, "ééé"), Err(EditError::Ambiguous(2)));
        assert_eq!(made("é\n", "", false, "aé\nb").unwrap(), "ab");
        // What it becomes is bounded before it is made.
        let long = "x".repeat(32);
        assert_eq!(made("a", &long, true, "aa").unwrap().len(), 64);
        assert_eq!(made("a", &long, true, "aaa"), Err(EditError::TooLong(64)));
    }

    #[test]
    fn a_call_is_known_by_its_arguments() {
        let request_of = |call: EngineCall| call.policy_request();
        let path = || "/w/a".to_owned();
        let long = "x".repeat(RECORDED_TEXT_BYTES + 1);
        let write = request_of(EngineCall::Write {
            path: path(),
            content: long.clone(),
            base: None,
        });
        assert!(write.matches_input(&json!({"path": "/w/a", "content": long})));
        assert!(!write.matches_input(&json!({"path": "/w/a", "content": "x"})));
        assert!(!write.matches_input(&json!({"path": "/w/b", "content": long})));
        assert!(!write.matches_input(&json!({})));
        let edit = request_of(EngineCall::Edit {
            path: path(),
            edit: edit("a", "b", false),
            base: Some(3),
        });
        assert!(edit.matches_input(&json!({"path": "/w/a", "old_text": "a", "new_text": "b"})));
        assert!(!edit.matches_input(&json!({"path": "/w/a", "old_text": "a", "new_text": "c"})));
        let read = request_of(EngineCall::Read {
            path: path(),
            line: 1,
            limit: None,
        });
        assert!(read.matches_input(&json!({"path": "/w/a"})));
        assert!(!read.matches_input(&json!({"path": "/w/a", "limit": 2})));
        let step = request_of(EngineCall::Step {
            step: "s".to_owned(),
            status: StepStatus::Done,
        });
        assert!(step.matches_input(&json!({"step": "s", "status": "done"})));
        assert!(step.matches_input(&json!({"item": "s", "status": "done"})));
        assert!(!step.matches_input(&json!({"status": "done"})));
    }

    #[test]
    fn a_record_names_its_tool_and_shows_short_texts_only() {
        let call = |content: String| EngineCall::Write {
            path: "/w/a".to_owned(),
            content,
            base: None,
        };
        let short = call("x".to_owned()).policy_request();
        assert_eq!(short.arguments["content"], "x");
        assert_eq!(short.path.as_deref(), Some("/w/a"));
        let long = call("x".repeat(RECORDED_TEXT_BYTES + 1)).policy_request();
        assert_eq!(long.arguments.get("content"), None);
        assert_eq!(long.arguments["bytes"], RECORDED_TEXT_BYTES + 1);
        for tool in EngineTool::ALL {
            assert_eq!(
                EngineTool::from_record_name(&tool.record_name()),
                Some(*tool)
            );
        }
        for other in [
            "write_file",
            "marshalwrite_file",
            "other/write_file",
            "marshal/x",
        ] {
            assert_eq!(EngineTool::from_record_name(other), None, "{other}");
        }
    }
}
