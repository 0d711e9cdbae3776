//! A custom dialect: lines of JSON whose meaning is defined by a definition of the configuration.
//!
//! Owns the order of such a conversation: the version gate, one turn at a time, and the open
//! requests. The definition (`config/dialect_definition.rs`) defines what a message means and what is written
//! to the agent. `path_tree` and `rules` read messages, `templates` writes.
//!
//! These rules apply to every definition:
//!
//! - A prompt is never written while a turn runs. Only the definition's first messages are written
//!   before the agent is ready.
//! - A request is allowed only by an answer that allows it. One outside of a turn, an unreadable
//!   one, one with a used id and one beyond the limit are denied at once.
//! - Events of another turn are out of state: text is dropped, tool calls are still passed on, so
//!   that they are evaluated.
//! - An unreadable end of a turn ends the turn `failed`.
//! - A mode that skips requests, by its name, ends the child. A slash command has a time limit
//!   (`slash`).
//! - A session that is to be resumed under its id and reports another one is not that session.
//!
//! A session is resumed by a message where the definition has one (`Pool::resumes_by_argument`),
//! otherwise by arguments of the command. The cases of ScaiFlux's dialect also run with
//! `examples/dialects/scaiflux.toml`. `config/dialect_definition/rule.rs` defines what a definition can
//! contain, and `config/dialect_definition/read.rs` reads it. After a change run `marshal config schema
//! --dialect > docs/dialect.schema.json`.

mod events;
mod path_tree;
mod rules;
mod templates;
mod turn;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::value::RawValue;

use super::driver::{ChannelState, Phase, Protocol};
use super::mode_guard::ModeGuard;
use super::named_turn::NamedTurn;
use super::open_requests::{OpenRequests, RequestIds};
use super::slash::{self, SlashReply, SlashTracker};
use super::turn_end::TurnEnd;
use super::{ChannelError, Command, DialectError, Effect, Effects, OpenParams, PendingDenials};
use marshal_config::DialectDefinition;
use marshal_config::dialect_definition::{Placeholder, RuleEvent, Template, UnansweredPolicy};
use marshal_model::{Event, PermissionResponse, UntrustedText, Usage};
use marshal_wire::json::{self, BadFrame};
use rules::TypeRules;
use templates::TemplateValues;

/// The data for the answer to a request.
#[derive(Debug)]
struct OpenRequest {
    id: Box<RawValue>,
    /// The request's input, where the allowing answer has a field for it and the request has one.
    input: Option<Box<RawValue>>,
    /// Whether the input was too large to be stored.
    is_input_omitted: bool,
    tool: UntrustedText,
}

/// A definition, prepared for its messages.
#[derive(Debug)]
struct CompiledDefinition {
    definition: Arc<DialectDefinition>,
    /// Whether the type of messages is in the member `type` itself.
    is_plain: bool,
    kind: path_tree::PathTree,
    kinds: HashMap<String, TypeRules>,
    /// Whether the agent reports the beginning of a turn.
    starts_turns: bool,
}

impl CompiledDefinition {
    fn new(definition: Arc<DialectDefinition>) -> Self {
        let mut kind = path_tree::PathTree::default();
        kind.add(&definition.type_path);
        let names = definition.rules.iter().flat_map(|rule| &rule.types);
        let kinds = names.map(|name| (name.clone(), TypeRules::new(&definition, name)));
        Self {
            is_plain: definition.type_path.to_string() == "type",
            kind,
            kinds: kinds.collect(),
            starts_turns: definition.has_rule_for(RuleEvent::TurnStarted),
            definition,
        }
    }
}

/// One channel that speaks by a definition.
#[derive(Debug, Default)]
pub struct Custom {
    /// `None` if the channel was not opened, or has no definition.
    plan: Option<Arc<CompiledDefinition>>,
    channel: ChannelState,
    turn: NamedTurn,
    /// Whether the agent has shown that it accepted the turn's prompt.
    is_prompt_accepted: bool,
    /// Whether the turn is being cancelled.
    cancelling: bool,
    slash: SlashTracker,
    mode_guard: ModeGuard,
    ids: RequestIds,
    open_requests: OpenRequests<OpenRequest>,
    /// What the turn has used so far.
    usage: Usage,
    workspace: String,
    /// The agent's own id of its session.
    session: Option<String>,
    /// Whether that session is to be resumed.
    resuming: bool,
    denials: PendingDenials,
    /// The denials that the turn's prompt reports.
    unconfirmed_denials: PendingDenials,
}

impl Protocol for Custom {
    fn channel(&self) -> &ChannelState {
        &self.channel
    }

    fn channel_mut(&mut self) -> &mut ChannelState {
        &mut self.channel
    }

    fn start(&mut self, opening: &OpenParams, out: &mut Effects) {
        let Some(definition) = opening.dialect_definition.clone() else {
            let why = "the pool's dialect definition was not loaded".to_owned();
            return self.fail_channel(ChannelError::NeedsSetup(why), out);
        };
        let plan = Arc::new(CompiledDefinition::new(definition));
        self.slash = SlashTracker::new(opening.control_timeout);
        self.mode_guard = ModeGuard::new(opening, &[]);
        self.workspace.clone_from(&opening.workspace);
        self.denials = opening.denials.clone();
        let resume = opening.resume.as_ref().map(|id| id.raw().to_owned());
        self.resuming = resume.is_some() && !plan.definition.resume.is_empty();
        self.session = resume.filter(|_| self.resuming);
        let first = if self.resuming {
            &plan.definition.resume
        } else {
            &plan.definition.open
        };
        for template in first {
            self.send_template(template, &[], out);
        }
        let greets = plan.definition.announces_ready();
        self.plan = Some(Arc::clone(&plan));
        if !greets {
            let info = marshal_model::AgentInfo::default();
            self.finish_handshake(&plan, info, out);
        }
    }

    fn handle_line(&mut self, line: &[u8], out: &mut Effects) -> Result<(), BadFrame> {
        let Some(plan) = self.plan.clone() else {
            return Ok(());
        };
        let object = json::expect_object(line)?;
        let name = self::kind(&plan, object)?;
        let Some(kind) = plan.kinds.get(&*name) else {
            return self.unknown(&plan.definition, &name, object, out);
        };
        let values = kind.paths.read(object)?;
        let turn = if values.clash {
            Err(BadFrame::Shape)
        } else {
            kind.turn(&values)
        };
        let mut is_counted = false;
        for reading in &kind.rules {
            if self.channel.is_closed() || (!values.clash && !reading.fits(&values)) {
                continue;
            }
            let message = turn
                .clone()
                .and_then(|turn| Ok((turn, reading.read_message(&values)?)));
            match message {
                Ok((turn, message)) => {
                    let at = events::RuleContext {
                        plan: &plan,
                        rule: reading.rule,
                        turn: turn.as_deref(),
                        line,
                    };
                    self.handle_rule_message(message, &at, out);
                }
                Err(bad) => {
                    if !std::mem::replace(&mut is_counted, true) {
                        self.count_bad_line(bad, line, out);
                    }
                    self.handle_bad_shape(&plan, &name, reading, reading.request_id(&values), out);
                }
            }
        }
        Ok(())
    }

    fn is_closed(&self) -> bool {
        self.channel.is_closed() || self.plan.is_none()
    }

    fn carry_out(&mut self, command: Command, out: &mut Effects) -> Result<(), DialectError> {
        let Some(plan) = self.plan.clone() else {
            return Err(DialectError::Closed);
        };
        match command {
            Command::Prompt { .. } if !self.turn.is_none() => return Err(DialectError::Busy),
            Command::Prompt {
                text,
                attachments: attached,
            } => self.prompt(&plan, &text, &attached, out),
            Command::Slash { .. } if plan.definition.slash.is_none() => {
                return Err(DialectError::Unsupported);
            }
            Command::Slash { command, args } => {
                self.slash.start(!self.turn.is_none(), self.channel.now)?;
                if let Some(template) = &plan.definition.slash {
                    let texts = [
                        (Placeholder::Command, &*command),
                        (Placeholder::Args, &*args),
                    ];
                    self.send_template(template, &texts, out);
                }
            }
            Command::Cancel => self.cancel(&plan.definition, out),
            Command::AnswerPermission { key, answer } => {
                let open = self
                    .open_requests
                    .close_by_key(&key)
                    .ok_or(DialectError::UnknownRequest)?;
                self.answer(&plan.definition, &open, &answer, out);
            }
            Command::AnswerClientRequest { .. } => return Err(DialectError::Unsupported),
            Command::Set(_) => {
                let why = "a custom dialect has no modes or options to set";
                return Err(DialectError::NotOffered(why.to_owned()));
            }
            Command::Goodbye => {}
        }
        Ok(())
    }

    fn shut_down(&mut self, out: &mut Effects) {
        let Some(plan) = self.plan.clone() else {
            return;
        };
        let definition = &plan.definition;
        self.deny_requests(definition, "the session ends", out);
        if let Some(template) = &definition.goodbye {
            self.send_template(template, &[], out);
        }
        if definition.close_input {
            out.push(Effect::CloseInput);
        }
    }

    fn on_close(&mut self, out: &mut Effects) {
        self.open_requests.withdraw_all(out);
    }

    fn due(&self) -> Option<Instant> {
        self.slash.due()
    }

    fn handle_due(&mut self, now: Instant, out: &mut Effects) {
        self.slash.tick(now, out);
    }

    fn unsent_denials(&mut self) -> PendingDenials {
        self.settle_denials(self.turn.is_none());
        std::mem::take(&mut self.denials)
    }
}

impl Custom {
    /// A message of a type without a rule.
    fn unknown(
        &mut self,
        definition: &DialectDefinition,
        name: &str,
        object: &str,
        out: &mut Effects,
    ) -> Result<(), BadFrame> {
        let raw: &RawValue = serde_json::from_str(object)?;
        if definition.ignored_types.iter().any(|own| own == name) {
            return Ok(());
        }
        if self.channel.phase == Phase::Handshaking && !definition.allows_early {
            self.fail_too_early(out);
            return Ok(());
        }
        if definition.unlisted_types == marshal_config::dialect_definition::UnlistedTypes::Record {
            out.push(Effect::Event(Event::Unknown {
                tag: name.into(),
                raw: raw.to_owned(),
            }));
        }
        Ok(())
    }

    /// A known message of an unknown shape. Whatever waits for it must not wait forever.
    fn handle_bad_shape(
        &mut self,
        plan: &CompiledDefinition,
        name: &str,
        reading: &rules::CompiledRule,
        id: Option<&RawValue>,
        out: &mut Effects,
    ) {
        let shown = UntrustedText::from(name).escape_for_display(80);
        match reading.event {
            _ if self.channel.is_closed() => {}
            RuleEvent::Ready => {
                self.fail_protocol(format!("the agent's {shown} message cannot be read"), out);
            }
            RuleEvent::SlashResult if self.slash.finish() == SlashReply::Expected => {
                let why = format!("the agent's {shown} cannot be read");
                out.push(slash::answer_effect(false, &why.into()));
            }
            RuleEvent::End if !self.turn.is_none() => {
                let detail = format!("the agent's {shown} cannot be read");
                self.end_turn(TurnEnd::failure(detail), None, out);
            }
            RuleEvent::Permission if self.channel.is_ready() && !self.is_winding_down() => {
                if let Some(id) = id {
                    let why = "the permission request cannot be read";
                    self.deny_at_once(&plan.definition, id, why, out);
                }
            }
            _ => {}
        }
    }

    /// Writes a template that has no part of an answer.
    fn send_template(&self, template: &Template, texts: &[(Placeholder, &str)], out: &mut Effects) {
        let mut all = texts.to_vec();
        all.extend(self.known());
        let filling = TemplateValues {
            texts: &all,
            ..TemplateValues::default()
        };
        out.push(Effect::Write(templates::line(template, &filling)));
    }

    /// The values for every template.
    fn known(&self) -> [(Placeholder, &str); 2] {
        let session = self.session.as_deref().unwrap_or_default();
        [
            (Placeholder::Session, session),
            (Placeholder::Workspace, &self.workspace),
        ]
    }

    /// Whether the agent is stopping or its turn is being cancelled.
    const fn is_winding_down(&self) -> bool {
        self.cancelling || self.channel.is_shutting_down
    }

    /// Ends every open request, with the answer that the definition defines for it.
    fn deny_requests(&mut self, definition: &DialectDefinition, why: &str, out: &mut Effects) {
        for (key, open) in self.open_requests.close_all() {
            out.push(Effect::RequestWithdrawn(key));
            let replies = definition.permission.as_ref();
            if replies.is_some_and(|replies| replies.unanswered == UnansweredPolicy::Deny) {
                self.deny(definition, &open.id, why, out);
            }
        }
    }

    fn answer(
        &mut self,
        definition: &DialectDefinition,
        open: &OpenRequest,
        answer: &PermissionResponse,
        out: &mut Effects,
    ) {
        let Some(replies) = &definition.permission else {
            return;
        };
        let echo = replies.allow.contains(Placeholder::Input);
        match answer {
            PermissionResponse::Allow if !echo || !open.is_input_omitted => {
                let known = self.known();
                let filling = TemplateValues {
                    texts: &known,
                    id: Some(&open.id),
                    input: open.input.as_deref(),
                    ..TemplateValues::default()
                };
                out.push(Effect::Write(templates::line(&replies.allow, &filling)));
            }
            // Input that cannot be written exactly as it was evaluated is not allowed.
            PermissionResponse::Allow => {
                self.deny(definition, &open.id, "the input is too large", out);
            }
            PermissionResponse::Deny(reason) => {
                if !replies.deny.contains(Placeholder::Reason) {
                    self.denials.add(&open.tool, reason);
                }
                self.deny(definition, &open.id, reason, out);
            }
        }
    }

    fn deny(&self, definition: &DialectDefinition, id: &RawValue, reason: &str, out: &mut Effects) {
        let Some(replies) = &definition.permission else {
            return;
        };
        let [session, workspace] = self.known();
        let filling = TemplateValues {
            texts: &[(Placeholder::Reason, reason), session, workspace],
            id: Some(id),
            ..TemplateValues::default()
        };
        out.push(Effect::Write(templates::line(&replies.deny, &filling)));
    }

    /// Denies a request without asking anybody.
    fn deny_at_once(
        &mut self,
        definition: &DialectDefinition,
        id: &RawValue,
        reason: &str,
        out: &mut Effects,
    ) {
        if let Some(name) = path_tree::parse_name(id) {
            self.open_requests.withdraw(&name, out);
        }
        self.deny(definition, id, reason, out);
    }

    fn fail_too_early(&mut self, out: &mut Effects) {
        let message = "the agent sent an event before it was ready";
        self.fail_protocol(message.to_owned(), out);
    }
}

/// The type of a message; empty where it has none and the definition has a rule for that.
fn kind<'a>(plan: &CompiledDefinition, object: &'a str) -> Result<Cow<'a, str>, BadFrame> {
    let found = if plan.is_plain {
        json::read_tag(object)
    } else {
        let values = plan.kind.read(object)?;
        let name = values.get(0).and_then(path_tree::parse_name);
        name.ok_or(BadFrame::NoType)
    };
    match found {
        Err(BadFrame::NoType) if plan.kinds.contains_key("") => Ok(Cow::Borrowed("")),
        found => found,
    }
}
