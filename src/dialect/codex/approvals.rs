//! What the agent wants to know: approvals of commands, of changes to files and of calls of tool servers,
//! and all that is refused with as little as the protocol takes.
//!
//! Must not decide anything: an ask goes to the session, its answer comes back as a command.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::calls::{self, COMMAND, Call};
use super::items::unknown;
use super::members::Members;
use super::{Codex, OUT_OF_STATE, Phase, write};
use crate::dialect::asks::Clash;
use crate::dialect::envelope::RequestId;
use crate::dialect::lenient::{Front, members, parse, string};
use crate::dialect::{Effect, Effects, Refused, bad_line};
use crate::limits;
use crate::model::{Answer, Ask, AskKey, Claimed, Foreign};

const ACCEPT: &str = "accept";
/// Not this, and go on.
const DECLINE: &str = "decline";
/// Not this, and end the turn.
const CANCEL: &str = "cancel";

/// What a tool server wants of a person; also the agent itself, before it calls a tool of one.
const TOOL_REQUEST: &str = "mcpServer/elicitation/request";

/// Words that a request offers: the schema has six.
const OFFERED: usize = 64;

/// Stands for the input of a request whose changes are not known: no object, so that it cannot be
/// judged.
const NO_ITEM: &str = "\"the changes that this is about are not known\"";

/// The form of a request, and so of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `item/…/requestApproval`: one word.
    Item,
    /// `execCommandApproval`, `applyPatchApproval`: other words, and a place for a reason.
    Old,
    /// `mcpServer/elicitation/request`: an action, and what was filled into its form, which is empty.
    Tool,
}

impl Form {
    fn allow(self, id: &str) -> Vec<u8> {
        match self {
            Self::Item => write::decided(id, ACCEPT),
            Self::Old => write::decided(id, "approved"),
            Self::Tool => write::accepted(id),
        }
    }

    fn cancel(self, id: &str) -> Vec<u8> {
        match self {
            Self::Item => write::decided(id, CANCEL),
            Self::Old => write::decided(id, "abort"),
            Self::Tool => write::acted(id, CANCEL),
        }
    }

    fn deny(self, id: &str, reason: &str) -> Vec<u8> {
        match self {
            Self::Item => write::decided(id, DECLINE),
            Self::Old => write::rejected(id, reason),
            Self::Tool => write::acted(id, DECLINE),
        }
    }

    /// Whether a denial has no place for its reason.
    const fn is_mute(self) -> bool {
        matches!(self, Self::Item | Self::Tool)
    }
}

/// What the answer to an open request needs.
#[derive(Debug, Clone)]
pub(super) struct Wish {
    form: Form,
    /// It may be allowed: what it is about is known whole.
    may_be: bool,
    /// It in a few words.
    about: Foreign,
}

/// A request for an approval, as it was read.
struct Approval {
    form: Form,
    call: Option<Call>,
    /// The call that it is about, where it is one that is told.
    tool_id: Option<Foreign>,
    /// It is one of the turn that runs.
    is_current: bool,
    may_be: bool,
    reason: Option<Foreign>,
    method: &'static str,
}

impl Codex {
    pub(super) fn request(
        &mut self,
        id: &RequestId,
        method: &str,
        params: Option<&RawValue>,
        line: &[u8],
        out: &mut Effects,
    ) {
        // Nothing is written before the agent's version is known.
        if self.phase == Phase::Initializing {
            return bad_line(OUT_OF_STATE, line, out);
        }
        let read = params.and_then(Members::read);
        let approval = match method {
            "item/commandExecution/requestApproval" => read.and_then(|asked| self.command(&asked)),
            "item/fileChange/requestApproval" => read.and_then(|asked| self.changes(&asked)),
            "execCommandApproval" => read.and_then(|asked| self.old_command(&asked)),
            "applyPatchApproval" => read.and_then(|asked| self.old_changes(&asked)),
            TOOL_REQUEST => {
                let tool = |asked: Members<'_>| {
                    let call = calls::of_tool_request(&asked)?;
                    Some(self.tool(&asked, call))
                };
                match read.and_then(tool) {
                    Some(approval) => approval,
                    // A server's own request.
                    None => return self.other_request(id, method, line, out),
                }
            }
            _ => return self.other_request(id, method, line, out),
        };
        match approval {
            Some(approval) => self.approval(id.json(), approval, line, out),
            None => self.unreadable(id.json(), line, out),
        }
    }

    /// A request that nobody is asked about: it is told, and gets nothing.
    fn other_request(&mut self, id: &RequestId, method: &str, line: &[u8], out: &mut Effects) {
        // An answer carries no more than an id: this one also ends a request that has it.
        if let Some((key, _)) = self.asks.clash(&mut self.ids, id.json()) {
            bad_line("duplicate_id", line, out);
            out.push(Effect::Withdrawn(key));
        }
        if let Ok(object) = std::str::from_utf8(line) {
            unknown(method, object, out);
        }
        let id = id.json();
        out.push(Effect::Write(match method {
            "item/permissions/requestApproval" => write::no_permissions(id),
            TOOL_REQUEST => write::acted(id, DECLINE),
            _ => write::error(id, write::METHOD_NOT_FOUND, "method not found"),
        }));
    }

    /// An approval of a shape that we do not know is none.
    fn unreadable(&mut self, id: &str, line: &[u8], out: &mut Effects) {
        bad_line("bad_shape", line, out);
        let open = self.asks.close(id);
        out.extend(open.map(|(key, _)| Effect::Withdrawn(key)));
        let said = "the request cannot be read";
        out.push(Effect::Write(write::error(id, write::INVALID_PARAMS, said)));
    }

    /// A command, as the request itself says it. One that stands for a part of another command has
    /// an id of its own and is no call that is told.
    fn command(&self, asked: &Members<'_>) -> Option<Approval> {
        let (thread, turn) = (asked.text("threadId")?, asked.text("turnId")?);
        let item = asked.text("itemId")?;
        let call = calls::of_request(asked)?;
        let id = self.call_id(thread.raw(), item.raw());
        let is_part = asked.get("approvalId").is_some();
        // What was told of the call must be what is asked for.
        let told = self.items.running(&id).filter(|_| !is_part);
        let is_told = told.is_none_or(|told| told.call.as_ref() == Some(&call));
        let is_offered = asked.get("availableDecisions").is_none_or(offers_accept);
        Some(Approval {
            form: Form::Item,
            call: Some(call),
            tool_id: (!is_part).then(|| Foreign::new(id)),
            is_current: self.is_current(thread.raw(), turn.raw()),
            may_be: is_told && is_offered && self.is_ours(thread.raw()),
            reason: asked.text("reason"),
            method: COMMAND,
        })
    }

    /// Changes to files: all those of the item that the request names, which must be known and not
    /// over. It may ask for a directory beside; that is nothing that could be judged.
    fn changes(&self, asked: &Members<'_>) -> Option<Approval> {
        const KNOWN: &[&str] = &["threadId", "turnId", "itemId", "startedAtMs", "reason"];
        let (thread, turn) = (asked.text("threadId")?, asked.text("turnId")?);
        let id = self.call_id(thread.raw(), asked.text("itemId")?.raw());
        let call = self.items.running(&id).and_then(|kept| kept.call.clone());
        let call = call.filter(|call| call.name.raw() != COMMAND);
        let wants_more = asked.others(KNOWN).next().is_some();
        Some(Approval {
            form: Form::Item,
            may_be: call.is_some() && !wants_more && self.is_ours(thread.raw()),
            call,
            tool_id: Some(Foreign::new(id)),
            is_current: self.is_current(thread.raw(), turn.raw()),
            reason: asked.text("reason"),
            method: "fileChange",
        })
    }

    /// A call of a tool server's tool, which must be one that runs: the request does not name it.
    fn tool(&mut self, asked: &Members<'_>, call: Call) -> Option<Approval> {
        let (thread, turn) = (asked.text("threadId")?, asked.text("turnId")?);
        let is_ours = self.is_ours(thread.raw());
        let id = self.items.asked_as(&call);
        Some(Approval {
            form: Form::Tool,
            may_be: id.is_some() && is_ours,
            call: Some(call),
            tool_id: id.map(Foreign::new),
            is_current: self.is_current(thread.raw(), turn.raw()),
            reason: None,
            method: "",
        })
    }

    /// A command in the older form, which names no turn.
    fn old_command(&self, asked: &Members<'_>) -> Option<Approval> {
        let call = calls::of_old_request(asked)?;
        self.old(asked, call, true)
    }

    /// Changes in the older form, which has them itself.
    fn old_changes(&self, asked: &Members<'_>) -> Option<Approval> {
        const KNOWN: &[&str] = &["conversationId", "callId", "fileChanges", "reason"];
        let call = calls::of_old_patch(asked)?;
        let wants_more = asked.others(KNOWN).next().is_some();
        self.old(asked, call, !wants_more)
    }

    fn old(&self, asked: &Members<'_>, call: Call, may_be: bool) -> Option<Approval> {
        let thread = asked.text("conversationId")?;
        let is_ours = self.is_ours(thread.raw());
        let id = asked.text("callId")?;
        Some(Approval {
            form: Form::Old,
            call: Some(call),
            tool_id: Some(Foreign::new(self.call_id(thread.raw(), id.raw()))),
            is_current: is_ours && self.has_named_turn(),
            may_be: may_be && is_ours,
            reason: asked.text("reason"),
            method: "",
        })
    }

    fn approval(&mut self, id: &str, approval: Approval, line: &[u8], out: &mut Effects) {
        let form = approval.form;
        if self.is_winding_down() {
            // Whoever cancels answers every request so, also one that comes later.
            if let Ok(object) = std::str::from_utf8(line) {
                unknown("requestApproval", object, out);
            }
            let open = self.asks.close(id);
            out.extend(open.map(|(key, _)| Effect::Withdrawn(key)));
            return out.push(Effect::Write(form.cancel(id)));
        }
        if self.turn.is_none() {
            bad_line(OUT_OF_STATE, line, out);
            return self.deny_at_once(id, form, "no turn is running", out);
        }
        if approval.is_current {
            self.turn_goes_on(out);
        }
        let fits = |id: &Foreign| id.len() <= 2 * limits::FOREIGN_ID_BYTES;
        let is_named = approval.tool_id.as_ref().is_none_or(fits);
        let may_be = approval.may_be && approval.is_current && is_named;
        if !may_be {
            bad_line("bad_shape", line, out);
        }
        let about = approval.call.as_ref().map(|call| call.about.clone());
        let wish = Wish {
            form,
            may_be,
            about: about.unwrap_or_else(|| Foreign::from("changes that were not told")),
        };
        let key = match self.asks.open(&mut self.ids, id, wish) {
            Ok(key) => key,
            Err(clash) => {
                let (reason, said) = match clash {
                    Clash::Duplicate => ("duplicate_id", "this request id was used before"),
                    Clash::TooMany => ("too_many_asks", "too many requests are open"),
                    Clash::LongId => ("bad_shape", "the request id is too long"),
                };
                bad_line(reason, line, out);
                self.deny_at_once(id, form, said, out);
                if clash == Clash::TooMany {
                    self.asked_beyond(out);
                }
                return;
            }
        };
        let (name, input) = match approval.call {
            Some(call) => (call.name, call.input),
            None => (Foreign::from(approval.method), NO_ITEM.to_owned()),
        };
        out.push(Effect::Ask(Ask {
            key,
            tool_id: approval.tool_id.filter(|_| is_named),
            tool: name,
            input: RawValue::from_string(input).unwrap_or_default(),
            claimed: Claimed {
                reason: approval.reason,
                no_allow: !may_be,
                ..Claimed::default()
            },
        }));
    }

    /// One more request was denied because too many are open.
    fn asked_beyond(&mut self, out: &mut Effects) {
        self.asks_beyond = self.asks_beyond.saturating_add(1);
        if self.asks_beyond > limits::ASKS_BEYOND {
            let most = limits::OPEN_ASKS;
            let said = format!(
                "the agent asks on and on while {most} of its requests wait for their answers"
            );
            self.fault(said, out);
        }
    }

    /// Carries out an answer. An item's has no place for a denial's reason: it is kept for the next
    /// prompt.
    pub(super) fn answer(
        &mut self,
        key: &AskKey,
        answer: &Answer,
        out: &mut Effects,
    ) -> Result<(), Refused> {
        let wish = self.asks.answered(key).ok_or(Refused::UnknownAsk)?;
        let line = match answer {
            Answer::Allow if wish.may_be => wish.form.allow(&key.id),
            Answer::Allow => wish.form.deny(&key.id, "it cannot be allowed"),
            Answer::Deny(reason) => {
                if wish.form.is_mute() && self.opening.codex.tells_denials {
                    self.denials.add(&wish.about, reason);
                }
                wish.form.deny(&key.id, reason)
            }
        };
        out.push(Effect::Write(line));
        Ok(())
    }

    /// Denies a request that nobody is asked about.
    fn deny_at_once(&mut self, id: &str, form: Form, reason: &str, out: &mut Effects) {
        let open = self.asks.close(id);
        out.extend(open.map(|(key, _)| Effect::Withdrawn(key)));
        out.push(Effect::Write(form.deny(id, reason)));
    }

    /// Ends every open request with the answer that is for a cancelled turn.
    pub(super) fn cancel_asks(&mut self, out: &mut Effects) {
        for (key, wish) in self.asks.close_all() {
            let answer = wish.form.cancel(&key.id);
            out.push(Effect::Withdrawn(key));
            out.push(Effect::Write(answer));
        }
    }

    /// The agent does not want an answer any more: somebody gave it, or its turn is over.
    pub(super) fn resolved(&mut self, params: &RawValue, out: &mut Effects) {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params<'a> {
            #[serde(borrow)]
            request_id: &'a RawValue,
        }
        let id =
            members::<Params<'_>>(params).and_then(|params| RequestId::read(params.request_id));
        let open = id.and_then(|id| self.asks.close(id.json()));
        out.extend(open.map(|(key, _)| Effect::Withdrawn(key)));
    }
}

/// Whether a request's list of answers has the plain one that allows it once.
fn offers_accept(list: &RawValue) -> bool {
    let list: Front<'_, OFFERED> = parse(list).unwrap_or_default();
    let is_it = |raw: &&RawValue| string(Some(raw)).is_some_and(|word| word.raw() == ACCEPT);
    list.items.iter().any(is_it)
}
