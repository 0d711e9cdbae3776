//! Handles the events in a message.
//!
//! Owns how events are applied to the state of the channel. The state itself is in the parent
//! module.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::rules::{EndMessage, Request, RuleMessage, SlashMessage};
use super::{CompiledDefinition, Custom, OpenRequest, Phase, path_tree};
use crate::custom::templates::{self, TemplateValues};
use crate::driver::Protocol as _;
use crate::named_turn::Turn;
use crate::slash::{self, SlashReply};
use crate::turn_end::TurnEnd;
use crate::{
    ChannelError, Effect, Effects, OUT_OF_STATE, describe_agent_error, lenient, report_bad_line,
};
use marshal_config::dialect_definition::{
    AcceptedVersion, EndsTurn, EventDetail, Placeholder, UnansweredPolicy,
};
use marshal_model::limits;
use marshal_model::{AgentInfo, ErrorOrigin, Event, PermissionRequest, TurnOutcome, UntrustedText};

/// The rule that a message matched, and the turn that it names.
pub(super) struct RuleContext<'a> {
    pub(super) plan: &'a CompiledDefinition,
    pub(super) rule: usize,
    pub(super) turn: Option<&'a str>,
    pub(super) line: &'a [u8],
}

impl RuleContext<'_> {
    fn action(&self) -> &EventDetail {
        let rule = self.plan.definition.rules.get(self.rule);
        rule.map_or(&EventDetail::Nothing, |rule| &rule.detail)
    }

    fn report_out_of_state(&self, out: &mut Effects) {
        report_bad_line(OUT_OF_STATE, self.line, out);
    }
}

impl Custom {
    pub(super) fn handle_rule_message(
        &mut self,
        rule_message: RuleMessage<'_>,
        at: &RuleContext<'_>,
        out: &mut Effects,
    ) {
        match rule_message {
            RuleMessage::Ready(version, info) => self.on_ready(version, *info, at, out),
            RuleMessage::Send(id) => self.reply(id, at, out),
            RuleMessage::NotResumed(why) => {
                let why = why.escape_for_display(300);
                self.fail_channel(ChannelError::NotResumed(why), out);
            }
            RuleMessage::Failed(why) => {
                let text = format!("the agent reported: {}", why.escape_for_display(300));
                self.fail_protocol(text, out);
            }
            early if self.channel.phase == Phase::Handshaking => {
                self.handle_early_message(early, at, out);
            }
            RuleMessage::TurnStarted(id) => self.turn_started(id, at, out),
            RuleMessage::Text(delta) => {
                let delta = delta.into();
                self.push_turn_event(Event::Text { delta }, at, out);
            }
            RuleMessage::Thought(delta) => {
                let delta = delta.into();
                self.push_turn_event(Event::Thought { delta }, at, out);
            }
            RuleMessage::Tool(event) | RuleMessage::ToolEnd(event) => {
                if !self.note_turn_activity(at.turn) {
                    at.report_out_of_state(out);
                }
                out.push(Effect::Event(event));
            }
            RuleMessage::Permission(request) => self.handle_permission_request(*request, at, out),
            RuleMessage::Withdraw(name) => match self.open_requests.close(&name) {
                Some((key, _)) => out.push(Effect::RequestWithdrawn(key)),
                None => report_bad_line("unknown_id", at.line, out),
            },
            RuleMessage::Usage(usage) if !self.turn.is_none() => {
                self.usage.input = self.usage.input.saturating_add(usage.input);
                self.usage.output = self.usage.output.saturating_add(usage.output);
            }
            RuleMessage::Usage(_) => {}
            RuleMessage::State(event) => {
                self.update_state(event, out);
            }
            RuleMessage::End(end) => self.on_turn_end(*end, at, out),
            RuleMessage::Error {
                code,
                message,
                origin,
            } => self.error(code, message, origin, at, out),
            RuleMessage::Slash(slash) => self.slash_result(*slash, at, out),
        }
    }

    /// The version gate: before anything else than the definition's first messages is written.
    fn on_ready(
        &mut self,
        version: Option<&RawValue>,
        mut info: AgentInfo,
        at: &RuleContext<'_>,
        out: &mut Effects,
    ) {
        if self.channel.phase != Phase::Handshaking {
            return self.fail_protocol("the agent sent ready twice".to_owned(), out);
        }
        let accepted = &at.plan.definition.accepted_versions;
        if !accepted.is_empty() {
            let reported = version.map_or("none", RawValue::get);
            if !version.is_some_and(|version| accepted.iter().any(|one| fits(version, one))) {
                let theirs = UntrustedText::from(reported).escape_for_display(40);
                let ours = describe_versions(accepted);
                return self.fail_channel(ChannelError::TableVersion { theirs, ours }, out);
            }
            info.protocol = version
                .and_then(path_tree::parse_name)
                .map_or_else(|| reported.to_owned(), Cow::into_owned);
        }
        let is_other = |own: &UntrustedText| Some(own.raw()) != self.session.as_deref();
        if self.resuming && info.session.as_ref().is_some_and(is_other) {
            let why = "it opened another session than the one to resume";
            return self.fail_channel(ChannelError::NotResumed(why.to_owned()), out);
        }
        self.finish_handshake(at.plan, info, out);
    }

    pub(super) fn finish_handshake(
        &mut self,
        plan: &CompiledDefinition,
        mut info: AgentInfo,
        out: &mut Effects,
    ) {
        if let Some(fault) = self.mode_guard.check_initial(info.mode.as_ref()) {
            return self.fail_channel(fault, out);
        }
        self.channel.phase = Phase::Ready;
        if plan.definition.accepted_versions.is_empty() {
            info.protocol.clone_from(&plan.definition.name);
        }
        if self.resuming {
            info.session = info
                .session
                .or_else(|| self.session.clone().map(UntrustedText::new));
        }
        self.session = info.session.as_ref().map(|own| own.raw().to_owned());
        out.push(Effect::Ready(info));
        if self.resuming {
            out.push(Effect::Event(Event::SessionResumed {
                how: "resume".into(),
                replayed: 0,
            }));
        }
    }

    /// Updates the model, mode and context; `false` if the agent must end because of it.
    fn update_state(&mut self, state: Event, out: &mut Effects) -> bool {
        let fault = match &state {
            Event::StateChanged {
                mode: Some(mode), ..
            } => self.mode_guard.check_change(mode),
            _ => None,
        };
        out.push(Effect::Event(state));
        let is_safe = fault.is_none();
        if let Some(fault) = fault {
            self.fail_channel(fault, out);
        }
        is_safe
    }

    /// Handles an event before the agent is ready: a fault, but an error's text is reported.
    fn handle_early_message(
        &mut self,
        rule_message: RuleMessage<'_>,
        at: &RuleContext<'_>,
        out: &mut Effects,
    ) {
        let is_error = matches!(rule_message, RuleMessage::Error { .. });
        if at.plan.definition.allows_early && !is_error {
            if let RuleMessage::Permission(request) = rule_message {
                let definition = &at.plan.definition;
                self.deny_at_once(definition, request.id, "the agent is not ready", out);
            }
            return;
        }
        let RuleMessage::Error {
            code,
            message,
            origin,
        } = rule_message
        else {
            return self.fail_too_early(out);
        };
        let (event, text) = describe_agent_error(code, message, origin);
        out.push(Effect::Event(event));
        if !at.plan.definition.allows_early {
            self.fail_protocol(format!("{text}, before it was ready"), out);
        }
    }

    /// Writes a reply of the definition.
    fn reply(&mut self, id: Option<&RawValue>, at: &RuleContext<'_>, out: &mut Effects) {
        let EventDetail::Send(template) = at.action() else {
            return;
        };
        if self.channel.is_shutting_down {
            return;
        }
        if template.contains(Placeholder::Id) && id.is_none() {
            return report_bad_line("bad_shape", at.line, out);
        }
        let known = self.known();
        let filling = TemplateValues {
            texts: &known,
            id,
            ..TemplateValues::default()
        };
        out.push(Effect::Write(templates::line(template, &filling)));
    }

    /// Whether an event of this turn shows that the running one continues.
    fn note_turn_activity(&mut self, id: Option<&str>) -> bool {
        let is_current = self.turn.note_activity(id);
        self.is_prompt_accepted |= is_current;
        is_current
    }

    fn turn_started(&mut self, id: Option<String>, at: &RuleContext<'_>, out: &mut Effects) {
        if self.turn.state != Turn::Sent {
            return at.report_out_of_state(out);
        }
        let id = id.or_else(|| at.turn.map(str::to_owned));
        out.push(Effect::Event(Event::TurnStarted {
            turn: id.clone().map(UntrustedText::new),
        }));
        self.turn.state = Turn::Running(id);
        self.is_prompt_accepted = true;
        // The first one may have found no turn.
        if self.cancelling && !self.channel.is_shutting_down {
            self.interrupt(&at.plan.definition, out);
        }
    }

    fn push_turn_event(&mut self, event: Event, at: &RuleContext<'_>, out: &mut Effects) {
        if !self.note_turn_activity(at.turn) {
            return at.report_out_of_state(out);
        }
        out.push(Effect::Event(event));
    }

    fn handle_permission_request(
        &mut self,
        request: Request<'_>,
        at: &RuleContext<'_>,
        out: &mut Effects,
    ) {
        let definition = &at.plan.definition;
        let Some(replies) = &definition.permission else {
            return at.report_out_of_state(out);
        };
        if self.is_winding_down() {
            at.report_out_of_state(out);
            if replies.unanswered == UnansweredPolicy::Deny {
                self.deny_at_once(definition, request.id, "the turn is cancelled", out);
            }
            return;
        }
        if self.turn.is_none() && !self.slash.is_open() {
            at.report_out_of_state(out);
            return self.deny_at_once(definition, request.id, "no turn is running", out);
        }
        self.is_prompt_accepted = self.is_prompt_accepted || !self.turn.is_none();
        // A larger input cannot be allowed.
        let echo = request
            .input
            .filter(|_| replies.allow.contains(Placeholder::Input));
        let is_cut = echo.is_some_and(|raw| raw.get().len() > limits::PERMISSION_INPUT_BYTES);
        let open = OpenRequest {
            id: request.id.to_owned(),
            input: echo.filter(|_| !is_cut).map(ToOwned::to_owned),
            is_input_omitted: is_cut,
            tool: request.tool.clone(),
        };
        let key = match self.open_requests.open(&mut self.ids, &request.name, open) {
            Ok(key) => key,
            Err(clash) => {
                report_bad_line(clash.as_str(), at.line, out);
                self.deny_at_once(definition, request.id, clash.describe(), out);
                return self.count_rejection(clash, out);
            }
        };
        out.push(Effect::PermissionRequest(PermissionRequest {
            key,
            tool_id: request.tool_id,
            tool: request.tool,
            input: lenient::raw_or_null(request.input),
            claims: request.claimed,
        }));
    }

    fn on_turn_end(&mut self, end: EndMessage, at: &RuleContext<'_>, out: &mut Effects) {
        let current = self.turn.is_current(at.turn);
        if !current && !self.turn.take_late_end(at.turn) {
            return at.report_out_of_state(out);
        }
        out.extend(end.files.into_iter().map(|(tool, path)| {
            Effect::Event(Event::FileUpdated {
                tool,
                path,
                sha256: None,
                version: None,
            })
        }));
        if !current {
            return;
        }
        let (outcome, odd) = outcome(at.action(), end.reason.as_deref());
        let most = limits::TURN_MUTATIONS;
        let beyond = (end.omitted_files > 0).then(|| {
            let beyond = end.omitted_files;
            format!("only the first {most} changed files are listed; {beyond} more are not")
        });
        let is_failed = outcome == TurnOutcome::Failed;
        let error = end
            .error
            .filter(|_| is_failed)
            .map(|error| format!("the agent reported: {}", error.escape_for_display(300)));
        let ended = TurnEnd {
            outcome,
            stop_reason: end.reason.map(UntrustedText::new),
            usage: end.usage,
            detail: error.or(odd.filter(|_| is_failed)).or(beyond),
        };
        self.end_turn(ended, at.turn, out);
    }

    fn slash_result(&mut self, message: SlashMessage, at: &RuleContext<'_>, out: &mut Effects) {
        let output = self.slash.finish();
        // An unrequested one must not make an exit look expected, but its mode counts.
        if output == SlashReply::Unsolicited {
            at.report_out_of_state(out);
            if let Some(state) = message.state {
                self.update_state(state, out);
            }
            return;
        }
        if self.turn.is_none() {
            self.open_requests.withdraw_all(out);
        }
        let end = match &message.result {
            Event::SlashResult { text, .. } => slash::answer_effect(true, text),
            _ => slash::answer_effect(true, &UntrustedText::default()),
        };
        out.push(Effect::Event(message.result));
        if message.clear {
            out.push(Effect::SessionCleared);
        }
        if message
            .state
            .is_some_and(|state| !self.update_state(state, out))
        {
            return;
        }
        if output == SlashReply::Expected {
            out.push(end);
        }
        if message.exit {
            self.channel.is_shutting_down = true;
            out.push(Effect::ExitExpected);
        }
    }

    fn error(
        &mut self,
        code: UntrustedText,
        message: UntrustedText,
        origin: ErrorOrigin,
        at: &RuleContext<'_>,
        out: &mut Effects,
    ) {
        let rejected = match (&self.turn.state, at.turn) {
            (Turn::None, _) => false,
            (Turn::Sent, None) => true,
            // Where no message marks a turn's beginning, the error belongs to the prompt as long as
            // the prompt has no output.
            (Turn::Running(_), None) => !self.is_prompt_accepted,
            (_, Some(_)) => self.note_turn_activity(at.turn),
        };
        let ends = match at.action() {
            EventDetail::EndsTurn(EndsTurn::Always) => !self.turn.is_none(),
            EventDetail::EndsTurn(EndsTurn::Never) => false,
            _ => rejected,
        };
        let is_of_slash =
            self.turn.is_none() && at.turn.is_none() && self.slash.finish() == SlashReply::Expected;
        let end = is_of_slash.then(|| slash::answer_effect(false, &message));
        let (event, text) = describe_agent_error(code, message, origin);
        out.push(Effect::Event(event));
        out.extend(end);
        if ends {
            self.end_turn(TurnEnd::failure(text), at.turn, out);
            self.turn.expect_late_end();
        }
    }
}

/// The turn's outcome for the agent's stop reason, and a note about anything unusual.
fn outcome(event: &EventDetail, reason: Option<&str>) -> (TurnOutcome, Option<String>) {
    let EventDetail::Outcome {
        by_reason: by_word,
        otherwise,
    } = event
    else {
        return (TurnOutcome::Failed, None);
    };
    let mut words = by_word.iter();
    let known = reason.and_then(|reason| words.find(|(word, _)| word == reason));
    if let Some((_, outcome)) = known {
        return (*outcome, None);
    }
    let odd = match reason {
        Some(reason) => format!(
            "the dialect definition has no outcome for the agent's stop reason {}",
            UntrustedText::from(reason).escape_for_display(80)
        ),
        None => return (*otherwise, None),
    };
    (*otherwise, Some(odd))
}

/// Whether a version is accepted.
fn fits(version: &RawValue, accepted: &AcceptedVersion) -> bool {
    let text = || serde_json::from_str::<String>(version.get()).ok();
    match accepted {
        AcceptedVersion::Integer(number) => version.get() == number.to_string(),
        AcceptedVersion::Text(own) => text().is_some_and(|text| text == *own),
        AcceptedVersion::Prefix(begin) => text().is_some_and(|text| text.starts_with(begin)),
    }
}

/// The accepted versions, for a message.
fn describe_versions(accepted: &[AcceptedVersion]) -> String {
    let words = accepted.iter().map(|one| match one {
        AcceptedVersion::Integer(number) => number.to_string(),
        AcceptedVersion::Text(text) => text.clone(),
        AcceptedVersion::Prefix(begin) => format!("{begin}*"),
    });
    UntrustedText::new(words.collect::<Vec<_>>().join(" or ")).escape_for_display(120)
}
