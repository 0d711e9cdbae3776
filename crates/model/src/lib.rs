//! The common types of the program: ids, events, permission requests, turns, exits, tasks, foreign
//! text.
//!
//! Owns the vocabulary of the program (one spelling for metrics, JSON, tables and the database).
//! Must not know IO, clocks, protocols or serialisation formats.

mod agent_data;
pub mod budget;
pub mod canonical;
pub mod chat;
pub mod client;
pub mod egress;
pub mod event;
pub mod exit;
pub mod ids;
pub mod limits;
mod notification;
pub mod permission;
mod persist;
pub mod role;
pub mod sandbox;
mod sandbox_facts;
pub mod slot;
pub mod task;
pub mod tool;
pub mod unasked_calls;
pub mod untrusted;

pub use agent_data::{
    ChoiceInfo, CommandInfo, Cost, OptionState, PlanEntry, Setting, SettingValue, Usage,
};
pub use budget::{Amount, BudgetAction, BudgetLimits, BudgetName, SpentBudget};
pub use canonical::{CanonicalizeError, canonicalize};
pub use chat::{
    ChatBounds, ChatMode, ChatPhase, ChatProgress, ChatSettings, ItemState, ReviewState, TurnState,
    WorkEvent,
};
pub use client::{
    ClientCall, ClientCapabilities, ClientError, ClientErrorKind, ClientMethod, ClientOutput,
    ClientRequest, ClientResult, TerminalExit, TerminalSpec,
};
pub use egress::EgressResult;
pub use event::{AgentInfo, ErrorOrigin, Event, EventKind, StampedEvent};
pub use exit::{ExitClass, ExitStatus, SandboxStage};
pub use ids::{
    EventId, IdError, PermissionRequestId, PoolName, RoleName, RunId, SessionId, SlotId, TaskId,
    TemplateName, TurnId, WorkspaceName,
};
pub use notification::NotificationKind;
pub use permission::{
    AgentClaims, ApprovalState, DecidedBy, Decision, DelegateError, OnTimeout, PermissionRequest,
    PermissionRequestBounds, PermissionRequestKey, PermissionResponse, RememberScope, ToolClass,
    Verdict,
};
pub use role::Role;
pub use sandbox::{LimitBackend, ResourceLimits, SandboxGap};
pub use sandbox_facts::{SandboxFact, SandboxFacts};
pub use slot::{PoolPhase, SlotState};
pub use task::{
    INTERRUPTED_BY_STOP, PROMPT_NOT_WRITTEN, STOPPED_BY_PERSON, TaskOutcome, TaskRef, TaskSpec,
    TurnOutcome,
};
pub use tool::{
    AGREED_WITHOUT_COMMENT, ENGINE_SERVER, EditError, EngineCall, EngineOutput, EngineRequest,
    EngineResult, EngineTool, FileVersion, StepStatus, TextEdit,
};
pub use unasked_calls::UnaskedCalls;
pub use untrusted::UntrustedText;

/// Declares an enum of fixed words, with the machine-readable word of each member and a list of
/// all.
#[macro_export]
macro_rules! string_enum {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every member, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word that metrics, JSON, tables and the database use.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The member that `word` names, if any does.
            #[must_use]
            pub fn parse(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
