//! From the first message to a thread: version, login, then a new thread or an earlier one,
//! compared with what was requested.
//!
//! Must not know what a turn is.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::keepalive::RetryTarget;
use super::usage::TurnUsage;
use super::{Codex, Step, version, write};
use crate::driver::{Phase, Protocol as _};
use crate::jsonrpc::{ErrorReply, Outcome};
use crate::lenient::{parse_id, parse_object, parse_string};
use crate::{ChannelError, Effect, Effects};
use marshal_model::{Event, UntrustedText};

/// The protocol's generation, as its schema names it.
const GENERATION: &str = "v2";

/// The thread's settings in the reply to `thread/start` and `thread/resume`.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ThreadResult<'a> {
    #[serde(borrow)]
    thread: Option<&'a RawValue>,
    #[serde(borrow)]
    approval_policy: Option<&'a RawValue>,
    #[serde(borrow)]
    approvals_reviewer: Option<&'a RawValue>,
    /// The name of this member in a notification is longer.
    #[serde(borrow, alias = "sandboxPolicy")]
    sandbox: Option<&'a RawValue>,
    #[serde(borrow)]
    model: Option<&'a RawValue>,
}

impl Codex {
    /// Writes the request that a step waits for.
    pub(super) fn send_request(&mut self, step: Step, out: &mut Effects) {
        self.step = step;
        let (now, opening, requests) = (self.channel.now, &self.opening, &mut self.requests);
        match (step, &opening.resume) {
            (Step::Initializing, _) => {
                requests.write_awaited("initialize", now, out, write::initialize);
            }
            (Step::Account, _) => requests.write_awaited("account/read", now, out, write::account),
            (Step::Resuming, Some(thread)) => {
                requests.write_awaited("thread/resume", now, out, |id| {
                    write::resume(id, thread, opening)
                });
            }
            (Step::Starting | Step::Resuming, _) => {
                requests.write_awaited("thread/start", now, out, |id| write::start(id, opening));
            }
        }
    }

    /// Handles the reply to such a request.
    pub(super) fn on_control_reply(&mut self, outcome: Outcome<'_>, out: &mut Effects) {
        if let Err(error) = &outcome
            && self.schedule_retry(error, RetryTarget::Control)
        {
            return;
        }
        match (self.step, outcome) {
            (Step::Initializing, Ok(result)) => self.on_initialize_reply(result, out),
            (Step::Initializing, Err(error)) if !error.is_about_version() => {
                let why = format!("the agent cannot start: {}", error.describe_without_data());
                self.fail_channel(ChannelError::NeedsSetup(why), out);
            }
            (Step::Initializing, Err(error)) => {
                self.fail_version(
                    format!("none; to initialize {}", error.describe_without_data()),
                    out,
                );
            }
            (Step::Account, Ok(result)) => self.on_account_reply(result, out),
            (Step::Account, Err(error)) => {
                let message = format!(
                    "the agent did not report who is logged in: {}",
                    error.describe_without_data()
                );
                self.fail_protocol(message, out);
            }
            (Step::Starting | Step::Resuming, Ok(result)) => self.on_thread_reply(result, out),
            (Step::Starting, Err(error)) => self.fail_thread_start(&error, out),
            (Step::Resuming, Err(error)) => {
                self.fail_channel(ChannelError::NotResumed(error.describe_without_data()), out);
            }
        }
    }

    /// The version gate, before anything else is written.
    fn on_initialize_reply(&mut self, result: &RawValue, out: &mut Effects) {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Initialized<'a> {
            #[serde(borrow)]
            user_agent: Option<&'a RawValue>,
        }
        let read: Initialized<'_> = parse_object(result).unwrap_or_default();
        let Some(agent) = parse_string(read.user_agent) else {
            return self.fail_version("none".to_owned(), out);
        };
        let Some(theirs) = version::parse_user_agent(agent.raw()) else {
            return self.fail_version(agent.escape_for_display(80), out);
        };
        if !version::is_supported_version(theirs) {
            return self.fail_version(UntrustedText::from(theirs).escape_for_display(40), out);
        }
        self.retries.reset();
        GENERATION.clone_into(&mut self.info.protocol);
        self.info.version = Some(UntrustedText::from(theirs));
        out.push(Effect::Write(write::initialized()));
        self.send_request(Step::Account, out);
    }

    /// Whether the provider requires a login, and whether there is one.
    fn on_account_reply(&mut self, result: &RawValue, out: &mut Effects) {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Account<'a> {
            #[serde(borrow)]
            account: Option<&'a RawValue>,
            #[serde(borrow)]
            requires_openai_auth: Option<&'a RawValue>,
        }
        let read: Account<'_> = parse_object(result).unwrap_or_default();
        let is = |raw: Option<&RawValue>, word: &str| raw.is_some_and(|raw| raw.get() == word);
        let is_nobody = read.account.is_none() || is(read.account, "null");
        if is(read.requires_openai_auth, "true") && is_nobody {
            let message = "the agent is not logged in, but its provider requires a login: run codex login once outside of the supervisor and hand .codex/auth.json over by home_files, or give its key by a route";
            return self.fail_channel(ChannelError::NeedsSetup(message.to_owned()), out);
        }
        self.retries.reset();
        let step = if self.opening.resume.is_some() {
            Step::Resuming
        } else {
            Step::Starting
        };
        self.send_request(step, out);
    }

    /// A request that is rejected once would be rejected again.
    fn fail_thread_start(&mut self, error: &ErrorReply, out: &mut Effects) {
        let message = format!(
            "the agent did not open a thread: {}",
            error.describe_without_data()
        );
        let fault = match error.code.as_str() {
            "-32600" | "-32602" => ChannelError::NeedsSetup(message),
            _ => ChannelError::Protocol(message),
        };
        self.fail_channel(fault, out);
    }

    /// The thread is open: checks that it is the requested one, with the requested settings.
    fn on_thread_reply(&mut self, result: &RawValue, out: &mut Effects) {
        let read: ThreadResult<'_> = parse_object(result).unwrap_or_default();
        let Some(thread) = read.thread.and_then(thread_id) else {
            let message = "the agent opened a thread without a usable id";
            return self.fail_protocol(message.to_owned(), out);
        };
        if let Some(wanted) = &self.opening.resume
            && *wanted != thread
        {
            let message = format!(
                "it answered with the thread {} instead of {}",
                thread.escape_for_display(80),
                wanted.escape_for_display(80)
            );
            return self.fail_channel(ChannelError::NotResumed(message), out);
        }
        if let Err(message) = self.check_thread_settings(&read) {
            return self.fail_channel(ChannelError::NeedsSetup(message), out);
        }
        self.retries.reset();
        self.thread = Some(thread.clone());
        self.info.session = Some(thread);
        self.info.model = parse_string(read.model);
        self.info.mode = parse_string(read.approval_policy);
        if self.step == Step::Starting {
            self.tokens = TurnUsage::of_new_thread();
        }
        let is_resumed = self.step == Step::Resuming;
        self.channel.phase = Phase::Ready;
        out.push(Effect::Ready(std::mem::take(&mut self.info)));
        if is_resumed {
            out.push(Effect::Event(Event::SessionResumed {
                how: "thread/resume".into(),
                replayed: 0,
            }));
        }
    }

    /// Checks that the thread asks as configured, and asks us.
    fn check_thread_settings(&self, read: &ThreadResult<'_>) -> Result<(), String> {
        let wants = &self.opening.codex;
        for (what, is, wanted) in [
            (
                "approvalPolicy",
                read.approval_policy,
                wants.approval_policy.as_str(),
            ),
            (
                "approvalsReviewer",
                read.approvals_reviewer,
                write::REVIEWER,
            ),
            (
                "sandbox",
                read.sandbox.and_then(sandbox_kind),
                self.expected_sandbox(),
            ),
        ] {
            let found = parse_string(is);
            if found.as_ref().map(UntrustedText::raw) != Some(wanted) {
                let found = is.map_or("none", RawValue::get);
                let found = UntrustedText::from(found).escape_for_display(60);
                return Err(format!(
                    "the agent's thread has {found} as its {what} instead of \"{wanted}\"; check its config.toml and its administrator's requirements"
                ));
            }
        }
        Ok(())
    }

    /// The agent's own sandbox, as it was requested.
    const fn expected_sandbox(&self) -> &'static str {
        if self.opening.codex.has_sandbox {
            "dangerFullAccess"
        } else {
            "workspaceWrite"
        }
    }

    /// The thread's settings changed. It must still ask, ask us, and have the same sandbox.
    pub(super) fn on_settings_changed(&mut self, settings: &RawValue, out: &mut Effects) {
        let read: ThreadResult<'_> = parse_object(settings).unwrap_or_default();
        let wanted = self.opening.codex.approval_policy.as_str();
        let is = |raw: Option<&RawValue>, word: &str| {
            parse_string(raw).is_some_and(|found| found.raw() == word)
        };
        if !is(read.approval_policy, wanted) || !is(read.approvals_reviewer, write::REVIEWER) {
            let found = read.approval_policy.map_or("none", RawValue::get);
            let found = UntrustedText::from(found).escape_for_display(60);
            let message = format!(
                "the agent changed when it asks for approval, or who answers: its approvalPolicy is {found} instead of \"{wanted}\""
            );
            return self.fail_channel(ChannelError::UnsafeState(message), out);
        }
        let has_sandbox = read.sandbox.is_some_and(|raw| raw.get() != "null");
        let sandbox = read.sandbox.and_then(sandbox_kind);
        if has_sandbox && !is(sandbox, self.expected_sandbox()) {
            let found =
                UntrustedText::from(sandbox.map_or("none", RawValue::get)).escape_for_display(60);
            let own = self.expected_sandbox();
            let message =
                format!("the agent changed its own sandbox: it is {found} instead of \"{own}\"");
            self.fail_channel(ChannelError::UnsafeState(message), out);
        }
    }
}

/// The sandbox's kind, as its policy names it.
fn sandbox_kind(sandbox: &RawValue) -> Option<&RawValue> {
    #[derive(Deserialize)]
    struct Sandbox<'a> {
        #[serde(borrow, rename = "type")]
        kind: Option<&'a RawValue>,
    }
    parse_object::<Sandbox<'_>>(sandbox)?.kind
}

/// The thread's id, if it is usable.
fn thread_id(thread: &RawValue) -> Option<UntrustedText> {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        id: Option<&'a RawValue>,
    }
    parse_id(parse_object::<Named<'_>>(thread)?.id)
}
