//! From the first word to a thread: version, login, then a new thread or an earlier one, held
//! against what it was to be.
//!
//! Must not know what a turn is.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::alive::Again;
use super::usage::Tokens;
use super::{Codex, Control, Phase, reported, version, write};
use crate::dialect::envelope::ErrorReply;
use crate::dialect::lenient::{members, string};
use crate::dialect::{Effect, Effects, Fault};
use crate::limits;
use crate::model::{Event, Foreign};

/// The protocol's generation, as its schema names it.
const GENERATION: &str = "v2";

/// What the reply to `thread/start` and `thread/resume` says of the thread.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Opened<'a> {
    #[serde(borrow)]
    thread: Option<&'a RawValue>,
    #[serde(borrow)]
    approval_policy: Option<&'a RawValue>,
    #[serde(borrow)]
    approvals_reviewer: Option<&'a RawValue>,
    /// Its name where a change is told is a longer one.
    #[serde(borrow, alias = "sandboxPolicy")]
    sandbox: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
}

impl Codex {
    /// Writes the request whose reply the phase waits for.
    pub(super) fn ask(&mut self, phase: Phase, out: &mut Effects) {
        self.phase = phase;
        let id = self.fresh_id();
        let opening = &self.opening;
        let (method, line) = match (phase, &self.opening.resume) {
            (Phase::Initializing, _) => ("initialize", write::initialize(id)),
            (Phase::Account, _) => ("account/read", write::account(id)),
            (Phase::Resuming, Some(thread)) => {
                ("thread/resume", write::resume(id, thread, opening))
            }
            (Phase::Starting | Phase::Resuming, _) => ("thread/start", write::start(id, opening)),
            (Phase::Ready | Phase::Closed, _) => return,
        };
        self.control = Some(Control {
            id,
            method,
            sent: self.now,
        });
        out.push(Effect::Write(line));
    }

    /// The reply to such a request.
    pub(super) fn controlled(&mut self, outcome: Result<&RawValue, ErrorReply>, out: &mut Effects) {
        if let Err(error) = &outcome
            && self.comes_again(error, Again::Control)
        {
            return;
        }
        match (self.phase, outcome) {
            (Phase::Initializing, Ok(result)) => self.initialized(result, out),
            (Phase::Initializing, Err(error)) => {
                self.foreign(format!("none; to initialize {}", reported(&error)), out);
            }
            (Phase::Account, Ok(result)) => self.logged_in(result, out),
            (Phase::Account, Err(error)) => {
                let said = format!(
                    "the agent does not say who is logged in: {}",
                    reported(&error)
                );
                self.fault(said, out);
            }
            (Phase::Starting | Phase::Resuming, Ok(result)) => self.opened(result, out),
            (Phase::Starting, Err(error)) => self.not_opened(&error, out),
            (Phase::Resuming, Err(error)) => {
                self.refuse(Fault::NotResumed(reported(&error)), out);
            }
            (Phase::Ready | Phase::Closed, _) => {}
        }
    }

    /// The version gate, before anything else is written.
    fn initialized(&mut self, result: &RawValue, out: &mut Effects) {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Initialized<'a> {
            #[serde(borrow)]
            user_agent: Option<&'a RawValue>,
        }
        let read: Initialized<'_> = members(result).unwrap_or_default();
        let Some(agent) = string(read.user_agent) else {
            return self.foreign("none".to_owned(), out);
        };
        let Some(theirs) = version::of_agent(agent.raw()) else {
            return self.foreign(agent.show(80), out);
        };
        if !version::is_ours(theirs) {
            return self.foreign(Foreign::from(theirs).show(40), out);
        }
        self.overload.taken();
        GENERATION.clone_into(&mut self.info.protocol);
        self.info.version = Some(Foreign::from(theirs));
        out.push(Effect::Write(write::initialized()));
        self.ask(Phase::Account, out);
    }

    fn foreign(&mut self, theirs: String, out: &mut Effects) {
        let ours = version::OURS;
        self.refuse(Fault::Version { theirs, ours }, out);
    }

    /// Whether its provider wants a login, and there is one.
    fn logged_in(&mut self, result: &RawValue, out: &mut Effects) {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Account<'a> {
            #[serde(borrow)]
            account: Option<&'a RawValue>,
            #[serde(borrow)]
            requires_openai_auth: Option<&'a RawValue>,
        }
        let read: Account<'_> = members(result).unwrap_or_default();
        let is = |raw: Option<&RawValue>, word: &str| raw.is_some_and(|raw| raw.get() == word);
        let is_nobody = read.account.is_none() || is(read.account, "null");
        if is(read.requires_openai_auth, "true") && is_nobody {
            let said = "the agent is not logged in and its provider wants it to be: run codex login once outside of the supervisor and hand .codex/auth.json over by home_files, or give its key by a route";
            return self.refuse(Fault::NeedsSetup(said.to_owned()), out);
        }
        self.overload.taken();
        let phase = if self.opening.resume.is_some() {
            Phase::Resuming
        } else {
            Phase::Starting
        };
        self.ask(phase, out);
    }

    /// A request that is refused as it stands would be refused again.
    fn not_opened(&mut self, error: &ErrorReply, out: &mut Effects) {
        let said = format!("the agent opens no thread: {}", reported(error));
        let fault = match error.code.as_str() {
            "-32600" | "-32602" => Fault::NeedsSetup(said),
            _ => Fault::Protocol(said),
        };
        self.refuse(fault, out);
    }

    /// The thread is there: is it the one that was asked for, as it was asked for?
    fn opened(&mut self, result: &RawValue, out: &mut Effects) {
        let read: Opened<'_> = members(result).unwrap_or_default();
        let Some(thread) = read.thread.and_then(id_of) else {
            let said = "the agent opened a thread without an id that can be used";
            return self.fault(said.to_owned(), out);
        };
        if let Some(wanted) = &self.opening.resume
            && *wanted != thread
        {
            let said = format!(
                "it answered with the thread {} when it was asked for {}",
                thread.show(80),
                wanted.show(80)
            );
            return self.refuse(Fault::NotResumed(said), out);
        }
        if let Err(said) = self.is_as_wanted(&read) {
            return self.refuse(Fault::NeedsSetup(said), out);
        }
        self.overload.taken();
        self.thread = Some(thread.clone());
        self.info.session = Some(thread);
        self.info.model = string(read.model);
        self.info.mode = string(read.approval_policy);
        if self.phase == Phase::Starting {
            self.tokens = Tokens::of_new_thread();
        }
        let is_resumed = self.phase == Phase::Resuming;
        self.phase = Phase::Ready;
        out.push(Effect::Ready(std::mem::take(&mut self.info)));
        if is_resumed {
            out.push(Effect::Event(Event::SessionResumed {
                how: "thread/resume",
                replayed: 0,
            }));
        }
    }

    /// Whether the thread asks as it is to, and asks us.
    fn is_as_wanted(&self, read: &Opened<'_>) -> Result<(), String> {
        let wants = &self.opening.codex;
        for (what, is, wanted) in [
            (
                "approvalPolicy",
                read.approval_policy,
                wants.approvals.word(),
            ),
            (
                "approvalsReviewer",
                read.approvals_reviewer,
                write::REVIEWER,
            ),
            (
                "sandbox",
                read.sandbox.and_then(kind_of),
                self.own_sandbox(),
            ),
        ] {
            let found = string(is);
            if found.as_ref().map(Foreign::raw) != Some(wanted) {
                let found = is.map_or("none", RawValue::get);
                let found = Foreign::from(found).show(60);
                return Err(format!(
                    "the agent's thread has {found} as its {what}, and it was asked for \"{wanted}\": look into its config.toml and its administrator's requirements"
                ));
            }
        }
        Ok(())
    }

    /// The agent's own sandbox, as it was asked for.
    const fn own_sandbox(&self) -> &'static str {
        if self.opening.codex.has_walls {
            "dangerFullAccess"
        } else {
            "workspaceWrite"
        }
    }

    /// What the thread is set to changed: it must still ask, and ask us, and hold itself as it did.
    pub(super) fn settings_changed(&mut self, settings: &RawValue, out: &mut Effects) {
        let read: Opened<'_> = members(settings).unwrap_or_default();
        let wanted = self.opening.codex.approvals.word();
        let is = |raw: Option<&RawValue>, word: &str| {
            string(raw).is_some_and(|found| found.raw() == word)
        };
        if !is(read.approval_policy, wanted) || !is(read.approvals_reviewer, write::REVIEWER) {
            let found = read.approval_policy.map_or("none", RawValue::get);
            let found = Foreign::from(found).show(60);
            let said = format!(
                "the agent changed when it asks, or whom: its approvalPolicy is {found} and was to be \"{wanted}\""
            );
            return self.refuse(Fault::Unsafe(said), out);
        }
        let is_told = read.sandbox.is_some_and(|raw| raw.get() != "null");
        let sandbox = read.sandbox.and_then(kind_of);
        if is_told && !is(sandbox, self.own_sandbox()) {
            let found = Foreign::from(sandbox.map_or("none", RawValue::get)).show(60);
            let own = self.own_sandbox();
            let said =
                format!("the agent changed its own sandbox: it is {found} and was to be \"{own}\"");
            self.refuse(Fault::Unsafe(said), out);
        }
    }
}

/// The kind of a sandbox, as its policy names it.
fn kind_of(sandbox: &RawValue) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct Sandbox<'a> {
        #[serde(borrow, rename = "type")]
        kind: Option<&'a RawValue>,
    }
    members::<Sandbox<'_>>(sandbox)?.kind
}

/// The id of a thread, if it can be kept.
fn id_of(thread: &RawValue) -> Option<Foreign> {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
    }
    let id = string(members::<Named<'_>>(thread)?.id)?;
    (!id.raw().is_empty() && id.len() <= limits::FOREIGN_ID_BYTES).then_some(id)
}
