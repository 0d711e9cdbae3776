//! The answer to every ask, and the tool calls that ran without one.
//!
//! Deciding is pure but for the resolver's look at links; every failure on this way is a deny
//! with a reason. Must not send anything: an answer waits until its verdict is durable.

use std::time::Duration;

use serde_json::value::RawValue;

use super::calls::{Asks, Call};
use super::directory::Directory;
use super::outbox::Outbox;
use super::prepare::Prepared;
use super::record;
use super::work::Work;
use crate::config::ShellCwd;
use crate::fleet::clock;
use crate::fleet::setup::PoolShared;
use crate::journal::{Judged, Write};
use crate::limits::{ASK_INPUT_BYTES, ASKS_PER_SESSION};
use crate::model::{
    Answer, Ask, AskId, Claimed, ClientWish, DecidedBy, Decision, Event, Foreign, OnTimeout,
    Verdict,
};
use crate::policy::{self, Facts, Judgement, Moved, Part, Place, Request};
use crate::telemetry::event::permission::{PermissionRequested, PolicyEvaluated};
use crate::telemetry::event::turn::UnaskedJudged;
use crate::telemetry::sets::{EvaluationError, ToolClass};

/// A decided ask; or, with [`Decision::Ask`], one that a person is to decide.
#[derive(Debug)]
pub(crate) struct Decided {
    /// What the policy said, before "nobody can be asked" made it a deny.
    pub(crate) policy: Decision,
    pub(crate) verdict: Verdict,
    pub(crate) class: ToolClass,
    /// The denial must also end the turn.
    pub(crate) deny_turn: bool,
    /// What it does to the shell's directory.
    pub(crate) moved: Moved,
    judged: Judged,
    /// What the rules saw, where a person is to decide.
    pub(crate) facts: Option<Facts>,
    /// The directories that it was judged from, where a person is to decide.
    pub(crate) from: Directory,
}

/// In what state of things an ask is decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    /// The journal takes nothing new.
    pub(crate) is_read_only: bool,
    /// There is a person to ask.
    pub(crate) has_approver: bool,
    /// Requests that wait for people: they are not on their way to the disk.
    pub(crate) waiting: usize,
}

impl Decided {
    /// The ask's record: the request, how it was judged, the verdict; in this order.
    pub(crate) fn record(&self, ask: &Ask, outbox: &mut Outbox) {
        self.record_request(ask, outbox);
        outbox.event(Event::Decided(self.verdict.clone()));
    }

    /// The record of an ask that waits for a person.
    pub(crate) fn record_request(&self, ask: &Ask, outbox: &mut Outbox) {
        outbox.event(Event::Asked {
            id: self.verdict.ask.clone(),
            ask: ask.clone(),
        });
        outbox.write(Write::AskJudged {
            ask: self.verdict.ask.clone(),
            judged: self.judged.clone(),
        });
    }

    /// What goes back to the agent.
    pub(crate) fn answer(&self) -> Answer {
        match self.verdict.decision {
            Decision::Allow => Answer::Allow,
            Decision::Ask | Decision::Deny => Answer::Deny(self.verdict.reason.clone()),
        }
    }
}

/// Decides an ask by policy; where the policy wants a person and there is none, that is a deny.
pub(crate) fn decide(
    pool: &PoolShared,
    prepared: Option<&Prepared>,
    work: &Work,
    ask: &Ask,
    asks: &mut Asks,
    at: At,
) -> Decided {
    let began = clock::now();
    let crowded = asks.open.len().saturating_sub(at.waiting) >= ASKS_PER_SESSION;
    let twice = asks.open.values().any(|open| open.id == ask.key.id);
    asks.note_request(ask);
    let mut moved = Moved::Not;
    let keeps = pool.config.shell_cwd;
    // What runs unasked may have moved the shell already, and what it did is only seen at its end.
    let unseen = keeps != ShellCwd::Workspace
        && asks
            .calls
            .iter()
            .any(|call| !call.asked && class(pool, Some(&call.name)) == ToolClass::Shell);
    let nowhere = Directory::unknown();
    let directory = if unseen { &nowhere } else { &asks.directory };
    let from = directory.clone();
    let judgement = if twice {
        Judgement::refused("twice", "the same request id was used twice")
    } else if at.is_read_only {
        Judgement::refused(
            "journal",
            "the journal is read-only: nothing can be allowed",
        )
    } else if crowded {
        Judgement::refused("max_pending", "too many requests are open at the same time")
    } else {
        let judgement;
        (judgement, moved) = judge(
            pool,
            prepared,
            directory,
            (&ask.tool, &ask.input),
            &ask.claimed,
        );
        judgement
    };
    let class = class(pool, Some(&ask.tool));
    let mut decided = decided(pool, work, ask, judgement, class, clock::since(began), at);
    decided.judged.facts = record::at_place(&decided.judged.facts, prepared, directory);
    let decision = decided.verdict.decision;
    asks.directory.decided(keeps, &moved, decision);
    decided.moved = moved;
    decided.from = from;
    asks.open
        .insert(decided.verdict.ask.clone(), ask.key.clone());
    decided
}

/// Decides what the agent wants its client to do. Beside it stands, unless it is denied, the place
/// that was judged.
pub(crate) fn decide_client(
    pool: &PoolShared,
    prepared: Option<&Prepared>,
    work: &Work,
    (ask, wish): (&Ask, &ClientWish),
    asks: &mut Asks,
    at: At,
) -> (Decided, Option<String>) {
    let began = clock::now();
    let (mut judgement, place) = if at.is_read_only {
        let why = "the journal is read-only: nothing can be allowed";
        (Judgement::refused("journal", why), None)
    } else if ask.input.get().len() > ASK_INPUT_BYTES {
        (too_large(), None)
    } else if let Some(prepared) = prepared {
        pool.policy.decide_client(wish, &prepared.place())
    } else {
        let why = "there is no workspace to judge paths by";
        (Judgement::refused("no_workspace", why), None)
    };
    show_text(wish, &ask.input, &mut judgement);
    let class = match wish {
        ClientWish::Read(_) => ToolClass::Read,
        ClientWish::Write(_) => ToolClass::Write,
        ClientWish::Run(_) => ToolClass::Shell,
    };
    let decided = decided(pool, work, ask, judgement, class, clock::since(began), at);
    asks.clients
        .insert(decided.verdict.ask.clone(), ask.key.clone());
    (decided, place)
}

/// A person is asked about the text that is to be written, too, and there is no tool call that shows
/// it.
pub(super) fn show_text(wish: &ClientWish, input: &RawValue, judgement: &mut Judgement) {
    if let ClientWish::Write(_) = wish {
        judgement.facts.parts.extend(text_part(input));
    }
}

/// What is on record of a text that is to be written, for whoever decides.
fn text_part(input: &RawValue) -> Option<Part> {
    #[derive(serde::Deserialize)]
    struct Text {
        bytes: u64,
        sha256: String,
    }
    let text: Text = serde_json::from_str(input.get()).ok()?;
    let bytes = text.bytes.to_string();
    let words = ["text:", &bytes, "bytes,", "SHA-256", &text.sha256];
    Some(Part {
        words: words.into_iter().map(Foreign::from).collect(),
        decision: Decision::Allow,
        rules: Vec::new(),
    })
}

/// A judgement, with what follows where nobody can be asked.
fn decided(
    pool: &PoolShared,
    work: &Work,
    ask: &Ask,
    judgement: Judgement,
    class: ToolClass,
    took: Duration,
    at: At,
) -> Decided {
    PolicyEvaluated {
        took,
        error: (judgement.by == DecidedBy::Error).then_some(EvaluationError::Malformed),
    }
    .emit();
    let policy = judgement.decision;
    let mut verdict = Verdict {
        ask: fresh_ask_id(pool),
        decision: judgement.decision,
        by: judgement.by,
        rules: judgement.rules,
        reason: judgement.reason,
    };
    let mut deny_turn = false;
    if verdict.decision == Decision::Ask && !at.has_approver {
        verdict.decision = Decision::Deny;
        verdict.by = DecidedBy::Timeout;
        verdict.reason = format!(
            "{}; a person would have to allow this and nobody can be asked here: do it another way or go on without it",
            verdict.reason
        );
        deny_turn = denies_turn(pool);
    }
    PermissionRequested {
        slot: &work.slot,
        session: &work.session,
        ask: &verdict.ask,
        tool: &ask.tool,
    }
    .emit();
    Decided {
        policy,
        facts: (verdict.decision == Decision::Ask).then(|| judgement.facts.clone()),
        verdict,
        class,
        deny_turn,
        moved: Moved::Not,
        from: Directory::default(),
        judged: Judged {
            policy: pool.policy.name().to_owned(),
            policy_sha256: pool.policy_sha256.clone(),
            facts: facts_json(&judgement.facts),
            eval_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        },
    }
}

/// Whether an ask that nobody answers also ends the turn.
pub(super) fn denies_turn(pool: &PoolShared) -> bool {
    pool.config.ask.on_timeout == OnTimeout::DenyTurn
        || pool.policy.on_timeout() == Some(OnTimeout::DenyTurn)
}

/// Judges a call that ran without a request.
pub(crate) fn judge_unasked(
    pool: &PoolShared,
    prepared: Option<&Prepared>,
    work: &Work,
    call: &Call,
    directory: &mut Directory,
) -> Event {
    let (judgement, moved) = match &call.input {
        Some(input) => {
            let claimed = Claimed::default();
            judge(pool, prepared, directory, (&call.name, input), &claimed)
        }
        None if class(pool, Some(&call.name)) == ToolClass::Shell => (too_large(), Moved::Away),
        None => (too_large(), Moved::Not),
    };
    // It ran, whatever is said of it.
    directory.decided(pool.config.shell_cwd, &moved, Decision::Allow);
    UnaskedJudged {
        slot: &work.slot,
        session: &work.session,
        tool_class: class(pool, Some(&call.name)),
        verdict: judgement.decision,
        rules: &judgement.rules,
    }
    .emit();
    Event::Unasked {
        id: call.id.clone(),
        tool: call.name.clone(),
        decision: judgement.decision,
        rules: judgement.rules,
    }
}

pub(super) fn judge(
    pool: &PoolShared,
    prepared: Option<&Prepared>,
    directory: &Directory,
    (tool, input): (&Foreign, &RawValue),
    claimed: &Claimed,
) -> (Judgement, Moved) {
    if input.get().len() > ASK_INPUT_BYTES {
        return (too_large(), Moved::Away);
    }
    let Some(prepared) = prepared else {
        let why = "there is no workspace to judge paths by";
        return (Judgement::refused("no_workspace", why), Moved::Away);
    };
    let request: Request = pool.extractor.extract(tool.raw(), input);
    let places = directory.places(prepared);
    let judged = places
        .iter()
        .map(|place| pool.policy.decide(&request, claimed, place));
    let severe = judged.reduce(|a, b| {
        let is_as_severe = match a.decision {
            Decision::Deny => true,
            Decision::Ask => b.decision != Decision::Deny,
            Decision::Allow => b.decision == Decision::Allow,
        };
        if is_as_severe { a } else { b }
    });
    let Some(judgement) = severe else {
        let why = "there is no directory to judge paths by";
        return (Judgement::refused("no_directory", why), Moved::Away);
    };
    let moved = match pool.config.shell_cwd {
        ShellCwd::Workspace => Moved::Not,
        ShellCwd::Turn | ShellCwd::Sticky => moved_from(pool, tool, &request, &places),
    };
    (judgement, moved)
}

/// Where the shell may be afterwards, from each place where it may be now.
fn moved_from(pool: &PoolShared, tool: &Foreign, request: &Request, places: &[Place<'_>]) -> Moved {
    let is_shell = class(pool, Some(tool)) == ToolClass::Shell;
    if is_shell && !matches!(request, Request::Shell { .. }) {
        return Moved::Away; // It runs something, and nobody can say what.
    }
    let mut all = Vec::new();
    for place in places {
        match policy::moved(request, place) {
            Moved::Not => {}
            Moved::To(ends) => all.extend(ends),
            Moved::Away => return Moved::Away,
        }
    }
    if all.is_empty() {
        Moved::Not
    } else {
        Moved::To(all)
    }
}

/// The kind of tool that a name stands for.
pub(crate) fn class(pool: &PoolShared, tool: Option<&Foreign>) -> ToolClass {
    tool.map_or(ToolClass::Unknown, |tool| pool.extractor.class(tool.raw()))
}

fn too_large() -> Judgement {
    Judgement::refused("too_large", "the input is larger than can be judged")
}

fn fresh_ask_id(pool: &PoolShared) -> AskId {
    let id = pool.ambient.id().to_string();
    AskId::new(&id).unwrap_or_else(|_| unreachable!("a UUID is a safe token"))
}

/// What the rules saw, for the audit record.
fn facts_json(facts: &Facts) -> String {
    let parts: Vec<_> = facts
        .parts
        .iter()
        .map(|part| {
            let words: Vec<_> = part.words.iter().map(Foreign::raw).collect();
            serde_json::json!({
                "words": words,
                "decision": part.decision.word(),
                "rules": part.rules,
            })
        })
        .collect();
    serde_json::json!({"parts": parts, "not_plain": facts.not_plain}).to_string()
}
