//! The persisted bodies of version 1, one struct a kind, for both writing and reading.
//!
//! A field may be added if it is optional (`default`, and not written when empty). A field that
//! changes its meaning or is removed needs a new version and its own structs.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use marshal_model::{ExitStatus, UntrustedText};

pub(super) type Text<'a> = Cow<'a, str>;
pub(super) type OptionalText<'a> = Option<Cow<'a, str>>;
pub(super) type Raw<'a> = Cow<'a, RawValue>;

/// Borrows a foreign text for serialization.
pub(super) fn text(foreign: &UntrustedText) -> Text<'_> {
    Cow::Borrowed(foreign.raw())
}

/// Borrows an optional foreign text for serialization.
pub(super) fn optional_text(foreign: Option<&UntrustedText>) -> OptionalText<'_> {
    foreign.map(text)
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "the signature that serde's skip_serializing_if calls"
)]
fn is_false(value: &bool) -> bool {
    !*value
}

#[derive(Serialize, Deserialize)]
pub(super) struct PromptAccepted<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) task: OptionalText<'a>,
    pub(super) attempt: u32,
    pub(super) text: Text<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ChildStarted<'a> {
    pub(super) pid: u32,
    pub(super) launcher: Text<'a>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) lacks: Vec<Text<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) limits: Option<Text<'a>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) sandbox: Vec<Text<'a>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Ready<'a> {
    pub(super) protocol: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) version: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) model: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mode: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) modes: Vec<Choice<'a>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) tools: Vec<Text<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) context_window: Option<u64>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct TurnStarted<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) turn: OptionalText<'a>,
}

/// The body of `text` and `thought` events.
#[derive(Serialize, Deserialize)]
pub(super) struct Delta<'a> {
    pub(super) delta: Text<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ToolStart<'a> {
    pub(super) id: Text<'a>,
    pub(super) name: Text<'a>,
    pub(super) input: Raw<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ToolUpdate<'a> {
    pub(super) id: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) title: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) status: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) input: Option<Raw<'a>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ToolResult<'a> {
    pub(super) id: Text<'a>,
    pub(super) output: Text<'a>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) is_error: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) took_us: Option<u64>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Claimed<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) active_mode: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) required_mode: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reason: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) title: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) kind: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) no_allow: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct PermissionRequested<'a> {
    pub(super) id: Text<'a>,
    pub(super) key: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) tool_id: OptionalText<'a>,
    pub(super) tool: Text<'a>,
    /// `null` if the input was longer than `limits::PERMISSION_INPUT_BYTES`. `input_bytes` then has
    /// its length, and the request's row has its digest.
    pub(super) input: Raw<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) input_bytes: Option<u64>,
    pub(super) claimed: Claimed<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct PermissionDecided<'a> {
    pub(super) request: Text<'a>,
    pub(super) decision: Text<'a>,
    pub(super) by: Text<'a>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) rules: Vec<Text<'a>>,
    pub(super) reason: Text<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct UnrequestedToolCall<'a> {
    pub(super) id: Text<'a>,
    pub(super) tool: Text<'a>,
    pub(super) decision: Text<'a>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) rules: Vec<Text<'a>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Plan<'a> {
    pub(super) entries: Vec<PlanEntry<'a>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct PlanEntry<'a> {
    pub(super) content: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) priority: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) status: OptionalText<'a>,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
pub(super) struct Usage {
    pub(super) input: u64,
    pub(super) output: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ContextUsed<'a> {
    pub(super) used: u64,
    pub(super) size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) cost: Option<Cost<'a>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Cost<'a> {
    pub(super) amount: f64,
    pub(super) currency: Text<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct FileUpdated<'a> {
    pub(super) tool: Text<'a>,
    pub(super) path: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sha256: Option<Cow<'a, str>>,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<FileVersion<'a>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct FileVersion<'a> {
    pub(super) workspace: Text<'a>,
    pub(super) path: Text<'a>,
    pub(super) v: u64,
    #[serde(default, borrow, skip_serializing_if = "Option::is_none")]
    pub(super) file: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) observed: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moved_from: OptionalText<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct PlanStep<'a> {
    pub(super) step: Text<'a>,
    #[serde(borrow)]
    pub(super) status: Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct StateChanged<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) model: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) mode: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) context_pct: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) context_window: Option<u64>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct CommandSent<'a> {
    pub(super) command: Text<'a>,
    pub(super) args: Text<'a>,
    pub(super) by: Text<'a>,
}

impl<'a> CommandSent<'a> {
    pub(super) fn new(command: &'a str, args: &'a UntrustedText, by: &'a str) -> Self {
        Self {
            command: Cow::Borrowed(command),
            args: text(args),
            by: Cow::Borrowed(by),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct SlashResult<'a> {
    pub(super) command: Text<'a>,
    pub(super) text: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Raw<'a>>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) clear_session: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) exit: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct AgentError<'a> {
    pub(super) code: Text<'a>,
    pub(super) message: Text<'a>,
    pub(super) origin: Text<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct TurnEnded<'a> {
    pub(super) outcome: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) stop_reason: OptionalText<'a>,
    pub(super) usage: Usage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) detail: OptionalText<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct TurnUnsent<'a> {
    pub(super) turn: Text<'a>,
    pub(super) outcome: Text<'a>,
    pub(super) detail: Text<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Unknown<'a> {
    pub(super) tag: Text<'a>,
    pub(super) raw: Raw<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct BadLine<'a> {
    pub(super) reason: Text<'a>,
    pub(super) head: Text<'a>,
}

/// `{"code":1}` or `{"signal":9}`.
#[derive(Serialize, Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    Code(i32),
    Signal(i32),
}

impl From<ExitStatus> for Status {
    fn from(status: ExitStatus) -> Self {
        match status {
            ExitStatus::Code(code) => Self::Code(code),
            ExitStatus::Signal(signal) => Self::Signal(signal),
        }
    }
}

impl From<Status> for ExitStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Code(code) => Self::Code(code),
            Status::Signal(signal) => Self::Signal(signal),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct ChildExited<'a> {
    pub(super) class: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<Status>,
    pub(super) detail: Text<'a>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) stderr: Vec<Text<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) memory_peak: Option<u64>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct CheckEnded<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<Status>,
    pub(super) output: Text<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Quarantined<'a> {
    pub(super) path: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moved_to: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) detail: Option<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ProgramRecorded<'a> {
    pub(super) path: Cow<'a, str>,
    pub(super) sha256: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) was: Option<Cow<'a, str>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Commands<'a> {
    pub(super) commands: Vec<CommandInfo<'a>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct CommandInfo<'a> {
    pub(super) name: Text<'a>,
    pub(super) description: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hint: OptionalText<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Options<'a> {
    pub(super) options: Vec<OptionState<'a>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Choice<'a> {
    pub(super) id: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: OptionalText<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct OptionState<'a> {
    pub(super) id: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) category: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) value: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) choices: Vec<Choice<'a>>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) switch: bool,
}

#[derive(Serialize, Deserialize)]
pub(super) struct SessionInfo<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) title: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) updated_at: OptionalText<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Notice<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) severity: OptionalText<'a>,
    pub(super) title: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) description: OptionalText<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Compaction<'a> {
    pub(super) id: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) status: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: OptionalText<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct CompactionText<'a> {
    pub(super) id: Text<'a>,
    pub(super) delta: Text<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct SessionResumed<'a> {
    pub(super) how: Text<'a>,
    pub(super) replayed: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct SessionFresh<'a> {
    pub(super) instead_of: Text<'a>,
    pub(super) why: Text<'a>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(super) history_omitted: bool,
}

/// Serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde says so")]
fn is_usual(priority: &i8) -> bool {
    *priority == 0
}

/// A task's options beside its prompt. Not an event: the `spec` column of a task.
#[derive(Serialize, Deserialize)]
pub(super) struct Spec<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) pool: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) workspace: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) check: Option<Vec<Text<'a>>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) files: Vec<Text<'a>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) embed: Vec<Text<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) policy_layer: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "is_usual")]
    pub(super) priority: i8,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) after: Vec<Text<'a>>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct TerminalStarted<'a> {
    pub(super) terminal: Text<'a>,
    pub(super) argv: Vec<Text<'a>>,
    pub(super) cwd: Text<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct TerminalOutput<'a> {
    pub(super) terminal: Text<'a>,
    pub(super) delta: Text<'a>,
}

#[derive(Serialize, Deserialize)]
pub(super) struct TerminalEnded<'a> {
    pub(super) terminal: Text<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) status: Option<Status>,
    pub(super) bytes: u64,
    #[serde(default)]
    pub(super) omitted_bytes: u64,
}

#[derive(Serialize, Deserialize)]
pub(super) struct Egress<'a> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) host: OptionalText<'a>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) port: Option<u16>,
    pub(super) result: Text<'a>,
    pub(super) connections: u64,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) took_ms: u64,
}
