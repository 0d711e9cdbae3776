//! The agent's requests: approvals of commands, of changes to files and of calls of tool servers,
//! and all others, which are refused with the least that the protocol accepts.
//!
//! Must not decide anything. A permission request goes to the session, and its answer comes back as
//! a command.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::calls::{self, COMMAND, ToolCall};
use super::members::Members;
use super::{Codex, Step, write};
use crate::driver::Protocol as _;
use crate::jsonrpc::{INVALID_PARAMS, RequestId, UNVERSIONED};
use crate::lenient::{BoundedList, parse, parse_object, parse_string};
use crate::open_requests::RejectReason;
use crate::{DialectError, Effect, Effects, OUT_OF_STATE, report_bad_line, report_unknown};
use marshal_model::limits;
use marshal_model::{
    AgentClaims, PermissionRequest, PermissionRequestKey, PermissionResponse, UntrustedText,
};

const ACCEPT: &str = "accept";
/// Denies this request; the turn continues.
const DECLINE: &str = "decline";
/// Denies this request and ends the turn.
const CANCEL: &str = "cancel";

/// A request of a tool server to a person; also one of the agent itself, before it calls a server's
/// tool.
const TOOL_REQUEST: &str = "mcpServer/elicitation/request";

/// The maximum number of answers that a request offers: the schema has six.
const OFFERED: usize = 64;

/// Stands for the input of a request whose changes are unknown. It is not an object, so it cannot
/// be evaluated.
const NO_ITEM: &str = "\"the changes that this is about are not known\"";

/// The form of a request, and so of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ApprovalForm {
    /// `item/…/requestApproval`: the answer is one word.
    Item,
    /// `execCommandApproval`, `applyPatchApproval`: other words, with a field for a reason.
    Old,
    /// `mcpServer/elicitation/request`: an action, and the content of its form, which is empty.
    Tool,
}

impl ApprovalForm {
    fn allow(self, id: &str) -> Vec<u8> {
        match self {
            Self::Item => write::approval_decision(id, ACCEPT),
            Self::Old => write::approval_decision(id, "approved"),
            Self::Tool => write::elicitation_acceptance(id),
        }
    }

    fn cancel(self, id: &str) -> Vec<u8> {
        match self {
            Self::Item => write::approval_decision(id, CANCEL),
            Self::Old => write::approval_decision(id, "abort"),
            Self::Tool => write::elicitation_response(id, CANCEL),
        }
    }

    fn deny(self, id: &str, reason: &str) -> Vec<u8> {
        match self {
            Self::Item => write::approval_decision(id, DECLINE),
            Self::Old => write::approval_denial(id, reason),
            Self::Tool => write::elicitation_response(id, DECLINE),
        }
    }

    /// Whether a denial has no field for its reason.
    const fn has_no_reason(self) -> bool {
        matches!(self, Self::Item | Self::Tool)
    }
}

/// The data for the answer to an open request.
#[derive(Debug, Clone)]
pub(super) struct OpenApproval {
    form: ApprovalForm,
    /// Whether it may be allowed: only if everything it is about is known.
    is_allowable: bool,
    /// A short description of the request.
    about: UntrustedText,
}

/// An approval request, as it was read.
struct ApprovalRequest {
    form: ApprovalForm,
    call: Option<ToolCall>,
    /// The id of its call, if that call is reported.
    tool_id: Option<UntrustedText>,
    /// Whether it belongs to the running turn.
    is_current: bool,
    is_allowable: bool,
    reason: Option<UntrustedText>,
    method: &'static str,
}

impl Codex {
    pub(super) fn handle_request(
        &mut self,
        id: &RequestId,
        method: &str,
        params: Option<&RawValue>,
        line: &[u8],
        out: &mut Effects,
    ) {
        // Nothing is written before the agent's version is known.
        if self.step == Step::Initializing {
            return report_bad_line(OUT_OF_STATE, line, out);
        }
        let read = params.and_then(Members::read);
        let approval = match method {
            "item/commandExecution/requestApproval" => {
                read.and_then(|members| self.command(&members))
            }
            "item/fileChange/requestApproval" => read.and_then(|members| self.changes(&members)),
            "execCommandApproval" => read.and_then(|members| self.old_command(&members)),
            "applyPatchApproval" => read.and_then(|members| self.old_changes(&members)),
            TOOL_REQUEST => {
                let tool = |members: Members<'_>| {
                    let call = calls::call_from_tool_request(&members)?;
                    Some(self.tool(&members, call))
                };
                match read.and_then(tool) {
                    Some(approval) => approval,
                    // A server's own request.
                    None => return self.handle_other_request(id, method, line, out),
                }
            }
            _ => return self.handle_other_request(id, method, line, out),
        };
        match approval {
            Some(approval) => self.handle_approval(id.json(), approval, line, out),
            None => self.reject_unreadable(id.json(), line, out),
        }
    }

    /// Handles a request that nobody is asked about: it is reported, and nothing is granted.
    fn handle_other_request(
        &mut self,
        id: &RequestId,
        method: &str,
        line: &[u8],
        out: &mut Effects,
    ) {
        self.open_requests
            .withdraw_original(&mut self.ids, id.json(), line, out);
        if let Ok(object) = std::str::from_utf8(line) {
            report_unknown(method, object, out);
        }
        let id = id.json();
        out.push(Effect::Write(match method {
            "item/permissions/requestApproval" => write::empty_permissions(id),
            TOOL_REQUEST => write::elicitation_response(id, DECLINE),
            _ => UNVERSIONED.method_not_found(id),
        }));
    }

    /// Rejects an approval of unknown shape.
    fn reject_unreadable(&mut self, id: &str, line: &[u8], out: &mut Effects) {
        report_bad_line("bad_shape", line, out);
        self.open_requests.withdraw(id, out);
        let message = "the request cannot be read";
        let answer = UNVERSIONED.error(id, INVALID_PARAMS, message);
        out.push(Effect::Write(answer));
    }

    /// A command, as the request itself reports it. A request for a part of another command has an
    /// id of its own, and its call is not reported.
    fn command(&self, members: &Members<'_>) -> Option<ApprovalRequest> {
        let (thread, turn) = (members.text("threadId")?, members.text("turnId")?);
        let item = members.text("itemId")?;
        let call = calls::call_from_request(members)?;
        let id = self.call_id(thread.raw(), item.raw());
        let is_part = members.get("approvalId").is_some();
        // The reported call must be the one that the request is for.
        let running_call = self.items.running(&id).filter(|_| !is_part);
        let is_reported =
            running_call.is_none_or(|running_call| running_call.call.as_ref() == Some(&call));
        let is_offered = members.get("availableDecisions").is_none_or(offers_accept);
        Some(ApprovalRequest {
            form: ApprovalForm::Item,
            call: Some(call),
            tool_id: (!is_part).then(|| UntrustedText::new(id)),
            is_current: self.is_current(thread.raw(), turn.raw()),
            is_allowable: is_reported && is_offered && self.is_our_thread(thread.raw()),
            reason: members.text("reason"),
            method: COMMAND,
        })
    }

    /// Changes to files: all those of the item that the request names, which must be known and not
    /// have ended. It may also ask for a directory; that cannot be evaluated.
    fn changes(&self, members: &Members<'_>) -> Option<ApprovalRequest> {
        const KNOWN: &[&str] = &["threadId", "turnId", "itemId", "startedAtMs", "reason"];
        let (thread, turn) = (members.text("threadId")?, members.text("turnId")?);
        let id = self.call_id(thread.raw(), members.text("itemId")?.raw());
        let call = self
            .items
            .running(&id)
            .and_then(|tracked| tracked.call.clone());
        let call = call.filter(|call| call.name.raw() != COMMAND);
        let wants_more = members.others(KNOWN).next().is_some();
        Some(ApprovalRequest {
            form: ApprovalForm::Item,
            is_allowable: call.is_some() && !wants_more && self.is_our_thread(thread.raw()),
            call,
            tool_id: Some(UntrustedText::new(id)),
            is_current: self.is_current(thread.raw(), turn.raw()),
            reason: members.text("reason"),
            method: "fileChange",
        })
    }

    /// A call of a tool server's tool, which must be running: the request does not name it.
    fn tool(&mut self, members: &Members<'_>, call: ToolCall) -> Option<ApprovalRequest> {
        let (thread, turn) = (members.text("threadId")?, members.text("turnId")?);
        let is_ours = self.is_our_thread(thread.raw());
        let id = self.items.match_request(&call);
        Some(ApprovalRequest {
            form: ApprovalForm::Tool,
            is_allowable: id.is_some() && is_ours,
            call: Some(call),
            tool_id: id.map(UntrustedText::new),
            is_current: self.is_current(thread.raw(), turn.raw()),
            reason: None,
            method: "",
        })
    }

    /// A command in the older form, which names no turn.
    fn old_command(&self, members: &Members<'_>) -> Option<ApprovalRequest> {
        let call = calls::call_from_legacy_request(members)?;
        self.old(members, call, true)
    }

    /// Changes in the older form, which contains them.
    fn old_changes(&self, members: &Members<'_>) -> Option<ApprovalRequest> {
        const KNOWN: &[&str] = &["conversationId", "callId", "fileChanges", "reason"];
        let call = calls::call_from_legacy_patch(members)?;
        let wants_more = members.others(KNOWN).next().is_some();
        self.old(members, call, !wants_more)
    }

    fn old(&self, members: &Members<'_>, call: ToolCall, may_be: bool) -> Option<ApprovalRequest> {
        let thread = members.text("conversationId")?;
        let is_ours = self.is_our_thread(thread.raw());
        let id = members.text("callId")?;
        Some(ApprovalRequest {
            form: ApprovalForm::Old,
            call: Some(call),
            tool_id: Some(UntrustedText::new(self.call_id(thread.raw(), id.raw()))),
            is_current: is_ours && self.has_named_turn(),
            is_allowable: may_be && is_ours,
            reason: members.text("reason"),
            method: "",
        })
    }

    fn handle_approval(
        &mut self,
        id: &str,
        approval: ApprovalRequest,
        line: &[u8],
        out: &mut Effects,
    ) {
        let form = approval.form;
        if self.is_winding_down() {
            // A client that cancels answers every request so, also one that comes later.
            if let Ok(object) = std::str::from_utf8(line) {
                report_unknown("requestApproval", object, out);
            }
            self.open_requests.withdraw(id, out);
            return out.push(Effect::Write(form.cancel(id)));
        }
        if self.turn.is_none() {
            report_bad_line(OUT_OF_STATE, line, out);
            return self.deny_at_once(id, form, "no turn is running", out);
        }
        if approval.is_current {
            self.note_turn_activity(out);
        }
        let fits = |id: &UntrustedText| id.len() <= 2 * limits::FOREIGN_ID_BYTES;
        let is_named = approval.tool_id.as_ref().is_none_or(fits);
        let may_be = approval.is_allowable && approval.is_current && is_named;
        if !may_be {
            report_bad_line("bad_shape", line, out);
        }
        let about = approval.call.as_ref().map(|call| call.about.clone());
        let open_approval = OpenApproval {
            form,
            is_allowable: may_be,
            about: about.unwrap_or_else(|| UntrustedText::from("changes that were not reported")),
        };
        let key = match self.open_requests.open(&mut self.ids, id, open_approval) {
            Ok(key) => key,
            Err(clash) => {
                let message = match clash {
                    RejectReason::TooMany => "too many requests are open",
                    clash => clash.describe(),
                };
                report_bad_line(clash.as_str(), line, out);
                self.deny_at_once(id, form, message, out);
                return self.count_rejection(clash, out);
            }
        };
        let (name, input) = match approval.call {
            Some(call) => (call.name, call.input),
            None => (UntrustedText::from(approval.method), NO_ITEM.to_owned()),
        };
        out.push(Effect::PermissionRequest(PermissionRequest {
            key,
            tool_id: approval.tool_id.filter(|_| is_named),
            tool: name,
            input: RawValue::from_string(input).unwrap_or_default(),
            claims: AgentClaims {
                reason: approval.reason,
                has_no_allow_option: !may_be,
                ..AgentClaims::default()
            },
        }));
    }

    /// Writes an answer. An item's answer has no field for a denial's reason, so the reason is
    /// stored for the next prompt.
    pub(super) fn answer(
        &mut self,
        key: &PermissionRequestKey,
        answer: &PermissionResponse,
        out: &mut Effects,
    ) -> Result<(), DialectError> {
        let approval = self
            .open_requests
            .close_by_key(key)
            .ok_or(DialectError::UnknownRequest)?;
        let line = match answer {
            PermissionResponse::Allow if approval.is_allowable => approval.form.allow(&key.id),
            PermissionResponse::Allow => approval.form.deny(&key.id, "it cannot be allowed"),
            PermissionResponse::Deny(reason) => {
                if approval.form.has_no_reason() && self.opening.codex.reports_denials {
                    self.denials.add(&approval.about, reason);
                }
                approval.form.deny(&key.id, reason)
            }
        };
        out.push(Effect::Write(line));
        Ok(())
    }

    /// Denies a request without asking anybody.
    fn deny_at_once(&mut self, id: &str, form: ApprovalForm, reason: &str, out: &mut Effects) {
        self.open_requests.withdraw(id, out);
        out.push(Effect::Write(form.deny(id, reason)));
    }

    /// Ends every open request with the answer for a cancelled turn.
    pub(super) fn cancel_requests(&mut self, out: &mut Effects) {
        for (key, approval) in self.open_requests.close_all() {
            let answer = approval.form.cancel(&key.id);
            out.push(Effect::RequestWithdrawn(key));
            out.push(Effect::Write(answer));
        }
    }

    /// The agent expects no answer any more: somebody else gave it, or its turn has ended.
    pub(super) fn on_request_resolved(&mut self, params: &RawValue, out: &mut Effects) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            #[serde(borrow)]
            request_id: &'a RawValue,
        }
        let id = parse_object::<Params<'_>>(params)
            .and_then(|params| RequestId::read(params.request_id));
        if let Some(id) = id {
            self.open_requests.withdraw(id.json(), out);
        }
    }
}

/// Whether a request offers the plain answer that allows it once.
fn offers_accept(list: &RawValue) -> bool {
    let list: BoundedList<'_, OFFERED> = parse(list).unwrap_or_default();
    let is_it = |raw: &&RawValue| parse_string(Some(raw)).is_some_and(|word| word.raw() == ACCEPT);
    list.items.iter().any(is_it)
}
