//! Judges what agents ask for: allow, ask a person, deny.
//!
//! Floor 1, pure: reads no file (a [`Resolver`] answers questions about links), knows no
//! protocol (an [`extract::Extractor`] turns a tool call into a [`Request`]) and no clock.
//!
//! A command text goes through two readers. The strict one recognises unambiguous bash; only
//! what it accepts can be allowed by a rule. The tolerant one finds commands wherever they hide;
//! rules that deny or ask see all of them. Rules never see the raw text, and the most severe
//! verdict wins: deny, then ask, then allow, whatever the order of rules.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::model::{Claimed, DecidedBy, Decision, OnTimeout};

mod arguments;
mod asking;
pub mod budget;
pub mod cases;
mod client;
mod command;
mod compile;
mod cwd;
pub mod delegation;
mod document;
mod error;
mod examples;
pub mod extract;
mod fact;
#[cfg(any(test, feature = "test-rules"))]
mod fault;
mod fed;
mod flow;
mod grammar;
mod index;
mod judge;
mod layers;
mod leads;
pub mod learn;
pub mod lint;
mod listing;
mod load;
mod looked;
mod mask;
mod mcp;
mod narrow;
mod occasion;
mod path;
mod pipes;
mod request;
mod rule;
mod scan;
mod sets;
mod shell;
mod skeleton;
mod spelling;
mod strict;
mod tools;
mod trees;
mod unfold;
mod url;
mod wrap;

pub use asking::Asking;
pub use client::announced;
pub use error::LoadError;
pub use layers::{Find, LayerText};
pub use leads::{Led, leads};
pub use listing::policy_names;
pub use looked::{Looked, Looking, Remembered};
pub use mask::Mask;
pub use narrow::check as check_layer;
pub use occasion::{DayTime, Occasion};
pub use path::{Look, NoLinks, Place, Resolver, Unseen};
pub use request::{Facts, Judgement, Moved, Part, Request, Target, ToolClass};
pub use sets::PatternError;

/// The policies that come with the program. `guard` is only for `extends`.
const BUILTIN: &[(&str, &str)] = &[
    ("ci", include_str!("builtin/ci.toml")),
    ("developer", include_str!("builtin/developer.toml")),
    ("guard", include_str!("builtin/guard.toml")),
    ("reviewer", include_str!("builtin/reviewer.toml")),
];

/// The text of a policy that comes with the program.
pub fn builtin_text(name: &str) -> Option<&'static str> {
    BUILTIN
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, text)| *text)
}

fn builtin_names() -> String {
    let names: Vec<_> = BUILTIN
        .iter()
        .map(|(name, _)| format!("`builtin:{name}`"))
        .collect();
    names.join(", ")
}

/// A loaded policy. Immutable; shared behind an `Arc`.
#[derive(Debug)]
pub struct Policy {
    name: String,
    default: Decision,
    unknown_tool: Decision,
    ask_as: Decision,
    max_bytes: usize,
    max_commands: usize,
    /// How long a decision may take, in milliseconds; its work is bounded accordingly.
    eval_ms: Option<usize>,
    asking: Asking,
    budget: budget::Budget,
    has_guard: bool,
    /// It is only tried; then what is done where no rule allows.
    dry: Option<Decision>,
    /// Rules that allow only so often in a turn.
    limited: Vec<(Arc<str>, u32)>,
    shell: load::Shell,
    secrets: usize,
    protected: usize,
    sets: Vec<sets::PathSet>,
    rules: Vec<rule::Rule>,
    index: index::Index,
}

impl Policy {
    /// The policy that comes with the program under this name, if there is one. `guard` has no
    /// default and is no policy by itself.
    pub fn builtin(name: &str) -> Option<Self> {
        let none = |name: &str| {
            Err(format!(
                "there is no file `{name}` beside a built-in policy"
            ))
        };
        Self::load(builtin_text(name)?, name, &none).ok()
    }

    /// Reads and checks a policy: keys, values, patterns, the rules' own examples. `name` is what
    /// errors call it; `find` gives the texts of files that it extends, by the name in
    /// `extends` (a relative path without `..`). A policy is loaded whole or not at all.
    pub fn load(text: &str, name: &str, find: &Find<'_>) -> Result<Self, LoadError> {
        Self::load_layers(&[LayerText { name, text, find }])
    }

    /// The same of several layers, the site's first, then the pool's, then the session's. Each
    /// adds its rules to those before; none takes any away: over all of them the most severe
    /// `default`, `unknown_tool` and `ask_as` hold, and of lists that widen what may be allowed
    /// only what all agree on. The policy's name is the last one's.
    pub fn load_layers(layers: &[LayerText<'_>]) -> Result<Self, LoadError> {
        load::load(layers)
    }

    /// Its own `name`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it extends `builtin:guard`, directly or not.
    pub fn has_guard(&self) -> bool {
        self.has_guard
    }

    /// Whether it is only tried (`enforce = false`): it allows nothing.
    pub fn is_dry(&self) -> bool {
        self.dry.is_some()
    }

    /// The same under another name: what reasons and records call it.
    #[must_use]
    pub fn renamed(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// How long it lets an ask wait, if it says so.
    pub fn ask_timeout(&self) -> Option<Duration> {
        self.asking.timeout
    }

    /// What follows when nobody answers, if it says so.
    pub fn on_timeout(&self) -> Option<OnTimeout> {
        self.asking.on_timeout
    }

    /// All that it demands of the asking.
    pub fn asking(&self) -> &Asking {
        &self.asking
    }

    /// How long a decision may take of its thread's time, if it says so. Its work is bounded by that
    /// beforehand; whoever measures denies what took longer all the same.
    pub fn eval_limit(&self) -> Option<Duration> {
        let ms = u64::try_from(self.eval_ms?).unwrap_or(u64::MAX);
        Some(Duration::from_millis(ms))
    }

    /// How much of what it allows is too much.
    pub fn budget(&self) -> &budget::Budget {
        &self.budget
    }

    /// The number of its rules, those of extended policies included.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// The ids of its rules, those of extended policies first.
    pub fn rule_ids(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| &*rule.id)
    }

    /// Judges a request. Never fails: what cannot be judged is denied. What the agent claims can
    /// only raise the severity.
    pub fn decide(&self, request: &Request, claimed: &Claimed, at: &Place<'_>) -> Judgement {
        self.decide_on(request, claimed, at, &Occasion::default())
    }

    /// The same on this occasion: what is not known of it counts against rules that allow.
    pub fn decide_on(
        &self,
        request: &Request,
        claimed: &Claimed,
        at: &Place<'_>,
        occasion: &Occasion<'_>,
    ) -> Judgement {
        // A bug in a reader must not become an answer, nor end the caller.
        catch_unwind(AssertUnwindSafe(|| {
            judge::judge(self, request, claimed, at, occasion)
        }))
        .unwrap_or_else(|_| {
            judge::error(
                "engine_error",
                "the policy engine failed on this request; it is denied",
            )
        })
    }
}

/// What a request does to the directory of a shell that keeps it, from the directory that `at`
/// has. What cannot be told leads away.
pub fn moved(request: &Request, at: &Place<'_>) -> Moved {
    catch_unwind(AssertUnwindSafe(|| cwd::moved(request, at))).unwrap_or(Moved::Away)
}

impl Judgement {
    /// The judgement of a request that never reached the rules: a deny with a name
    /// (`too_large`, `no_workspace`) and a reason.
    pub fn refused(name: &str, reason: &str) -> Self {
        judge::error(name, reason)
    }
}

impl DecidedBy {
    /// Who decided, for a judgement made by rules or by their absence.
    const fn of(named: bool) -> Self {
        if named { Self::Policy } else { Self::Default }
    }
}
