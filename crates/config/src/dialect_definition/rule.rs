//! Rules: the meaning of a message by its type and conditions, and the paths of its values.

use super::path::DataPath;
use super::template::{Placeholder, Template};
use marshal_model::{TurnOutcome, string_enum};

string_enum!(
    /// The event that a message produces.
    RuleEvent {
        /// The handshake is complete.
        Ready = "ready",
        /// The turn began.
        TurnStarted = "turn_started",
        /// A piece of the agent's text.
        Text = "text",
        /// A piece of the agent's thought.
        Thought = "thought",
        /// A tool call began.
        ToolStart = "tool_start",
        /// A tool call was updated.
        ToolUpdate = "tool_update",
        /// A tool call ended.
        ToolEnd = "tool_end",
        /// The agent asks for permission.
        Permission = "permission",
        /// The agent withdraws a permission request.
        Withdraw = "withdraw",
        /// Tokens that were used, to be added to those of the turn.
        Usage = "usage",
        /// Something about the agent changed.
        State = "state",
        /// The turn ended.
        End = "end",
        /// The agent reports an error.
        Error = "error",
        /// A slash command ended.
        SlashResult = "slash_result",
        /// A reply is sent.
        Send = "send",
        /// The session cannot be loaded again.
        NotResumed = "not_resumed",
        /// The agent cannot continue.
        Fault = "fault",
    }
);

string_enum!(
    /// A value that a message contains.
    Field {
        /// The id of a call, a request or a turn.
        Id = "id",
        /// A tool's name.
        Name = "name",
        /// The title of a call.
        Title = "title",
        /// The status of a call.
        Status = "status",
        /// The input of a call.
        Input = "input",
        /// The output of a call.
        Output = "output",
        /// That something failed, or why.
        Error = "error",
        /// How long it took.
        Seconds = "seconds",
        /// The same.
        Milliseconds = "milliseconds",
        /// A piece of text.
        Delta = "delta",
        /// The tool that permission is asked for.
        Tool = "tool",
        /// The call that permission is asked for.
        Call = "call",
        /// The kind of call, in the agent's words.
        Kind = "kind",
        /// The reason.
        Reason = "reason",
        /// The mode that the agent is in.
        ActiveMode = "active_mode",
        /// The mode in which the agent would not ask.
        RequiredMode = "required_mode",
        /// The protocol's version.
        Version = "version",
        /// The agent's own version.
        AgentVersion = "agent_version",
        /// Its own id of its session.
        Session = "session",
        /// Its model.
        Model = "model",
        /// Its mode.
        Mode = "mode",
        /// Its tools.
        Tools = "tools",
        /// The size of its context window.
        ContextWindow = "context_window",
        /// The used part of the context window, in percent.
        ContextPct = "context_pct",
        /// Input tokens.
        InputTokens = "input_tokens",
        /// Output tokens.
        OutputTokens = "output_tokens",
        /// Files that it changed.
        Files = "files",
        /// An error's code.
        Code = "code",
        /// An error's message.
        Message = "message",
        /// The origin of an error.
        Origin = "origin",
        /// A slash command's name.
        Command = "command",
        /// The output of a slash command.
        Text = "text",
        /// What it tells beside that.
        Data = "data",
        /// Whether it began a new session.
        Clear = "clear",
        /// Whether the agent ends.
        Exit = "exit",
    }
);

string_enum!(
    /// Whether an error ends the turn.
    EndsTurn {
        /// If it names the running one, or none while nothing came of the prompt yet.
        Rejected = "rejected",
        /// Always.
        Always = "always",
        /// Never.
        Never = "never",
    }
);

crate::table::keywords!(RuleEvent, EndsTurn);

/// A field that a message may have (`false`) or must have (`true`).
type FieldSpec = (Field, bool);

impl RuleEvent {
    /// The values that an event can have.
    pub(super) const fn fields(self) -> &'static [FieldSpec] {
        use Field as F;
        match self {
            Self::Ready => &[
                (F::Version, false),
                (F::AgentVersion, false),
                (F::Session, false),
                (F::Model, false),
                (F::Mode, false),
                (F::Tools, false),
                (F::ContextWindow, false),
            ],
            Self::TurnStarted | Self::Send => &[(F::Id, false)],
            Self::Text | Self::Thought => &[(F::Delta, true)],
            Self::ToolStart => &[(F::Id, false), (F::Name, true), (F::Input, false)],
            Self::ToolUpdate => &[
                (F::Id, true),
                (F::Name, false),
                (F::Title, false),
                (F::Status, false),
                (F::Input, false),
            ],
            Self::ToolEnd => &[
                (F::Id, false),
                (F::Output, false),
                (F::Error, false),
                (F::Seconds, false),
                (F::Milliseconds, false),
            ],
            Self::Permission => &[
                (F::Id, true),
                (F::Tool, true),
                (F::Input, false),
                (F::Call, false),
                (F::Title, false),
                (F::Kind, false),
                (F::Reason, false),
                (F::ActiveMode, false),
                (F::RequiredMode, false),
            ],
            Self::Withdraw => &[(F::Id, true)],
            Self::Usage => &[(F::InputTokens, false), (F::OutputTokens, false)],
            Self::State => &[
                (F::Model, false),
                (F::Mode, false),
                (F::ContextPct, false),
                (F::ContextWindow, false),
            ],
            Self::End => &[
                (F::Reason, false),
                (F::Error, false),
                (F::InputTokens, false),
                (F::OutputTokens, false),
                (F::Files, false),
            ],
            Self::Error => &[(F::Code, false), (F::Message, false), (F::Origin, false)],
            Self::SlashResult => &[
                (F::Command, false),
                (F::Text, false),
                (F::Data, false),
                (F::Clear, false),
                (F::Exit, false),
                (F::Model, false),
                (F::Mode, false),
                (F::ContextPct, false),
                (F::ContextWindow, false),
            ],
            Self::NotResumed | Self::Fault => &[(F::Error, false)],
        }
    }

    /// The placeholders of the template that such a rule has.
    pub(super) const fn placeholders(self) -> &'static [Placeholder] {
        match self {
            Self::Send => &[
                Placeholder::Id,
                Placeholder::Session,
                Placeholder::Workspace,
            ],
            _ => &[],
        }
    }
}

/// A value that a condition expects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expected {
    /// This text.
    Text(String),
    /// This integer.
    Integer(i64),
    /// This boolean.
    Boolean(bool),
}

/// A condition on a value of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The path of the value in the message.
    pub path: DataPath,
    /// One of these.
    pub one_of: Vec<Expected>,
}

/// The other settings of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventDetail {
    /// No other setting.
    Nothing,
    /// How the turn ended.
    Outcome {
        /// The outcome by the word of the reason.
        by_reason: Vec<(String, TurnOutcome)>,
        /// The outcome for any other reason, or for none.
        otherwise: TurnOutcome,
    },
    /// Whether an error ends the turn.
    EndsTurn(EndsTurn),
    /// The reply.
    Send(Template),
}

/// What messages of some types mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The types.
    pub types: Vec<String>,
    /// Conditions that must all be true.
    pub when: Vec<Condition>,
    /// Conditions that must all be false.
    pub unless: Vec<Condition>,
    /// The event that they produce.
    pub event: RuleEvent,
    /// The paths of its values, and whether each is required.
    pub fields: Vec<(Field, bool, DataPath)>,
    /// The other settings of the event.
    pub detail: EventDetail,
}

impl Rule {
    /// The path of a value.
    #[must_use]
    pub fn path(&self, field: Field) -> Option<&DataPath> {
        let mut fields = self.fields.iter();
        fields.find_map(|(own, _, path)| (*own == field).then_some(path))
    }
}
