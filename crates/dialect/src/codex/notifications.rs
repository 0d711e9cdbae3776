//! Handles each of the agent's notifications.
//!
//! Must not know requests. A notification that is not typed here is passed on whole as
//! [`Event::Unknown`], under the name of its method.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::items::TextKind;
use super::turns::TurnError;
use super::usage::TokenUsage;
use super::{Codex, Step, write};
use crate::driver::Protocol as _;
use crate::lenient::{BoundedList, parse, parse_object, parse_string};
use crate::{Effect, Effects, OUT_OF_STATE, report_bad_line, report_unknown, state_changed};
use marshal_model::limits;
use marshal_model::{Event, PlanEntry, UntrustedText};
use marshal_wire::json::{BadFrame, JsonString};

/// Every member that is read of a notification.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    #[serde(borrow)]
    thread_id: Option<&'a RawValue>,
    #[serde(borrow)]
    turn_id: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    will_retry: Option<&'a RawValue>,
    #[serde(borrow)]
    plan: Option<&'a RawValue>,
    #[serde(borrow)]
    token_usage: Option<&'a RawValue>,
    #[serde(borrow)]
    thread_settings: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    summary: Option<&'a RawValue>,
    #[serde(borrow)]
    details: Option<&'a RawValue>,
    #[serde(borrow)]
    to_model: Option<&'a RawValue>,
    #[serde(borrow)]
    thread_name: Option<&'a RawValue>,
}

impl Codex {
    pub(super) fn handle_notification(
        &mut self,
        method: &str,
        params: Option<&RawValue>,
        object: &str,
        out: &mut Effects,
    ) {
        if self.step == Step::Initializing {
            return report_unknown(method, object, out);
        }
        let Some(params) = params else {
            return if write::is_opted_out(method) {
            } else {
                report_unknown(method, object, out);
            };
        };
        match method {
            "item/agentMessage/delta" | "item/plan/delta" => {
                self.delta(params, TextKind::Answer, object, out);
            }
            "item/reasoning/textDelta" | "item/reasoning/summaryTextDelta" => {
                self.delta(params, TextKind::Thought, object, out);
            }
            "item/commandExecution/outputDelta" | "item/mcpToolCall/progress" => {
                self.output(params, object, out);
            }
            "item/started" => self.item(params, false, object, out),
            "item/completed" => self.item(params, true, object, out),
            "turn/started" => self.turn_started(params, object, out),
            "turn/completed" => self.turn_completed(params, object, out),
            "serverRequest/resolved" => self.on_request_resolved(params, out),
            "item/reasoning/summaryPartAdded" => {}
            _ if write::is_opted_out(method) => {}
            // An approval without an id cannot be answered.
            _ if method.ends_with("requestApproval") => {
                self.count_bad_line(BadFrame::Shape, object.as_bytes(), out);
            }
            _ => match parse_object::<Params<'_>>(params) {
                Some(read) => self.notice(method, &read, object, out),
                None => report_unknown(method, object, out),
            },
        }
    }

    /// The notifications of which only one or two members are read.
    fn notice(&mut self, method: &str, read: &Params<'_>, object: &str, out: &mut Effects) {
        let thread = parse_string(read.thread_id);
        let is_ours = thread
            .as_ref()
            .is_some_and(|thread| self.is_our_thread(thread.raw()));
        let outcome = match method {
            "thread/tokenUsage/updated" if is_ours => self.on_token_usage(read, out),
            "turn/plan/updated" if is_ours => self.on_plan(read, object, out),
            "error" if is_ours => self.on_error(read, out),
            "thread/settings/updated" if is_ours => {
                let settings = read.thread_settings.unwrap_or(RawValue::NULL);
                self.on_settings_changed(settings, out);
                Some(())
            }
            "model/rerouted" if is_ours => parse_string(read.to_model).map(|model| {
                out.push(Effect::Event(state_changed(Some(model), None)));
            }),
            "thread/name/updated" if is_ours => parse_string(read.thread_name).map(|title| {
                out.push(Effect::Event(Event::SessionInfo {
                    title: Some(title),
                    updated_at: None,
                }));
            }),
            "warning" | "guardianWarning" => push_notice(read.message, read.details, out),
            "configWarning" | "deprecationNotice" => push_notice(read.summary, read.details, out),
            _ => None,
        };
        if outcome.is_none() {
            report_unknown(method, object, out);
        }
    }

    /// Tokens: of the running turn, or of an earlier one of a resumed thread.
    fn on_token_usage(&mut self, read: &Params<'_>, out: &mut Effects) -> Option<()> {
        let report = TokenUsage::read(read.token_usage?)?;
        let thread = parse_string(read.thread_id)?;
        let turn = parse_string(read.turn_id).unwrap_or_default();
        if !self.is_current(thread.raw(), turn.raw()) {
            self.tokens.record_earlier(&report);
            return Some(());
        }
        self.note_turn_activity(out);
        let usage = self.tokens.record_current(&report);
        out.push(Effect::Event(Event::Usage(usage)));
        if let Some((used, size)) = report.context {
            out.push(Effect::Event(Event::ContextUsed {
                used,
                size,
                cost: None,
            }));
        }
        Some(())
    }

    fn on_plan(&mut self, read: &Params<'_>, object: &str, out: &mut Effects) -> Option<()> {
        #[derive(Deserialize)]
        struct Step<'a> {
            #[serde(borrow)]
            step: JsonString<'a>,
            #[serde(borrow)]
            status: Option<&'a RawValue>,
        }
        let list: BoundedList<'_, { limits::PLAN_ENTRIES }> = parse(read.plan?)?;
        let thread = parse_string(read.thread_id)?;
        let turn = parse_string(read.turn_id).unwrap_or_default();
        if !self.is_current(thread.raw(), turn.raw()) {
            report_bad_line(OUT_OF_STATE, object.as_bytes(), out);
            return Some(());
        }
        let entry = |raw: &RawValue| {
            let step: Step<'_> = parse_object(raw)?;
            let status = parse_string(step.status).map(|word| match word.raw() {
                "inProgress" => UntrustedText::from("in_progress"),
                _ => word,
            });
            Some(PlanEntry {
                content: UntrustedText::new(step.step.0.into_owned()),
                priority: None,
                status,
            })
        };
        self.note_turn_activity(out);
        out.push(Effect::Event(Event::Plan {
            entries: list.items.into_iter().filter_map(entry).collect(),
        }));
        Some(())
    }

    /// An error. One after which the agent continues by itself is only a notice.
    fn on_error(&mut self, read: &Params<'_>, out: &mut Effects) -> Option<()> {
        let error = TurnError::read(read.error?)?;
        if read.will_retry.is_some_and(|raw| raw.get() == "true") {
            out.push(Effect::Event(Event::Notice {
                severity: Some(UntrustedText::from("warning")),
                title: error.message,
                description: Some(error.code).filter(|code| !code.raw().is_empty()),
            }));
        } else {
            self.report(error, out);
        }
        Some(())
    }
}

/// A notice for people.
fn push_notice(
    title: Option<&RawValue>,
    details: Option<&RawValue>,
    out: &mut Effects,
) -> Option<()> {
    out.push(Effect::Event(Event::Notice {
        severity: Some(UntrustedText::from("warning")),
        title: parse_string(title)?,
        description: parse_string(details),
    }));
    Some(())
}
