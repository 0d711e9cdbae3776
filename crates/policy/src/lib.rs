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

use marshal_model::{AgentClaims, DecidedBy, Decision, OnTimeout};

mod approval_settings;
mod arguments;
pub mod budget;
pub mod cases;
mod client;
mod command;
mod compile;
mod cwd;
pub mod delegation;
mod document;
mod error;
mod evaluate;
mod evaluation_context;
mod examples;
pub mod extract;
mod fact;
#[cfg(any(test, feature = "test-rules"))]
mod fault;
mod flow;
mod fs_observations;
mod glob_expansion;
mod grammar;
mod index;
mod layers;
pub mod learn;
pub mod lint;
mod listing;
mod load;
mod mask;
mod mcp;
mod path;
mod pipes;
mod request;
mod resolved_paths;
mod rule;
mod scan;
mod session_layer;
mod sets;
mod shell;
mod skeleton;
mod spelling;
mod stdin_flow;
mod strict;
mod tools;
mod tree_effects;
mod url;
mod wrappers;

pub use approval_settings::ApprovalSettings;
pub use client::allow_announced_tool;
pub use error::LoadError;
pub use evaluation_context::{EvaluationContext, TimeOfDay};
pub use fs_observations::{FsObservations, RecordingResolver, ReplayResolver};
pub use layers::{LayerText, LoadExtended};
pub use listing::policy_names;
pub use mask::Mask;
pub use path::{FsContext, FsEntry, NoLinks, OpaqueFs, Resolver};
pub use request::{CwdChange, Facts, Part, PolicyDecision, ReadTarget, Request, ToolClass};
pub use resolved_paths::{ResolvedPath, resolve_paths};
pub use session_layer::check_session_layer as check_layer;
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
    approval: ApprovalSettings,
    budget: budget::Budget,
    has_guard: bool,
    /// It is only tried; then what is done where no rule allows.
    dry_run_default: Option<Decision>,
    /// Rules that allow only so often in a turn.
    per_turn_limits: Vec<(Arc<str>, u32)>,
    shell: load::ShellSettings,
    secrets_set: usize,
    protected_set: usize,
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
    pub fn load(text: &str, name: &str, find: &LoadExtended<'_>) -> Result<Self, LoadError> {
        Self::load_layers(&[LayerText {
            name,
            text,
            load_extended: find,
        }])
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
    pub fn is_dry_run(&self) -> bool {
        self.dry_run_default.is_some()
    }

    /// The same under another name: what reasons and records call it.
    #[must_use]
    pub fn with_name(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// How long it lets a permission request wait, if it says so.
    pub fn approval_timeout(&self) -> Option<Duration> {
        self.approval.timeout
    }

    /// What follows when nobody answers, if it says so.
    pub fn on_timeout(&self) -> Option<OnTimeout> {
        self.approval.on_timeout
    }

    /// All that it demands of the asking.
    pub fn approval_settings(&self) -> &ApprovalSettings {
        &self.approval
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
    pub fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// The ids of its rules, those of extended policies first.
    pub fn rule_ids(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| &*rule.id)
    }

    /// Judges a request. Never fails: what cannot be judged is denied. What the agent claims can
    /// only raise the severity.
    pub fn decide(
        &self,
        request: &Request,
        claimed: &AgentClaims,
        at: &FsContext<'_>,
    ) -> PolicyDecision {
        self.decide_in_context(request, claimed, at, &EvaluationContext::default())
    }

    /// The same on this occasion: what is not known of it counts against rules that allow.
    pub fn decide_in_context(
        &self,
        request: &Request,
        claimed: &AgentClaims,
        at: &FsContext<'_>,
        occasion: &EvaluationContext<'_>,
    ) -> PolicyDecision {
        // A bug in a reader must not become an answer, nor end the caller.
        catch_unwind(AssertUnwindSafe(|| {
            evaluate::evaluate(self, request, claimed, at, occasion)
        }))
        .unwrap_or_else(|_| {
            evaluate::error_decision(
                "engine_error",
                "the policy engine failed on this request; it is denied",
            )
        })
    }
}

/// What a request does to the directory of a shell that keeps it, from the directory that `at`
/// has. What cannot be told leads away.
pub fn resolve_cwd_change(request: &Request, at: &FsContext<'_>) -> CwdChange {
    catch_unwind(AssertUnwindSafe(|| cwd::resolve_cwd_change(request, at)))
        .unwrap_or(CwdChange::Unknown)
}

impl PolicyDecision {
    /// The judgement of a request that never reached the rules: a deny with a name
    /// (`too_large`, `no_workspace`) and a reason.
    pub fn from_error(name: &str, reason: &str) -> Self {
        evaluate::error_decision(name, reason)
    }
}

/// Who decided, for a decision made by rules or by their absence.
const fn decided_by(has_rule: bool) -> DecidedBy {
    if has_rule {
        DecidedBy::Policy
    } else {
        DecidedBy::Default
    }
}
