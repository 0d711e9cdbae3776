//! What a step of the permissions needs to know of the moment in which it happens: as the machine asks
//! it, and as the session answers.
//!
//! Must not change anything but the registry, where a stored answer is given once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;

use super::answers::ApprovalDetails;
use super::approvals::PendingRequest;
use super::decide::{self};
use super::evaluation::{self, DecisionInput};
use super::policy_snapshot::PolicySnapshot;
use crate::approval_registry::{KnownApproval, RememberedAnswer};
use crate::approval_rules::ApprovalRules;
use crate::clock;
use crate::session::Work;
use crate::session::turn::budget::BudgetCounters;
use crate::session::workspace::prepare::PreparedSession;
use crate::setup::{PoolShared, Shared};
use marshal_config::ShellCwd;
use marshal_model::{SpentBudget, UntrustedText};
use marshal_policy::{self as policy, Part, PolicyDecision, ResolvedPath};

/// What a step needs to know of the moment in which it happens.
pub(crate) trait Surroundings {
    fn now(&self) -> Instant;
    /// The time of day, in microseconds since the Unix epoch.
    fn now_us(&self) -> i64;
    /// Whether the journal is read-only.
    fn is_read_only(&self) -> bool;
    /// The approval settings of pool and policy.
    fn rules(&self) -> ApprovalRules;
    /// Whether there is an approver.
    fn has_approver(&self) -> bool;
    /// Whether a denial because nobody answers ends the turn.
    fn denial_ends_turn(&self) -> bool;
    fn spent_budget(&self) -> Option<SpentBudget>;
    /// Whether the delegate covers a request.
    fn is_delegated(&self, request: &PendingRequest) -> bool;
    /// What approvers are shown of a request. `parts` are of a later evaluation, if there was one.
    fn details(&self, request: &PendingRequest, parts: Option<&[Part]>) -> ApprovalDetails;
    /// Evaluates a request by the current policy; for a client request, also its path. `used` counts
    /// the turn's uses of rules, without those of the request.
    fn reevaluate(
        &self,
        request: &PendingRequest,
        used: &BTreeMap<String, u32>,
    ) -> (PolicyDecision, Option<String>);
    /// What the registry knows of a request. A stored answer is given once.
    fn look_up(&self, digest: &str, paths: &str) -> KnownApproval;
    /// Remembers an answer for the session; `false` if there is no room.
    fn remember(&self, digest: &str, answer: RememberedAnswer) -> bool;
    /// How many approvals of the pool are pending.
    fn pending_in_pool(&self) -> usize;
    /// Masks the secrets in a text.
    fn mask(&self, text: &str) -> String;
}

/// The surroundings of a step: the rest of the session.
pub(super) struct SessionSurroundings<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) pool: &'a PoolShared,
    pub(super) work: &'a Work,
    pub(super) prepared: Option<&'a PreparedSession>,
    pub(super) budget: &'a BudgetCounters,
    pub(super) mode: Option<String>,
    pub(super) is_conversation: bool,
}

impl SessionSurroundings<'_> {
    fn snapshot(&self) -> PolicySnapshot {
        PolicySnapshot::take(self.pool, self.work, self.mode.clone())
    }
}

impl Surroundings for SessionSurroundings<'_> {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn now_us(&self) -> i64 {
        clock::now_us()
    }

    fn is_read_only(&self) -> bool {
        self.shared.journal.health().borrow().is_read_only()
    }

    fn rules(&self) -> ApprovalRules {
        self.pool.approval_rules()
    }

    fn has_approver(&self) -> bool {
        (self.is_conversation || self.shared.has_approvers) && !self.rules().approvers.is_empty()
    }

    fn denial_ends_turn(&self) -> bool {
        decide::denial_ends_turn(self.pool, self.snapshot().policy())
    }

    fn spent_budget(&self) -> Option<SpentBudget> {
        self.budget.spent(self.snapshot().policy().budget())
    }

    fn is_delegated(&self, request: &PendingRequest) -> bool {
        let Some(delegate) = &self.pool.delegate else {
            return false;
        };
        // By the tool's name and by the request's class.
        let class = request.decided.class;
        if request.client_request.is_some() {
            return delegate.config.covers(&[class]);
        }
        let unmasked = request
            .decided
            .unmasked
            .as_deref()
            .unwrap_or(&request.permission_request);
        let extractor = &self.pool.extractor;
        let extracted = extractor.extract(unmasked.tool.raw(), &unmasked.input);
        delegate.config.covers(&[class, extracted.class()])
    }

    fn details(&self, request: &PendingRequest, parts: Option<&[Part]>) -> ApprovalDetails {
        let Some(prepared) = self.prepared else {
            return ApprovalDetails::default();
        };
        let of_request = request.decided.facts.as_ref();
        let parts = parts.or(of_request.map(|facts| &facts.parts[..]));
        let places = request.decided.from.possible_places(prepared);
        let mut paths: Vec<ResolvedPath> = Vec::new();
        // With a shell that keeps its directory: where it may be.
        if self.pool.config.options.shell_cwd != ShellCwd::Workspace {
            let known = places.iter().filter_map(|place| place.cwd);
            paths.extend(known.map(|cwd| ResolvedPath {
                word: UntrustedText::from("."),
                to: UntrustedText::new(cwd),
                inside: true,
            }));
        }
        // A client request names its path itself and is bound to it, so it needs no extraction.
        let extracted = request.client_request.is_none().then(|| {
            let asked = &request.permission_request;
            self.pool.extractor.extract(asked.tool.raw(), &asked.input)
        });
        if let Some(place) = places.first() {
            let parts = parts.unwrap_or_default();
            paths.extend(policy::resolve_paths(extracted.as_ref(), parts, place));
        }
        let as_json = |path: &ResolvedPath| json!({"word": path.word.raw(), "to": path.to.raw(), "inside": path.inside});
        ApprovalDetails {
            paths: serde_json::Value::Array(paths.iter().map(as_json).collect()).to_string(),
            // Two requests that differ only in their secrets look alike here.
            is_certain: request.decided.unmasked.is_none()
                && places.iter().all(|place| place.cwd.is_some()),
        }
    }

    fn reevaluate(
        &self,
        request: &PendingRequest,
        used: &BTreeMap<String, u32>,
    ) -> (PolicyDecision, Option<String>) {
        let Some(prepared) = self.prepared else {
            let why = "there is no workspace to resolve paths from";
            return (PolicyDecision::from_error("no_workspace", why), None);
        };
        let snapshot = self.snapshot();
        let Some(loaded) = snapshot.loaded() else {
            let why = "the policy layer of this session no longer exists";
            return (PolicyDecision::from_error("no_policy", why), None);
        };
        let occasion = snapshot.occasion(self.pool, used);
        let by = (&*loaded.policy, &occasion);
        let asked = &request.permission_request;
        let unmasked = request.decided.unmasked.as_deref();
        if let Some((client_request, _)) = &request.client_request {
            let is_masked = unmasked.is_some();
            return decide::evaluate_client_request(
                self.pool,
                by,
                prepared,
                client_request,
                asked,
                is_masked,
            );
        }
        let (input, unmasked) = (
            DecisionInput::from_request(asked),
            unmasked.map(DecisionInput::from_request),
        );
        let from = &request.decided.from;
        let result =
            evaluation::evaluate_request(self.pool, by, Some(prepared), from, input, unmasked);
        (result.judgement, None)
    }

    fn look_up(&self, digest: &str, paths: &str) -> KnownApproval {
        let (session, now_us) = (&self.work.session, clock::now_us());
        let approvals = &self.shared.approvals;
        approvals.look_up(session, digest, paths, now_us, &self.rules())
    }

    fn remember(&self, digest: &str, answer: RememberedAnswer) -> bool {
        let (session, digest) = (&self.work.session, digest.to_owned());
        self.shared
            .approvals
            .remember_answer(session, digest, answer)
    }

    fn pending_in_pool(&self) -> usize {
        self.shared.approvals.pending_count(&self.pool.config.name)
    }

    fn mask(&self, text: &str) -> String {
        self.pool.mask.load().mask_text(text).into_owned()
    }
}
