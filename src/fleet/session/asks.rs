//! The answer to every ask, and the tool calls that ran without one.
//!
//! Deciding is pure but for the resolver's look at links; every failure on this way is a deny
//! with a reason. Must not send anything: an answer waits until its verdict is durable.

use std::time::Duration;

use serde_json::value::RawValue;

use super::budget::cap;
use super::calls::{Asks, Call};
use super::directory::Directory;
use super::engine;
use super::judging::{Asked, Looked, class, judge, judge_call, too_large};
use super::masking;
use super::outbox::Outbox;
use super::prepare::Prepared;
use super::record;
use super::ruling::{self, Ruling};
use super::tools;
use super::work::Work;
use crate::config::ShellCwd;
use crate::fleet::clock;
use crate::fleet::setup::PoolShared;
use crate::journal::{Judged, Write};
use crate::limits::{
    ASK_CLAIM_BYTES, ASK_INPUT_BYTES, ASK_TOOL_BYTES, ASKS_PER_SESSION, FACT_PATHS,
    FOREIGN_ID_BYTES,
};
use crate::model::{
    Answer, Ask, AskBounds, AskId, ClientWish, DecidedBy, Decision, EngineTool, Event, Foreign,
    OnTimeout, Spent, Then, Verdict,
};
use crate::policy::{self, Facts, Judgement, Looking, Moved, Occasion, Part, Place, Policy};
use crate::telemetry::event::permission::{PermissionRequested, PolicyEvaluated};
use crate::telemetry::event::policy::PolicyTried;
use crate::telemetry::event::turn::UnaskedJudged;
use crate::telemetry::sets::ToolClass;

/// What is kept of what stands beside a request's input.
pub(super) const BOUNDS: AskBounds = AskBounds {
    tool: ASK_TOOL_BYTES,
    claim: ASK_CLAIM_BYTES,
    id: FOREIGN_ID_BYTES,
};

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
    pub(super) judged: Judged,
    /// How long its policy lets it wait for a person, if that says so.
    pub(crate) ask_timeout: Option<Duration>,
    /// The budget because of which it was not just allowed.
    pub(crate) spent: Option<Spent>,
    /// What the rules saw, where somebody else is to decide.
    pub(crate) facts: Option<Facts>,
    /// The directories that it was judged from, where a person is to decide.
    pub(crate) from: Directory,
    /// The request as it came, where it holds secrets: on no record, and never shown.
    pub(crate) came: Option<Box<Ask>>,
    /// What it took of the rules that allow only so often.
    pub(super) uses: Vec<(String, u32)>,
}

/// In what state of things an ask is decided.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At<'a> {
    /// The mode that the session is set to.
    pub(crate) mode: Option<&'a str>,
    /// The journal takes nothing new.
    pub(crate) is_read_only: bool,
    /// There is a person to ask.
    pub(crate) has_approver: bool,
    /// Requests that wait for people: they are not on their way to the disk.
    pub(crate) waiting: usize,
    /// The tool's name is longer than any.
    pub(crate) is_too_long: bool,
    /// The budget that is spent, if one is.
    pub(crate) spent: Option<Spent>,
    /// Requests of the turn that were allowed, and those that were denied.
    pub(crate) counted: (u64, u64),
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

    /// What the rules saw, as its record has it: JSON.
    pub(super) fn facts_json(&self) -> &str {
        &self.judged.facts
    }

    /// Adds to that.
    pub(super) fn note(&mut self, name: &str, value: &serde_json::Value) {
        self.judged.facts = record::noted(&self.judged.facts, name, value);
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
    (ask, came): (&Ask, Option<Box<Ask>>),
    asks: &mut Asks,
    at: At<'_>,
) -> Decided {
    let began = clock::now();
    let ruling = Ruling::now(pool, work, at.mode.map(str::to_owned));
    let crowded = asks.open.len().saturating_sub(at.waiting) >= ASKS_PER_SESSION;
    let twice = asks.open.values().any(|open| open.id == ask.key.id);
    let announced = tools::announced(pool, came.as_deref().unwrap_or(ask));
    // Such a call was asked for when it comes, and not before.
    if announced.is_none() {
        asks.note_request(came.as_deref().unwrap_or(ask));
    }
    let announces = announced.as_ref().map(|wish| wish.tool);
    let keeps = pool.config.shell_cwd;
    // What runs unasked may have moved the shell already, and what it did is only seen at its end.
    let unseen = keeps != ShellCwd::Workspace
        && asks
            .calls
            .iter()
            .any(|call| !call.is_asked() && class(pool, Some(&call.name)) == ToolClass::Shell);
    let nowhere = Directory::unknown();
    let directory = if unseen { &nowhere } else { &asks.directory };
    let from = directory.clone();
    let by = |policy: &Policy| {
        let occasion = ruling.occasion(pool, &asks.used);
        let (asked, came) = (Asked::of(ask), came.as_deref().map(Asked::of));
        judge(pool, (policy, &occasion), prepared, directory, asked, came)
    };
    let refused = if twice {
        Some(("twice", "the same request id was used twice"))
    } else if at.is_read_only {
        let why = "the journal is read-only: nothing can be allowed";
        Some(("journal", why))
    } else if crowded {
        let why = "too many requests are open at the same time";
        Some(("max_pending", why))
    } else if at.is_too_long {
        Some(("too_large", "the tool's name is longer than any"))
    } else {
        None
    };
    let Looked {
        judgement,
        moved,
        floor,
    } = match (refused, ruling.loaded(), announces) {
        (Some((name, why)), ..) => Looked::of(Judgement::refused(name, why), Moved::Not),
        (None, Some(_), Some(tool)) => Looked::of(policy::announced(tool), Moved::Not),
        (None, Some(loaded), None) => by(&loaded.policy),
        (None, None, _) => Looked::of(no_layer(), Moved::Away),
    };
    let took = clock::since(began);
    let is_judged = refused.is_none() && announces.is_none();
    if let Some(shadow) = ruling.version.shadow.as_ref().filter(|_| is_judged) {
        shadow.judge(&judgement, |policy| by(policy).judgement);
    }
    let class = match announces {
        Some(_) => ToolClass::Mcp,
        None => class(pool, Some(&ask.tool)),
    };
    let uses = judgement.uses.clone();
    let mut decided = decided(pool, &ruling, work, ask, (judgement, took), class, at);
    let occasion = ruling.occasion(pool, &asks.used);
    let facts = &decided.judged.facts;
    decided.judged.facts = record::at_place(facts, pool, prepared, directory, &occasion, floor);
    let decision = decided.verdict.decision;
    asks.directory.decided(keeps, &moved, decision);
    if decision == Decision::Allow {
        ruling::count(&mut asks.used, &uses);
        decided.uses = uses;
        asks.note_announced(ask.tool_id.as_ref(), announced);
    }
    decided.moved = moved;
    decided.from = from;
    decided.came = came;
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
    (ask, came, wish): (&Ask, Option<Box<Ask>>, &ClientWish),
    asks: &mut Asks,
    at: At<'_>,
) -> (Decided, Option<String>) {
    let began = clock::now();
    let ruling = Ruling::now(pool, work, at.mode.map(str::to_owned));
    let mut tried = None;
    let by = |policy: &Policy, prepared: &Prepared| {
        let occasion = ruling.occasion(pool, &asks.used);
        let is_masked = came.is_some();
        judge_client(pool, (policy, &occasion), prepared, wish, ask, is_masked)
    };
    let (judgement, place) = if at.is_read_only {
        let why = "the journal is read-only: nothing can be allowed";
        (Judgement::refused("journal", why), None)
    } else if ask.input.get().len() > ASK_INPUT_BYTES {
        (too_large(), None)
    } else if let Some(prepared) = prepared {
        tried = Some(prepared);
        match ruling.loaded() {
            Some(loaded) => by(&loaded.policy, prepared),
            None => (no_layer(), None),
        }
    } else {
        let why = "there is no workspace to judge paths by";
        (Judgement::refused("no_workspace", why), None)
    };
    let took = clock::since(began);
    if let Some((shadow, prepared)) = ruling.version.shadow.as_ref().zip(tried) {
        shadow.judge(&judgement, |policy| by(policy, prepared).0);
    }
    let class = match wish {
        ClientWish::Read(_) => ToolClass::Read,
        ClientWish::Write(_) => ToolClass::Write,
        ClientWish::Run(_) => ToolClass::Shell,
        ClientWish::Tool(wish) => match wish.tool {
            EngineTool::WriteFile => ToolClass::Write,
            EngineTool::EditFile => ToolClass::Edit,
            EngineTool::ReadFile => ToolClass::Read,
            EngineTool::AskPerson | EngineTool::PlanStep => ToolClass::Mcp,
        },
    };
    let uses = judgement.uses.clone();
    let mut decided = decided(pool, &ruling, work, ask, (judgement, took), class, at);
    let (facts, nowhere) = (&decided.judged.facts, Directory::default());
    let occasion = ruling.occasion(pool, &asks.used);
    decided.judged.facts = record::at_place(facts, pool, prepared, &nowhere, &occasion, None);
    if decided.verdict.decision == Decision::Allow {
        ruling::count(&mut asks.used, &uses);
        decided.uses = uses;
    }
    decided.came = came;
    asks.clients
        .insert(decided.verdict.ask.clone(), ask.key.clone());
    (decided, place)
}

/// What the policy says of it. It is judged as it came, because that is what will be done; what is
/// kept of that is masked, and with a secret in it no rule allows it.
pub(super) fn judge_client(
    pool: &PoolShared,
    (policy, occasion): (&Policy, &Occasion<'_>),
    prepared: &Prepared,
    wish: &ClientWish,
    ask: &Ask,
    is_masked: bool,
) -> (Judgement, Option<String>) {
    let began = clock::computed();
    let looking = Looking::new(prepared.place().resolver);
    let resolver = &looking;
    let at = Place {
        resolver,
        ..prepared.place()
    };
    let (judgement, place) = policy.decide_client_on(wish, &at, occasion);
    let mut judgement = engine::in_time(policy, began, judgement);
    judgement.facts.looked = looking.looked();
    if is_masked {
        judgement = policy.hold_back(judgement);
        masking::judgement(&pool.mask, &mut judgement);
    }
    show_text(wish, &ask.input, &mut judgement);
    (judgement, place)
}

/// A person is asked about the text that is to be written, too, and there is no tool call that shows
/// it.
fn show_text(wish: &ClientWish, input: &RawValue, judgement: &mut Judgement) {
    let writes = match wish {
        ClientWish::Write(_) => true,
        ClientWish::Tool(wish) => wish.tool.writes(),
        ClientWish::Read(_) | ClientWish::Run(_) => false,
    };
    if writes {
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
        env: Vec::new(),
        redirects: Vec::new(),
        words: words.into_iter().map(Foreign::from).collect(),
        decision: Decision::Allow,
        rules: Vec::new(),
    })
}

/// A judgement, with what follows where nobody can be asked.
fn decided(
    pool: &PoolShared,
    ruling: &Ruling,
    work: &Work,
    ask: &Ask,
    (judgement, took): (Judgement, Duration),
    class: ToolClass,
    at: At<'_>,
) -> Decided {
    let loaded = ruling.loaded().unwrap_or(&ruling.version.own);
    PolicyEvaluated {
        took,
        error: engine::error(&judgement),
    }
    .emit();
    let mut judgement = judgement;
    let spent = at.spent.filter(|_| judgement.decision == Decision::Allow);
    if let Some(spent) = &spent {
        cap(&mut judgement, spent);
    }
    let policy = judgement.decision;
    let mut verdict = Verdict {
        ask: fresh_ask_id(pool),
        decision: judgement.decision,
        by: judgement.by,
        rules: judgement.rules,
        reason: judgement.reason,
    };
    let mut deny_turn = spent.is_some_and(|spent| spent.then >= Then::Interrupt);
    if verdict.decision == Decision::Ask && !at.has_approver {
        deny_turn = nobody_to_ask(pool, &loaded.policy, &mut verdict);
    }
    if let Some(would) = judgement.would {
        PolicyTried {
            slot: &work.slot,
            session: &work.session,
            ask: &verdict.ask,
            would,
            rules: &verdict.rules,
        }
        .emit();
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
        facts: (verdict.decision == Decision::Ask || pool.delegate.is_some())
            .then(|| judgement.facts.clone()),
        verdict,
        class,
        deny_turn,
        spent,
        moved: Moved::Not,
        from: Directory::default(),
        came: None,
        uses: Vec::new(),
        judged: Judged {
            policy: loaded.policy.name().to_owned(),
            policy_sha256: loaded.sha256.clone(),
            facts: facts_json(&judgement.facts, at.counted),
            eval_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        },
        ask_timeout: loaded.policy.ask_timeout(),
    }
}

/// Makes a denial of what a person should have decided. Gives whether it also ends the turn.
pub(super) fn nobody_to_ask(pool: &PoolShared, policy: &Policy, verdict: &mut Verdict) -> bool {
    verdict.decision = Decision::Deny;
    verdict.by = DecidedBy::Timeout;
    verdict.reason = format!(
        "{}; a person would have to allow this and nobody can be asked here: do it another way or go on without it",
        verdict.reason
    );
    denies_turn(pool, policy)
}

/// Whether an ask that nobody answers also ends the turn.
pub(super) fn denies_turn(pool: &PoolShared, policy: &Policy) -> bool {
    pool.config.ask.on_timeout == OnTimeout::DenyTurn
        || policy.on_timeout() == Some(OnTimeout::DenyTurn)
}

/// Judges a call that ran without a request.
pub(crate) fn judge_unasked(
    pool: &PoolShared,
    prepared: Option<&Prepared>,
    work: &Work,
    call: &Call,
    asks: &mut Asks,
    mode: Option<String>,
) -> Event {
    let ruling = Ruling::now(pool, work, mode);
    let (judgement, moved) = match (&call.input, ruling.loaded()) {
        (Some(input), Some(loaded)) => {
            let occasion = ruling.occasion(pool, &asks.used);
            let by = (&*loaded.policy, &occasion);
            let looked = judge_call(pool, by, prepared, &asks.directory, &call.name, input);
            (looked.judgement, looked.moved)
        }
        (Some(_), None) => (no_layer(), Moved::Away),
        (None, _) if class(pool, Some(&call.name)) == ToolClass::Shell => {
            (too_large(), Moved::Away)
        }
        (None, _) => (too_large(), Moved::Not),
    };
    // It ran, whatever is said of it.
    ruling::count(&mut asks.used, &judgement.uses);
    let keeps = pool.config.shell_cwd;
    asks.directory.decided(keeps, &moved, Decision::Allow);
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

fn no_layer() -> Judgement {
    let why = "the policy that lies on top of this session's is not there any more: nothing can be allowed";
    Judgement::refused("no_policy", why)
}

fn fresh_ask_id(pool: &PoolShared) -> AskId {
    let id = pool.ambient.id().to_string();
    AskId::new(&id).unwrap_or_else(|_| unreachable!("a UUID is a safe token"))
}

/// What the rules saw and what budgets had counted, for the audit record.
fn facts_json(facts: &Facts, (allows, denies): (u64, u64)) -> String {
    let parts: Vec<_> = facts
        .parts
        .iter()
        .map(|part| {
            let texts = |of: &[Foreign]| -> serde_json::Value {
                of.iter().map(Foreign::raw).collect::<Vec<_>>().into()
            };
            let mut json = serde_json::json!({
                "words": texts(&part.words),
                "decision": part.decision.word(),
                "rules": part.rules,
            });
            for (key, of) in [("env", &part.env), ("redirects", &part.redirects)] {
                if !of.is_empty() {
                    json[key] = texts(of);
                }
            }
            json
        })
        .collect();
    let budget = serde_json::json!({"allows": allows, "denies": denies});
    let mut json =
        serde_json::json!({"parts": parts, "not_plain": facts.not_plain, "budget": budget});
    if !facts.paths.is_empty() {
        let paths = facts.paths.iter().take(FACT_PATHS).map(|led| {
            serde_json::json!({"word": led.word.raw(), "to": led.to.raw(), "inside": led.inside})
        });
        json["paths"] = paths.collect::<Vec<_>>().into();
    }
    if !facts.looked.is_empty() {
        json["looked"] = serde_json::json!(facts.looked);
    }
    json.to_string()
}
