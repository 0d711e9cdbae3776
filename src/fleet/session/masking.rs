//! Known secrets taken out of what a session keeps: requests before they are digested and judged,
//! events before they are journalled or told.
//!
//! Must not know which texts are secrets: `policy::Mask` does.

use std::borrow::Cow;

use serde_json::value::RawValue;

use crate::model::{
    AgentInfo, Ask, ChoiceInfo, Claimed, CommandInfo, Event, Foreign, OptionState, PlanEntry,
};
use crate::policy::{Facts, Judgement, Looked, Mask};

/// A request without its secrets; beside it, where it had any, as it came.
pub(super) fn ask(mask: &Mask, came: Ask) -> (Ask, Option<Box<Ask>>) {
    if is_clean(mask, &came) {
        return (came, None);
    }
    let mut masked = came.clone();
    mask.foreign(&mut masked.tool);
    raw(mask, &mut masked.input);
    claimed(mask, &mut masked.claimed);
    (masked, Some(Box::new(came)))
}

/// Whether there is nothing to take out: then nothing is copied either.
fn is_clean(mask: &Mask, ask: &Ask) -> bool {
    let Claimed {
        active_mode,
        required_mode,
        reason,
        title,
        kind,
        no_allow: _,
    } = &ask.claimed;
    let said = [active_mode, required_mode, reason, title, kind];
    let mut texts = said.into_iter().flatten().chain([&ask.tool]);
    texts.all(|text| matches!(mask.text(text.raw()), Cow::Borrowed(_)))
        && matches!(mask.json(&ask.input), Cow::Borrowed(_))
}

fn claimed(mask: &Mask, claimed: &mut Claimed) {
    let Claimed {
        active_mode,
        required_mode,
        reason,
        title,
        kind,
        no_allow: _,
    } = claimed;
    for text in [active_mode, required_mode, reason, title, kind] {
        some(mask, text);
    }
}

fn some(mask: &Mask, text: &mut Option<Foreign>) {
    if let Some(text) = text {
        mask.foreign(text);
    }
}

fn raw(mask: &Mask, value: &mut Box<RawValue>) {
    if let Cow::Owned(masked) = mask.json(value) {
        *value = masked;
    }
}

fn own(mask: &Mask, text: &mut String) {
    if let Cow::Owned(masked) = mask.text(text) {
        *text = masked;
    }
}

/// The same of what a judgement of something unmasked shows.
pub(super) fn judgement(mask: &Mask, judgement: &mut Judgement) {
    own(mask, &mut judgement.reason);
    let Facts {
        parts,
        not_plain,
        paths,
        looked,
    } = &mut judgement.facts;
    // What was looked at may be called by a secret: replaying it guesses.
    *looked = Looked::default();
    for part in parts {
        let words = part.words.iter_mut();
        for word in words.chain(&mut part.env).chain(&mut part.redirects) {
            mask.foreign(word);
        }
    }
    for led in paths {
        mask.foreign(&mut led.word);
        mask.foreign(&mut led.to);
    }
    if let Some(why) = not_plain {
        own(mask, why);
    }
}

/// An event without its secrets. Ids stay as they are, so that two never become one, and so do the
/// prompts of people. A secret that is told in pieces, one an event, is not seen. Every event is named:
/// one that is new does not compile before somebody has decided about its texts.
pub(super) fn event(mask: &Mask, event: &mut Event) {
    match event {
        Event::Text { delta }
        | Event::Thought { delta }
        | Event::UserText { delta }
        | Event::CompactionText { delta, id: _ }
        | Event::TerminalOutput { delta, terminal: _ } => mask.foreign(delta),
        Event::Ready(info) => ready(mask, info),
        Event::ToolStart { name, input, id: _ } => {
            mask.foreign(name);
            raw(mask, input);
        }
        Event::ToolUpdate {
            name,
            title,
            status,
            input,
            id: _,
        } => {
            all(mask, [name, title, status]);
            if let Some(input) = input {
                raw(mask, input);
            }
        }
        Event::ToolResult { output, .. } | Event::CheckEnded { output, status: _ } => {
            mask.foreign(output);
        }
        Event::Decided(verdict) => own(mask, &mut verdict.reason),
        Event::Unasked { tool, .. } => mask.foreign(tool),
        Event::Plan { entries } => entries.iter_mut().for_each(|of| entry(mask, of)),
        Event::ContextUsed { cost, .. } => {
            if let Some(cost) = cost {
                mask.foreign(&mut cost.currency);
            }
        }
        Event::PlanStep { step, status: _ } => mask.foreign(step),
        Event::FileUpdated {
            tool,
            path,
            sha256: _,
            version,
        } => {
            mask.foreign(tool);
            mask.foreign(path);
            if let Some(of) = version {
                mask.foreign(&mut of.path);
            }
        }
        Event::Unknown { tag, raw: message } => {
            mask.foreign(tag);
            raw(mask, message);
        }
        Event::BadLine { head, reason: _ } => mask.foreign(head),
        Event::ChildExited { detail, stderr, .. } => {
            own(mask, detail);
            for line in stderr {
                mask.foreign(line);
            }
        }
        Event::Commands { commands } => commands.iter_mut().for_each(|of| command(mask, of)),
        Event::Options { options } => options.iter_mut().for_each(|of| option(mask, of)),
        Event::SessionInfo { title, updated_at } => all(mask, [title, updated_at]),
        Event::SlashResult { .. }
        | Event::AgentError { .. }
        | Event::TurnEnded { .. }
        | Event::Notice { .. }
        | Event::Compaction { .. } => said(mask, event),
        Event::SessionFresh { why, .. } => own(mask, why),
        Event::TurnUnsent { detail, .. } => own(mask, detail),
        Event::TerminalStarted {
            argv,
            cwd,
            terminal: _,
        } => {
            for word in argv {
                mask.foreign(word);
            }
            mask.foreign(cwd);
        }
        // Masked before it was judged; a person's own; ids, by which models and modes are set; without
        // texts of others, or never a session's.
        Event::Asked { .. }
        | Event::PromptAccepted { .. }
        | Event::CommandGiven { .. }
        | Event::ChildStarted { .. }
        | Event::TurnStarted { turn: _ }
        | Event::Usage(_)
        | Event::StateChanged { .. }
        | Event::SessionResumed { .. }
        | Event::TerminalEnded { .. }
        | Event::Egress { .. }
        | Event::Work(_) => {}
    }
}

/// What an agent says of its work and of itself.
fn said(mask: &Mask, event: &mut Event) {
    match event {
        Event::SlashResult {
            command,
            text,
            data,
            ..
        } => {
            mask.foreign(command);
            mask.foreign(text);
            if let Some(data) = data {
                raw(mask, data);
            }
        }
        Event::AgentError {
            code,
            message,
            origin: _,
        } => {
            mask.foreign(code);
            mask.foreign(message);
        }
        Event::TurnEnded {
            stop_reason,
            detail,
            ..
        } => {
            some(mask, stop_reason);
            if let Some(detail) = detail {
                own(mask, detail);
            }
        }
        Event::Notice {
            severity,
            title,
            description,
        } => {
            mask.foreign(title);
            all(mask, [severity, description]);
        }
        Event::Compaction {
            status,
            error,
            id: _,
        } => all(mask, [status, error]),
        _ => {} // The others are masked above.
    }
}

fn entry(mask: &Mask, entry: &mut PlanEntry) {
    let PlanEntry {
        content,
        priority,
        status,
    } = entry;
    mask.foreign(content);
    all(mask, [priority, status]);
}

fn command(mask: &Mask, command: &mut CommandInfo) {
    let CommandInfo {
        name,
        description,
        hint,
    } = command;
    mask.foreign(name);
    mask.foreign(description);
    some(mask, hint);
}

fn all<const N: usize>(mask: &Mask, texts: [&mut Option<Foreign>; N]) {
    for text in texts {
        some(mask, text);
    }
}

/// What is set, and the session's own, are ids.
fn ready(mask: &Mask, info: &mut AgentInfo) {
    let AgentInfo {
        protocol,
        version,
        session: _,
        model: _,
        mode: _,
        modes,
        tools,
        context_window: _,
        forgets: _,
    } = info;
    own(mask, protocol);
    some(mask, version);
    choices(mask, modes);
    for tool in tools {
        mask.foreign(tool);
    }
}

/// What is set is one of the ids.
fn option(mask: &Mask, option: &mut OptionState) {
    let OptionState {
        id: _,
        name,
        category,
        value: _,
        choices: of,
        is_switch: _,
    } = option;
    all(mask, [name, category]);
    choices(mask, of);
}

fn choices(mask: &Mask, choices: &mut [ChoiceInfo]) {
    for choice in choices {
        some(mask, &mut choice.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Cost, Origin, TurnOutcome, Usage};

    const SECRET: &str = "correct-horse-battery";

    fn text() -> Foreign {
        Foreign::from(SECRET)
    }

    fn check<const N: usize>(events: [Event; N]) {
        let (mask, _) = Mask::new(&[("KEY".to_owned(), SECRET)]);
        for mut event in events {
            self::event(&mask, &mut event);
            let shown = format!("{event:?}");
            assert!(!shown.contains(SECRET), "{shown}");
            assert!(shown.contains("secret:KEY"), "{shown}");
        }
    }

    #[test]
    fn every_text_of_an_event_but_ids_is_masked() {
        let events = [
            Event::AgentError {
                code: text(),
                message: text(),
                origin: Origin::Local,
            },
            Event::ToolUpdate {
                id: Foreign::from("t"),
                name: Some(text()),
                title: Some(text()),
                status: Some(text()),
                input: None,
            },
            Event::Plan {
                entries: vec![PlanEntry {
                    content: text(),
                    priority: Some(text()),
                    status: Some(text()),
                }],
            },
            Event::ContextUsed {
                used: 1,
                size: 2,
                cost: Some(Cost {
                    amount: 1.0,
                    currency: text(),
                }),
            },
            Event::UserText { delta: text() },
            Event::Compaction {
                id: Foreign::from("1"),
                status: Some(text()),
                error: Some(text()),
            },
            Event::TurnEnded {
                outcome: TurnOutcome::Completed,
                stop_reason: Some(text()),
                usage: Usage::default(),
                detail: Some(SECRET.to_owned()),
            },
            Event::SlashResult {
                command: text(),
                text: text(),
                data: None,
                clear_session: false,
                exit: false,
            },
            Event::Notice {
                severity: Some(text()),
                title: text(),
                description: Some(text()),
            },
            Event::SessionInfo {
                title: Some(text()),
                updated_at: Some(text()),
            },
            Event::PlanStep {
                step: text(),
                status: crate::model::StepStatus::Done,
            },
            Event::FileUpdated {
                tool: text(),
                path: text(),
                sha256: None,
                version: Some(Box::new(crate::model::FileVersion {
                    workspace: "w".into(),
                    path: text(),
                    v: 1,
                    observed: false,
                })),
            },
        ];
        check(events);
    }

    #[test]
    fn what_an_agent_offers_is_masked_but_its_ids() {
        let choice = || ChoiceInfo {
            id: Foreign::from("c"),
            name: Some(text()),
        };
        let events = [
            Event::Commands {
                commands: vec![CommandInfo {
                    name: text(),
                    description: text(),
                    hint: Some(text()),
                }],
            },
            Event::Options {
                options: vec![OptionState {
                    id: Foreign::from("o"),
                    name: Some(text()),
                    category: Some(text()),
                    value: None,
                    choices: vec![choice()],
                    is_switch: false,
                }],
            },
            Event::Ready(AgentInfo {
                protocol: SECRET.to_owned(),
                version: Some(text()),
                modes: vec![choice()],
                tools: vec![text()],
                ..AgentInfo::default()
            }),
        ];
        check(events);
    }
}
