//! Words that everybody speaks: ids, events, asks, turns, exits, tasks, foreign text.
//!
//! Floor 0. Owns the vocabulary of the program (one spelling for metrics, JSON, tables and the
//! database) and must know nothing of IO, clocks, protocols or serialisation formats.

pub mod ask;
pub mod budget;
pub mod canonical;
pub mod chat;
pub mod client;
pub mod egress;
pub mod event;
pub mod exit;
pub mod foreign;
pub mod group;
pub mod ids;
mod particulars;
pub mod question;
pub mod role;
pub mod setting;
pub mod slot;
pub mod task;
pub mod told;
pub mod tool;
pub mod turn;
pub mod weakness;

pub use ask::{
    Answer, Ask, AskBounds, AskKey, Claimed, DecidedBy, Decision, DelegateError, OnTimeout,
    ToolClass, Verdict,
};
pub use budget::{Amount, BudgetName, Most, Spent, Then};
pub use canonical::{NotCanonical, canonical};
pub use chat::{
    ChatBounds, ChatMode, ChatPhase, ChatProgress, ChatSettings, ItemState, ReviewState, TurnState,
    Work,
};
pub use client::{
    ClientAnswer, ClientCall, ClientDone, ClientError, ClientFault, ClientMethod, ClientOffers,
    ClientWish, TerminalExit, TerminalSpec,
};
pub use egress::EgressResult;
pub use event::{AgentInfo, Event, EventKind, Origin, Stamped};
pub use exit::{ExitClass, ExitStatus, WallStage};
pub use foreign::Foreign;
pub use group::{GroupLimits, LimitBackend};
pub use ids::{
    AskId, EventId, IdError, PoolName, RoleName, RunId, SessionId, SlotId, TaskId, TemplateName,
    TurnId, WorkspaceName,
};
pub use particulars::{CommandInfo, Cost, OptionState, PlanEntry, Usage};
pub use question::{QuestionState, Remember};
pub use role::Role;
pub use setting::{ChoiceInfo, Setting, SettingValue};
pub use slot::{PoolFlow, SlotState};
pub use task::{TaskOutcome, TaskRef, TaskSpec};
pub use told::ToldKind;
pub use tool::{
    ENGINE_SERVER, EditError, EngineAnswer, EngineCall, EngineDone, EngineTool, EngineWish,
    FileVersion, StepStatus, TextEdit,
};
pub use turn::{STOPPED, TurnOutcome, UNWRITTEN};
pub use weakness::Weakness;

/// Declares a closed set of words: the enum, its words for machines and the list of all of them.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every member, in the order of declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word that metrics, JSON, tables and the database use.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            /// The member that `word` names, if any does.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }
    };
}
pub(crate) use words;
