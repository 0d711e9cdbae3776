//! Evaluates what agents request: allow, ask a person, or deny.
//!
//! Layer 1, pure: reads no file (a [`Resolver`] answers questions about links), knows no protocol
//! (an [`extract::Extractor`] turns a tool call into a [`Request`]) and no clock.
//!
//! A command text goes through two readers. The strict one recognises unambiguous bash; only
//! what it accepts can be allowed by a rule. The tolerant one finds commands wherever they hide;
//! rules that deny or ask see all of them. Rules never see the raw text, and the most severe
//! verdict wins: deny, then ask, then allow, whatever the order of rules.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use marshal_model::{AgentClaims, DecidedBy, Decision, OnTimeout, SandboxFact};

mod approval_settings;
mod arguments;
pub mod budget;
mod build_scripts;
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
mod load;
mod mask;
mod mcp;
pub mod outside;
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
mod text_script;
mod tools;
mod tree_effects;
mod url;
mod without_effect;
mod wrappers;

pub use approval_settings::ApprovalSettings;
pub use build_scripts::is_build_script;
pub use client::allow_announced_tool;
pub use error::{EntryError, LoadError, RuleError};
pub use evaluation_context::{EvaluationContext, TimeOfDay};
pub use fs_observations::{FsObservations, RecordingResolver, ReplayResolver};
pub use layers::{LayerText, LoadExtended};
pub use mask::Mask;
pub use path::{FsContext, FsEntry, NoLinks, OpaqueFs, Resolver};
pub use request::{CwdChange, Facts, Part, PolicyDecision, ReadTarget, Request, ToolClass};
pub use resolved_paths::{ResolvedPath, resolve_paths};
pub use session_layer::check_session_layer as check_layer;
pub use sets::PatternError;
pub use url::UrlError;

/// The built-in policies. `guard` and `secrets` are only for `extends`.
const BUILTIN: &[(&str, &str)] = &[
    ("autonomous", include_str!("builtin/autonomous.toml")),
    ("ci", include_str!("builtin/ci.toml")),
    ("developer", include_str!("builtin/developer.toml")),
    ("guard", include_str!("builtin/guard.toml")),
    ("reviewer", include_str!("builtin/reviewer.toml")),
    ("secrets", include_str!("builtin/secrets.toml")),
];

/// The text of a built-in policy; `None` if there is none of this name.
pub fn builtin_text(name: &str) -> Option<&'static str> {
    BUILTIN
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, text)| *text)
}

/// The names of the built-in policies that can stand alone, and not only be extended.
pub fn policy_names() -> impl Iterator<Item = &'static str> {
    let names = BUILTIN.iter().map(|(name, _)| *name);
    names.filter(|name| !["guard", "secrets"].contains(name))
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
    /// The time limit of a decision in milliseconds; its work is bounded accordingly.
    eval_ms: Option<usize>,
    approval: ApprovalSettings,
    budget: budget::Budget,
    has_guard: bool,
    /// The settings of its own text that have no effect, a sentence each.
    without_effect: Vec<String>,
    /// The facts of the sandbox without which it denies everything.
    required_sandbox: Vec<SandboxFact>,
    /// The decision of a dry run where no rule allows; `None` if the policy is enforced.
    dry_run_default: Option<Decision>,
    /// Rules with a limit per turn.
    per_turn_limits: Vec<(Arc<str>, u32)>,
    shell: load::ShellSettings,
    secrets_set: usize,
    protected_set: usize,
    sets: Vec<sets::PathSet>,
    rules: Vec<rule::Rule>,
    index: index::Index,
}

impl Policy {
    /// The built-in policy of this name, if there is one. `guard` has no default and is not a
    /// policy by itself.
    pub fn builtin(name: &str) -> Option<Self> {
        let none = |name: &str| {
            Err(format!(
                "there is no file `{name}` beside a built-in policy"
            ))
        };
        Self::load(builtin_text(name)?, name, &none).ok()
    }

    /// Reads and checks a policy: keys, values, patterns, the rules' own examples. `name` is its
    /// name in errors. `find` returns the texts of files that it extends, by the name in `extends`
    /// (a relative path without `..`). A policy is loaded whole or not at all.
    pub fn load(text: &str, name: &str, find: &LoadExtended<'_>) -> Result<Self, LoadError> {
        Self::load_layers(&[LayerText {
            name,
            text,
            load_extended: find,
        }])
    }

    /// The same for several layers: the site's first, then the pool's, then the session's. Each
    /// layer adds its rules to the earlier ones; none removes any. Over all layers the most severe
    /// `default`, `unknown_tool` and `ask_as` apply. Of lists that widen what may be allowed, only
    /// the entries that all layers agree on apply. The policy has the name of the last layer.
    pub fn load_layers(layers: &[LayerText<'_>]) -> Result<Self, LoadError> {
        load::load(layers)
    }

    /// The settings of its text that have no effect beside those of the policies that it extends, a
    /// sentence each; none of a policy in layers.
    pub fn settings_without_effect(&self) -> &[String] {
        &self.without_effect
    }

    /// The policy's `name`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it extends `builtin:guard`, directly or not, or requires a sandbox that makes up for it
    /// and extends `builtin:secrets`.
    pub fn has_guard(&self) -> bool {
        self.has_guard
    }

    /// Whether a file of the workspace is in the set `protected`, by its path below the workspace. A
    /// link is also if it leads to where the set has names: `.github` for `.github/workflows/`.
    pub fn is_protected(&self, path: &str, is_link: bool) -> bool {
        let has = |reach| self.has_path(self.protected_set, path, reach);
        has(sets::SetReach::SelfAndBelow) || is_link && has(sets::SetReach::Parents)
    }

    /// Whether a file of the workspace is in the set `secrets`, by its path below the workspace.
    pub fn is_secret(&self, path: &str) -> bool {
        self.has_path(self.secrets_set, path, sets::SetReach::SelfAndBelow)
    }

    fn has_path(&self, set: usize, path: &str, reach: sets::SetReach) -> bool {
        let at = FsContext {
            workspace: "/workspace",
            home: "/home/agent",
            cwd: None,
            resolver: &NoLinks,
        };
        self.sets[set].contains(&format!("/workspace/{path}"), &at, reach)
    }

    /// The facts of the sandbox without which it denies everything.
    pub fn required_sandbox(&self) -> &[SandboxFact] {
        &self.required_sandbox
    }

    /// Whether a decision can depend on facts of a sandbox.
    pub fn relies_on_sandbox(&self) -> bool {
        let mut conditions = self.rules.iter().filter_map(|rule| rule.when.as_ref());
        !self.required_sandbox.is_empty() || conditions.any(|when| when.relies_on_sandbox())
    }

    /// Whether it is a dry run (`enforce = false`): then it allows nothing.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run_default.is_some()
    }

    /// The same policy under another name, for reasons and records.
    #[must_use]
    pub fn with_name(self, name: String) -> Self {
        Self { name, ..self }
    }

    /// How long its approvals may be pending; `None` if it does not say.
    pub fn approval_timeout(&self) -> Option<Duration> {
        self.approval.timeout
    }

    /// The decision when nobody answers an approval in time; `None` if it does not say.
    pub fn on_timeout(&self) -> Option<OnTimeout> {
        self.approval.on_timeout
    }

    /// All its approval settings.
    pub fn approval_settings(&self) -> &ApprovalSettings {
        &self.approval
    }

    /// The time limit of a decision in thread time; `None` if there is none. The work is bounded by
    /// it beforehand. The caller also measures, and denies a decision that took longer.
    pub fn eval_limit(&self) -> Option<Duration> {
        let ms = u64::try_from(self.eval_ms?).unwrap_or(u64::MAX);
        Some(Duration::from_millis(ms))
    }

    /// The limits on what it allows.
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

    /// Evaluates a request. Never fails: a request that cannot be evaluated is denied. The agent's
    /// claims can only raise the severity.
    pub fn decide(
        &self,
        request: &Request,
        claimed: &AgentClaims,
        at: &FsContext<'_>,
    ) -> PolicyDecision {
        self.decide_in_context(request, claimed, at, &EvaluationContext::default())
    }

    /// The same in this context: what is unknown of it counts against rules that allow.
    pub fn decide_in_context(
        &self,
        request: &Request,
        claimed: &AgentClaims,
        at: &FsContext<'_>,
        occasion: &EvaluationContext<'_>,
    ) -> PolicyDecision {
        // A bug in a reader must neither become an answer nor end the caller.
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

/// A policy of the built-in guard that allows everything else: for changes of people and of files that
/// leave a sandbox.
pub fn guard() -> &'static Policy {
    static GUARD: LazyLock<Policy> = LazyLock::new(|| {
        let text =
            "schema = 1\nname = \"guard\"\nextends = [\"builtin:guard\"]\ndefault = \"allow\"\n";
        let none = |name: &str| Err(format!("there is no file `{name}` beside it"));
        Policy::load(text, "guard", &none).unwrap_or_else(|error| unreachable!("built in: {error}"))
    });
    &GUARD
}

/// The effect of a request on the directory of a shell that keeps it, from the directory in `at`.
/// An unclear effect counts as leading away.
pub fn resolve_cwd_change(request: &Request, at: &FsContext<'_>) -> CwdChange {
    catch_unwind(AssertUnwindSafe(|| cwd::resolve_cwd_change(request, at)))
        .unwrap_or(CwdChange::Unknown)
}

impl PolicyDecision {
    /// The decision about a request that never reached the rules: a deny with a name (`too_large`,
    /// `no_workspace`) and a reason.
    pub fn from_error(name: &str, reason: &str) -> Self {
        evaluate::error_decision(name, reason)
    }
}

/// Who decided: rules, or the default in their absence.
const fn decided_by(has_rule: bool) -> DecidedBy {
    if has_rule {
        DecidedBy::Policy
    } else {
        DecidedBy::Default
    }
}
