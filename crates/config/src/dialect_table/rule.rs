//! What a message means: of which type it is, on which conditions, and which of its values tell what.

use super::path::DataPath;
use super::template::{Placeholder, Template};
use marshal_model::{TurnOutcome, string_enum};

string_enum!(
    /// What a message brings about.
    RuleEvent {
        /// The handshake is complete.
        Ready = "ready",
        /// The turn began.
        TurnStarted = "turn_started",
        /// A piece of the answer.
        Text = "text",
        /// A piece of the agent's thought.
        Thought = "thought",
        /// A tool call began.
        ToolStart = "tool_start",
        /// More is known of a tool call.
        ToolUpdate = "tool_update",
        /// A tool call ended.
        ToolEnd = "tool_end",
        /// The agent asks for permission.
        Permission = "permission",
        /// The agent takes a request back.
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
        /// Something is said in return.
        Send = "send",
        /// The session cannot be loaded again.
        NotResumed = "not_resumed",
        /// The agent cannot go on.
        Fault = "fault",
    }
);

string_enum!(
    /// A value that a message tells.
    Field {
        /// A call, a request or a turn.
        Id = "id",
        /// A tool's name.
        Name = "name",
        /// Words for a call.
        Title = "title",
        /// How far a call is.
        Status = "status",
        /// What a call is given.
        Input = "input",
        /// What a call came to.
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
        /// What kind of call it is, in the agent's words.
        Kind = "kind",
        /// Why.
        Reason = "reason",
        /// The mode that the agent is in.
        ActiveMode = "active_mode",
        /// The mode in which it would not ask.
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
        /// How full that is, in percent.
        ContextPct = "context_pct",
        /// Tokens read.
        InputTokens = "input_tokens",
        /// Tokens written.
        OutputTokens = "output_tokens",
        /// Files that it changed.
        Files = "files",
        /// An error's code.
        Code = "code",
        /// An error's words.
        Message = "message",
        /// Where an error is from.
        Origin = "origin",
        /// A slash command's name.
        Command = "command",
        /// What it says.
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

crate::table::word!(RuleEvent, EndsTurn);

/// A field that a message may have (`false`) or must have (`true`).
type FieldSpec = (Field, bool);

impl RuleEvent {
    /// Which values tell about it.
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

    /// Holes of the template that such a rule has.
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
    /// This truth value.
    Boolean(bool),
}

/// What must stand somewhere in a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Where.
    pub path: DataPath,
    /// One of these.
    pub one_of: Vec<Expected>,
}

/// What else an event has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventDetail {
    /// Nothing.
    Nothing,
    /// How the turn ended.
    Outcome {
        /// By the reason's word.
        by_reason: Vec<(String, TurnOutcome)>,
        /// Else, and where no reason is given.
        otherwise: TurnOutcome,
    },
    /// Whether an error ends the turn.
    EndsTurn(EndsTurn),
    /// What is said in return.
    Send(Template),
}

/// What messages of some types mean.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// The types.
    pub types: Vec<String>,
    /// All of these must hold.
    pub when: Vec<Condition>,
    /// None of these may hold.
    pub unless: Vec<Condition>,
    /// What they bring about.
    pub event: RuleEvent,
    /// Where its values stand, and whether it is nothing without them.
    pub fields: Vec<(Field, bool, DataPath)>,
    /// What else.
    pub detail: EventDetail,
}

impl Rule {
    /// Where a value stands.
    #[must_use]
    pub fn path(&self, field: Field) -> Option<&DataPath> {
        let mut fields = self.fields.iter();
        fields.find_map(|(own, _, path)| (*own == field).then_some(path))
    }
}
