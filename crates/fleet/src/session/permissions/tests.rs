//! The permissions as a table: the steps, and what follows from them, one line each.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::answers::ApprovalDetails;
use super::approvals::{ApprovalEnd, PendingRequest};
use super::decide::DecidedRequest;
use super::shell_directory::ShellDirectory;
use super::{Effect, PermissionSettings, Permissions, Surroundings};
use crate::approval_registry::{KnownApproval, RememberedAnswer};
use crate::approval_rules::ApprovalRules;
use crate::handle::approvals::{AnswerError, AnswerReceipt, AnswerReply};
use marshal_config::{Approver, ShellCwd};
use marshal_journal::{ApprovalAnswer, ApprovalChange, PolicyEvaluation};
use marshal_model::{
    AgentClaims, BudgetAction, BudgetName, DecidedBy, Decision, DelegateError, PermissionRequest,
    PermissionRequestId, PermissionRequestKey, PoolName, RememberScope, SessionId, SpentBudget,
    ToolClass, Verdict,
};
use marshal_policy::delegation::DelegateAnswer;
use marshal_policy::{CwdChange, Facts, Part, PolicyDecision};

/// Surroundings that a table sets.
struct Moment {
    now_us: i64,
    has_approver: bool,
    is_read_only: bool,
    spent: Option<SpentBudget>,
    /// Whether the delegate covers every request.
    is_delegated: bool,
    /// What the policy decides now.
    policy: Decision,
    /// Where the paths of a request lead now.
    paths: &'static str,
    is_certain: bool,
    /// What the registry knows, given once.
    known: RefCell<Option<KnownApproval>>,
    has_room: bool,
    pending_in_pool: usize,
}

const POOL_MAX: usize = 8;
/// The pool's `approval.timeout`.
const TIMEOUT: Duration = Duration::from_secs(60);

impl Default for Moment {
    fn default() -> Self {
        Self {
            now_us: 0,
            has_approver: true,
            is_read_only: false,
            spent: None,
            is_delegated: false,
            policy: Decision::Ask,
            paths: "[]",
            is_certain: true,
            known: RefCell::new(None),
            has_room: true,
            pending_in_pool: 0,
        }
    }
}

impl Surroundings for Moment {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn now_us(&self) -> i64 {
        self.now_us
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn rules(&self) -> ApprovalRules {
        ApprovalRules {
            approvers: vec![Approver::Owner],
            remember: RememberScope::Session,
            max_pending: POOL_MAX,
        }
    }

    fn has_approver(&self) -> bool {
        self.has_approver
    }

    fn denial_ends_turn(&self) -> bool {
        true
    }

    fn spent_budget(&self) -> Option<SpentBudget> {
        self.spent
    }

    fn is_delegated(&self, _: &PendingRequest) -> bool {
        self.is_delegated
    }

    fn details(&self, _: &PendingRequest, _: Option<&[Part]>) -> ApprovalDetails {
        ApprovalDetails {
            paths: self.paths.to_owned(),
            is_certain: self.is_certain,
        }
    }

    fn reevaluate(
        &self,
        _: &PendingRequest,
        _: &BTreeMap<String, u32>,
    ) -> (PolicyDecision, Option<String>) {
        let mut now = PolicyDecision::from_error("now", "the policy of now");
        now.decision = self.policy;
        now.decided_by = DecidedBy::Policy;
        (now, None)
    }

    fn look_up(&self, _: &str, _: &str) -> KnownApproval {
        self.known.take().unwrap_or(KnownApproval::None)
    }

    fn remember(&self, _: &str, _: RememberedAnswer) -> bool {
        self.has_room
    }

    fn pending_in_pool(&self) -> usize {
        self.pending_in_pool
    }

    fn mask(&self, text: &str) -> String {
        text.replace("secret", "***")
    }
}

fn id(text: &str) -> PermissionRequestId {
    PermissionRequestId::new(text).expect("a safe token")
}

fn key(text: &str) -> PermissionRequestKey {
    PermissionRequestKey {
        id: text.to_owned(),
        serial: 1,
    }
}

/// A request of this id that the policy decided so.
fn request(of: &str, decision: Decision) -> PendingRequest {
    let permission_request = PermissionRequest {
        key: key(of),
        tool_id: None,
        tool: "bash".into(),
        input: RawValue::from_string("{}".to_owned()).expect("JSON"),
        claims: AgentClaims::default(),
    };
    let decided = DecidedRequest {
        policy: decision,
        verdict: Verdict {
            request: id(of),
            decision,
            decided_by: DecidedBy::Policy,
            rules: vec!["r".to_owned()],
            reason: "why".to_owned(),
        },
        class: ToolClass::Shell,
        deny_turn: false,
        moved: CwdChange::Unchanged,
        judged: PolicyEvaluation {
            policy: "p".to_owned(),
            policy_sha256: String::new(),
            facts: "{}".to_owned(),
            eval_us: 0,
        },
        ask_timeout: None,
        spent: None,
        facts: Some(Facts::default()),
        from: ShellDirectory::default(),
        unmasked: None,
        uses: Vec::new(),
    };
    PendingRequest::new(permission_request, decided, Instant::now())
}

fn spent() -> SpentBudget {
    SpentBudget {
        budget: BudgetName::AllowsPerTurn,
        used: 1,
        limit: 1,
        action: BudgetAction::Ask,
    }
}

fn answer_of(decision: Decision, remember: RememberScope) -> ApprovalAnswer {
    ApprovalAnswer {
        decision,
        approver: "uid 0".to_owned(),
        comment: None,
        remember,
    }
}

type Reply = oneshot::Receiver<Result<AnswerReceipt, AnswerError>>;

/// The permissions under test, and what has followed so far.
struct Table {
    permissions: Permissions,
    at: Moment,
    replies: Vec<(String, Reply)>,
    lines: Vec<String>,
}

impl Table {
    fn new(at: Moment) -> Self {
        let settings = PermissionSettings {
            session: SessionId::new("s").expect("a safe token"),
            pool: PoolName::new("pool").expect("a name"),
            timeout: TIMEOUT,
            agent_waits: None,
            shell_cwd: ShellCwd::Workspace,
            delegate: Some("own".to_owned()),
        };
        Self {
            permissions: Permissions::new(settings),
            at,
            replies: Vec::new(),
            lines: Vec::new(),
        }
    }

    fn step(&mut self, step: impl FnOnce(&mut Permissions, &dyn Surroundings)) -> &mut Self {
        step(&mut self.permissions, &self.at);
        for effect in self.permissions.take_effects() {
            match effect {
                Effect::Reply(reply, result) => reply.send(result),
                effect => self.lines.push(line(effect)),
            }
        }
        self.replies
            .retain_mut(|(who, reply)| match reply.try_recv() {
                Ok(result) => {
                    self.lines.push(format!("{who} hears {}", outcome(&result)));
                    false
                }
                Err(_) => true,
            });
        self
    }

    /// Changes the surroundings of the later steps.
    fn then(&mut self, change: impl FnOnce(&mut Moment)) -> &mut Self {
        change(&mut self.at);
        self
    }

    fn decided(&mut self, of: &str, decision: Decision) -> &mut Self {
        self.step(|permissions, at| permissions.decided(request(of, decision), at))
    }

    /// A request that must be approved, and whose approval is durable.
    fn published(&mut self, of: &str) -> &mut Self {
        self.decided(of, Decision::Ask).step(|permissions, at| {
            permissions.publish(&id(of), at);
        })
    }

    fn answer(&mut self, of: &str, who: &str, answer: ApprovalAnswer) -> &mut Self {
        let (reply, receiver) = AnswerReply::new(id(of));
        self.replies.push((who.to_owned(), receiver));
        self.step(|permissions, at| permissions.answer(&id(of), answer, Some(reply), at))
    }

    fn allow(&mut self, of: &str) -> &mut Self {
        self.answer(of, "ann", answer_of(Decision::Allow, RememberScope::Never))
    }

    fn refuse(&mut self, of: &str) -> &mut Self {
        self.answer(of, "bob", answer_of(Decision::Deny, RememberScope::Never))
    }

    fn delegate(&mut self, of: &str, answer: Result<Decision, DelegateError>) -> &mut Self {
        self.step(|permissions, at| {
            permissions.delegate_answered(&id(of), delegate_answer(answer), at);
        })
    }

    fn confirmed(&mut self, of: &str, answer: Result<Decision, DelegateError>) -> &mut Self {
        self.step(|permissions, at| {
            permissions.delegate_confirmed(&id(of), delegate_answer(answer), at);
        })
    }

    /// Compares what has followed since the last call.
    #[track_caller]
    fn expect(&mut self, lines: &[&str]) -> &mut Self {
        assert_eq!(self.lines, lines);
        self.lines.clear();
        self
    }
}

fn delegate_answer(
    answer: Result<Decision, DelegateError>,
) -> Result<DelegateAnswer, DelegateError> {
    answer.map(|decision| DelegateAnswer {
        decision,
        reason: "a secret reason".to_owned(),
    })
}

fn line(effect: Effect) -> String {
    match effect {
        Effect::Record { id, .. } => format!("record {id}"),
        Effect::Answer(request) => {
            let verdict = &request.decided.verdict;
            format!(
                "answer {}: {} by {} [{}]{}",
                verdict.request,
                verdict.decision.as_str(),
                verdict.decided_by.as_str(),
                verdict.rules.join(","),
                if request.decided.deny_turn {
                    " and end the turn"
                } else {
                    ""
                }
            )
        }
        Effect::NotifySpent(_) => "a budget is spent".to_owned(),
        Effect::AskDelegate(id) => format!("ask the delegate: {id}"),
        Effect::ConfirmByDelegate(id) => format!("confirm: {id}"),
        Effect::CancelDelegate(id) => format!("no delegate: {id}"),
        Effect::Open(row) => format!("open {} until {}", row.request, row.deadline_us),
        Effect::Publish(id) => format!("publish {id}"),
        Effect::Change(id, change) => match change {
            ApprovalChange::RequestedAgain { .. } => format!("{id} again"),
            ApprovalChange::Answered(_) => format!("{id} answered"),
            ApprovalChange::Ended { state, .. } => format!("{id} {}", state.as_str()),
            ApprovalChange::Orphaned => format!("{id} orphaned"),
        },
        Effect::Close { id, .. } => format!("close {id}"),
        Effect::Orphan { id, .. } => format!("orphan {id}"),
        Effect::Reply(..) => unreachable!("it was sent"),
    }
}

fn outcome(result: &Result<AnswerReceipt, AnswerError>) -> String {
    match result {
        Ok(receipt) => format!("{} {}", receipt.state.as_str(), receipt.remember.as_str()),
        Err(AnswerError::AlreadyEnded(..)) => "ended".to_owned(),
        Err(AnswerError::Denied(_)) => "denied".to_owned(),
        Err(AnswerError::Delegate(why)) => why.clone(),
        Err(AnswerError::Changed(_)) => "changed".to_owned(),
        Err(AnswerError::ReadOnly) => "read-only".to_owned(),
        Err(other) => other.to_string(),
    }
}

const OPENED: [&str; 3] = ["record a", "open a until 60000000", "publish a"];

#[test]
fn a_decision_of_the_policy_is_recorded_and_sent() {
    let mut table = Table::new(Moment::default());
    table
        .decided("a", Decision::Allow)
        .expect(&["record a", "answer a: allow by policy [r]"])
        .decided("b", Decision::Deny)
        .expect(&["record b", "answer b: deny by policy [r]"]);
    assert_eq!(table.permissions.waiting(), 0);
}

#[test]
fn an_approval_is_answered_once_and_only_when_it_is_published() {
    let mut table = Table::new(Moment::default());
    table
        .decided("a", Decision::Ask)
        .expect(&OPENED)
        .allow("a")
        .expect(&["ann hears ended"])
        .step(|permissions, at| assert!(permissions.publish(&id("a"), at).is_some()))
        .allow("a")
        .expect(&[
            "close a",
            "a approved",
            "answer a: allow by human [r]",
            "ann hears approved never",
        ])
        .refuse("a")
        .expect(&["bob hears ended"])
        .step(|permissions, at| assert!(permissions.publish(&id("a"), at).is_none()));
}

#[test]
fn equal_requests_share_an_approval_and_its_answer() {
    let mut table = Table::new(Moment::default());
    table
        .published("a")
        .expect(&OPENED)
        .decided("b", Decision::Ask)
        .expect(&["record b", "a again"]);
    assert_eq!(table.permissions.waiting(), 2);
    table.refuse("a").expect(&[
        "close a",
        "a rejected",
        "answer a: deny by human [r]",
        "answer b: deny by human [r]",
        "bob hears rejected never",
    ]);
    // One that may do something else, and one whose paths lead elsewhere, share nothing.
    table
        .published("a")
        .expect(&OPENED)
        .then(|at| at.paths = "[1]")
        .decided("b", Decision::Ask)
        .expect(&["record b", "open b until 60000000", "publish b"])
        .then(|at| (at.paths, at.is_certain) = ("[]", false))
        .decided("c", Decision::Ask)
        .expect(&["record c", "open c until 60000000", "publish c"]);
}

#[test]
fn a_remembered_answer_applies_for_its_scope_and_no_longer() {
    let mut table = Table::new(Moment::default());
    let turn = answer_of(Decision::Allow, RememberScope::Turn);
    table
        .published("a")
        .answer("a", "ann", turn)
        .decided("b", Decision::Ask)
        .then(|at| at.paths = "[1]")
        .decided("c", Decision::Ask)
        .then(|at| at.paths = "[]")
        .step(|permissions, _| {
            permissions.end_turn();
        })
        .decided("d", Decision::Ask)
        .expect(&[
            "record a",
            "open a until 60000000",
            "publish a",
            "close a",
            "a approved",
            "answer a: allow by human [r]",
            "ann hears approved turn",
            "record b",
            "answer b: allow by cache [r]",
            "record c",
            "open c until 60000000",
            "publish c",
            "record d",
            "open d until 60000000",
            "publish d",
        ]);
    // Where there is no room it applies once, and says so.
    let session = answer_of(Decision::Allow, RememberScope::Session);
    let full = Moment {
        has_room: false,
        ..Moment::default()
    };
    let mut table = Table::new(full);
    table.published("a").expect(&OPENED);
    table.answer("a", "ann", session).expect(&[
        "close a",
        "a approved",
        "answer a: allow by human [r]",
        "ann hears approved never",
    ]);
}

#[test]
fn what_the_registry_knows_is_used_for_the_agent_that_came_back() {
    let known = |known| Moment {
        known: RefCell::new(Some(known)),
        ..Moment::default()
    };
    let answer = answer_of(Decision::Allow, RememberScope::Never);
    for (known_before, lines) in [
        (
            KnownApproval::Answered(id("q"), answer.clone()),
            &["record a", "q approved", "answer a: allow by human [r]"][..],
        ),
        (
            KnownApproval::Remembered(answer),
            &["record a", "answer a: allow by cache [r]"],
        ),
        (
            KnownApproval::Orphaned(id("q"), 7),
            &["record a", "q again", "publish q"],
        ),
        (
            KnownApproval::Outdated(id("q")),
            &[
                "record a",
                "q cancelled",
                "open a until 60000000",
                "publish a",
            ],
        ),
    ] {
        let mut table = Table::new(known(known_before));
        table.decided("a", Decision::Ask).expect(lines);
    }
}

#[test]
fn too_many_that_wait_are_denied() {
    let mut table = Table::new(Moment {
        pending_in_pool: POOL_MAX,
        ..Moment::default()
    });
    table
        .decided("a", Decision::Ask)
        .expect(&["record a", "answer a: deny by error [max_pending]"]);
}

#[test]
fn an_answer_overrules_no_rule_and_is_only_for_what_was_shown() {
    let mut table = Table::new(Moment::default());
    table
        .published("a")
        .expect(&OPENED)
        .then(|at| at.policy = Decision::Deny)
        .allow("a")
        .expect(&[
            "close a",
            "a rejected",
            "answer a: deny by policy [now]",
            "ann hears denied",
        ])
        .then(|at| at.policy = Decision::Ask)
        .published("a")
        .expect(&OPENED)
        .then(|at| at.paths = "[\"elsewhere\"]")
        .allow("a")
        .expect(&[
            "close a",
            "a rejected",
            "answer a: deny by error [r]",
            "ann hears changed",
        ]);
}

#[test]
fn nobody_who_answers_in_time_is_a_denial() {
    let expired = [
        "close a",
        "a expired",
        "answer a: deny by timeout [r] and end the turn",
    ];
    let mut table = Table::new(Moment::default());
    table
        .published("a")
        .expect(&OPENED)
        .step(|permissions, at| permissions.expire(&id("a"), "late", at))
        .expect(&expired)
        .allow("a")
        .expect(&["ann hears ended"]);
    // The machine slept: the timer is late, the deadline that was shown is not.
    table
        .published("a")
        .expect(&OPENED)
        .then(|at| at.now_us = 60_000_000)
        .allow("a")
        .expect(&[&expired[..], &["ann hears ended"]].concat());
}

#[test]
fn a_journal_that_cannot_write_allows_nothing() {
    let mut table = Table::new(Moment::default());
    table
        .published("a")
        .expect(&OPENED)
        .then(|at| at.is_read_only = true)
        .allow("a")
        .expect(&["ann hears read-only"])
        .then(|at| at.is_delegated = true)
        .allow("a")
        .expect(&["ann hears read-only"])
        .refuse("a")
        .expect(&[
            "close a",
            "a rejected",
            "answer a: deny by human [r]",
            "bob hears rejected never",
        ]);
}

#[test]
fn what_was_withdrawn_or_cancelled_ends_alone() {
    let mut table = Table::new(Moment::default());
    table
        .published("a")
        .decided("b", Decision::Ask)
        .then(|at| at.is_delegated = true)
        .decided("c", Decision::Allow)
        .decided("d", Decision::Allow)
        .step(|_, _| {});
    table.lines.clear();
    table
        .step(|permissions, _| permissions.withdraw(&key("a")))
        .expect(&["answer a: deny by gone [r]"])
        .step(|permissions, _| permissions.withdraw(&key("b")))
        .expect(&["close a", "a cancelled", "answer b: deny by gone [r]"])
        .step(|permissions, _| permissions.withdraw(&key("c")))
        .expect(&["no delegate: c", "record c", "answer c: deny by gone [r]"])
        .then(|at| at.is_delegated = false)
        .published("e")
        .expect(&["record e", "open e until 60000000", "publish e"])
        .step(|permissions, _| permissions.cancel("over"))
        .expect(&[
            "no delegate: d",
            "record d",
            "answer d: deny by gone [r]",
            "close e",
            "e cancelled",
            "answer e: deny by gone [r]",
        ]);
    assert_eq!(table.permissions.waiting(), 0);
}

#[test]
fn a_session_that_waits_without_its_child_keeps_its_approvals() {
    let mut table = Table::new(Moment::default());
    table
        .published("a")
        .expect(&OPENED)
        .step(|permissions, _| permissions.orphan())
        .expect(&["a orphaned", "orphan a", "answer a: deny by gone [r]"]);
    assert_eq!(table.permissions.first_pending(), None);
}

#[test]
fn the_delegate_can_only_be_stricter() {
    let delegated = || {
        Table::new(Moment {
            is_delegated: true,
            ..Moment::default()
        })
    };
    let asked = ["ask the delegate: a"];
    let done = "no delegate: a";
    let opened = [done, "record a", "open a until 60000000", "publish a"];
    for (policy, now, answer, lines) in [
        (
            Decision::Allow,
            Decision::Allow,
            Ok(Decision::Allow),
            &[done, "record a", "answer a: allow by policy [r]"][..],
        ),
        (
            Decision::Allow,
            Decision::Allow,
            Ok(Decision::Deny),
            &[
                done,
                "record a",
                "answer a: deny by delegate [delegate.own]",
            ],
        ),
        (
            Decision::Allow,
            Decision::Allow,
            Err(DelegateError::Internal),
            &[
                done,
                "record a",
                "answer a: deny by delegate [delegate_error]",
            ],
        ),
        (Decision::Allow, Decision::Allow, Ok(Decision::Ask), &opened),
        (Decision::Ask, Decision::Ask, Ok(Decision::Allow), &opened),
        // The policy of now counts as well.
        (Decision::Allow, Decision::Ask, Ok(Decision::Allow), &opened),
        (
            Decision::Ask,
            Decision::Deny,
            Ok(Decision::Allow),
            &[done, "record a", "answer a: deny by policy [now]"],
        ),
    ] {
        delegated()
            .decided("a", policy)
            .expect(&asked)
            .then(|at| at.policy = now)
            .delegate("a", answer)
            .expect(lines);
    }
    // A move of the shell that it denies does not leave the shell's directory unknown.
    let mut table = delegated();
    table.permissions.settings.shell_cwd = ShellCwd::Sticky;
    let moves = || {
        let mut moving = request("a", Decision::Ask);
        moving.decided.moved = CwdChange::OneOf(vec!["/w/a".to_owned()]);
        moving
    };
    let directory = &mut table.permissions.requests.directory;
    directory.record_decision(ShellCwd::Sticky, &moves().decided.moved, Decision::Ask);
    table
        .step(|permissions, at| permissions.decided(moves(), at))
        .delegate("a", Ok(Decision::Deny));
    let directory = format!("{:?}", table.permissions.requests.directory);
    assert_eq!(directory, format!("{:?}", ShellDirectory::default()));
    // A denial of the policy needs no delegate, and a late answer changes nothing.
    delegated()
        .decided("a", Decision::Deny)
        .expect(&["record a", "answer a: deny by policy [r]"])
        .delegate("a", Ok(Decision::Allow))
        .expect(&[]);
    // What needs an approver is denied where there is none.
    delegated()
        .then(|at| (at.has_approver, at.policy) = (false, Decision::Allow))
        .decided("a", Decision::Allow)
        .expect(&asked)
        .delegate("a", Ok(Decision::Ask))
        .expect(&[
            done,
            "record a",
            "answer a: deny by timeout [delegate.own] and end the turn",
        ]);
    // Requests that were allowed meanwhile have spent the budget.
    delegated()
        .then(|at| at.policy = Decision::Allow)
        .decided("a", Decision::Allow)
        .expect(&asked)
        .then(|at| at.spent = Some(spent()))
        .delegate("a", Ok(Decision::Allow))
        .expect(&[
            done,
            "a budget is spent",
            "record a",
            "open a until 60000000",
            "publish a",
        ]);
}

#[test]
fn the_delegate_confirms_what_an_approver_allowed() {
    let confirming = || {
        let mut table = Table::new(Moment::default());
        table
            .published("a")
            .expect(&OPENED)
            .then(|at| at.is_delegated = true)
            .allow("a")
            .expect(&["confirm: a"]);
        table
    };
    confirming().confirmed("a", Ok(Decision::Ask)).expect(&[
        "no delegate: a",
        "close a",
        "a approved",
        "answer a: allow by human [r]",
        "ann hears approved never",
    ]);
    confirming().confirmed("a", Ok(Decision::Deny)).expect(&[
        "no delegate: a",
        "close a",
        "a rejected",
        "answer a: deny by delegate [delegate.own]",
        "ann hears a person allowed this, and the delegate own denies this: a *** reason",
    ]);
    let failed = Err(DelegateError::Internal);
    let mut table = confirming();
    table.confirmed("a", failed);
    assert!(
        table
            .lines
            .contains(&"answer a: deny by delegate [delegate_error]".to_owned()),
        "{:?}",
        table.lines
    );
    // A second approver: an allow comes too late, a refusal does not wait.
    let mut table = confirming();
    table
        .answer("a", "cy", answer_of(Decision::Allow, RememberScope::Never))
        .expect(&["cy hears ended"])
        .refuse("a")
        .expect(&[
            "no delegate: a",
            "close a",
            "a rejected",
            "answer a: deny by human [r]",
            "ann hears ended",
            "bob hears rejected never",
        ])
        .confirmed("a", Ok(Decision::Allow))
        .expect(&[]);
    // What a rule denies by now is not confirmed at all.
    let mut table = Table::new(Moment::default());
    table
        .published("a")
        .expect(&OPENED)
        .then(|at| (at.is_delegated, at.policy) = (true, Decision::Deny))
        .allow("a")
        .expect(&[
            "close a",
            "a rejected",
            "answer a: deny by policy [now]",
            "ann hears denied",
        ]);
}

#[test]
fn an_answer_about_a_budget_is_not_remembered() {
    let mut table = Table::new(Moment::default());
    let over_budget = |of: &str| {
        let mut over = request(of, Decision::Ask);
        over.decided.spent = Some(spent());
        over
    };
    let session = answer_of(Decision::Allow, RememberScope::Session);
    table
        .step(|permissions, at| permissions.decided(over_budget("a"), at))
        .step(|permissions, at| {
            permissions.publish(&id("a"), at);
        })
        .answer("a", "ann", session)
        .step(|permissions, at| permissions.decided(over_budget("b"), at))
        .expect(&[
            "a budget is spent",
            "record a",
            "open a until 60000000",
            "publish a",
            "close a",
            "a approved",
            "answer a: allow by human [r]",
            "ann hears approved never",
            "a budget is spent",
            "record b",
            "open b until 60000000",
            "publish b",
        ]);
}

#[test]
fn an_approval_that_no_client_can_be_told_of_is_gone() {
    let mut table = Table::new(Moment::default());
    let gone = ApprovalEnd::denied(DecidedBy::Gone, "nobody");
    table
        .published("a")
        .expect(&OPENED)
        .step(|permissions, _| permissions.end_approval(&id("a"), &gone))
        .expect(&["close a", "a cancelled", "answer a: deny by gone [r]"]);
}
