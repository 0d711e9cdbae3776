//! Masks known secrets in what a session stores: requests before they are digested and evaluated,
//! events before they are journalled or broadcast.
//!
//! Must not know which texts are secrets: `policy::Mask` does.

use std::borrow::Cow;

use serde_json::value::RawValue;

use marshal_model::{
    AgentClaims, AgentInfo, ChoiceInfo, CommandInfo, Event, FileVersion, OptionState,
    PermissionRequest, PlanEntry, UntrustedText,
};
use marshal_policy::{Facts, FsObservations, Mask, PolicyDecision};

/// Masks a request; the original comes with it if it had any secret.
pub(crate) fn mask_request(
    mask: &Mask,
    original: PermissionRequest,
) -> (PermissionRequest, Option<Box<PermissionRequest>>) {
    if is_clean(mask, &original) {
        return (original, None);
    }
    let mut masked = original.clone();
    mask.mask_foreign(&mut masked.tool);
    mask_json(mask, &mut masked.input);
    mask_claims(mask, &mut masked.claims);
    (masked, Some(Box::new(original)))
}

/// Whether there is nothing to mask: then nothing is copied either.
fn is_clean(mask: &Mask, request: &PermissionRequest) -> bool {
    let AgentClaims {
        active_mode,
        required_mode,
        reason,
        title,
        kind,
        has_no_allow_option: _,
    } = &request.claims;
    let claim_texts = [active_mode, required_mode, reason, title, kind];
    let mut texts = claim_texts.into_iter().flatten().chain([&request.tool]);
    texts.all(|text| matches!(mask.mask_text(text.raw()), Cow::Borrowed(_)))
        && matches!(mask.mask_json(&request.input), Cow::Borrowed(_))
}

fn mask_claims(mask: &Mask, claimed: &mut AgentClaims) {
    let AgentClaims {
        active_mode,
        required_mode,
        reason,
        title,
        kind,
        has_no_allow_option: _,
    } = claimed;
    for text in [active_mode, required_mode, reason, title, kind] {
        mask_option(mask, text);
    }
}

fn mask_option(mask: &Mask, text: &mut Option<UntrustedText>) {
    if let Some(text) = text {
        mask.mask_foreign(text);
    }
}

fn mask_json(mask: &Mask, value: &mut Box<RawValue>) {
    if let Cow::Owned(masked) = mask.mask_json(value) {
        *value = masked;
    }
}

fn mask_string(mask: &Mask, text: &mut String) {
    if let Cow::Owned(masked) = mask.mask_text(text) {
        *text = masked;
    }
}

/// Masks the decision on an unmasked request.
pub(crate) fn mask_decision(mask: &Mask, judgement: &mut PolicyDecision) {
    mask_string(mask, &mut judgement.reason);
    let Facts {
        parts,
        not_plain,
        resolved_paths: paths,
        fs_observations: observations,
    } = &mut judgement.facts;
    // The observed file names may contain a secret; without them a replay of the decision is a
    // guess.
    *observations = FsObservations::default();
    for part in parts {
        let words = part.words.iter_mut();
        for word in words.chain(&mut part.env).chain(&mut part.redirects) {
            mask.mask_foreign(word);
        }
    }
    for led in paths {
        mask.mask_foreign(&mut led.word);
        mask.mask_foreign(&mut led.to);
    }
    if let Some(why) = not_plain {
        mask_string(mask, why);
    }
}

/// Masks an event. Ids stay as they are, so that two never become equal, and so do the prompts of
/// people. A secret that is split over several events is not detected. The match names every event:
/// a new one does not compile before somebody has decided about its texts.
pub(crate) fn mask_event(mask: &Mask, event: &mut Event) {
    match event {
        Event::Text { delta }
        | Event::Thought { delta }
        | Event::UserText { delta }
        | Event::CompactionText { delta, id: _ }
        | Event::TerminalOutput { delta, terminal: _ } => mask.mask_foreign(delta),
        Event::Ready(info) => mask_agent_info(mask, info),
        Event::ToolStart { name, input, id: _ } => {
            mask.mask_foreign(name);
            mask_json(mask, input);
        }
        Event::ToolUpdate {
            name,
            title,
            status,
            input,
            id: _,
        } => {
            mask_options(mask, [name, title, status]);
            if let Some(input) = input {
                mask_json(mask, input);
            }
        }
        Event::ToolResult { output, .. } | Event::CheckEnded { output, status: _ } => {
            mask.mask_foreign(output);
        }
        Event::Quarantined {
            path,
            moved_to,
            detail,
        } => mask_quarantined(mask, path, [moved_to, detail]),
        Event::PermissionDecided(verdict) => mask_string(mask, &mut verdict.reason),
        Event::UnrequestedToolCall { tool, .. } => mask.mask_foreign(tool),
        Event::Plan { entries } => entries.iter_mut().for_each(|of| mask_plan_entry(mask, of)),
        Event::ContextUsed { cost, .. } => {
            if let Some(cost) = cost {
                mask.mask_foreign(&mut cost.currency);
            }
        }
        Event::PlanStep { step, status: _ } => mask.mask_foreign(step),
        Event::FileUpdated {
            tool,
            path,
            sha256: _,
            version,
        } => mask_file(mask, [tool, path], version.as_deref_mut()),
        Event::Unknown { tag, raw: message } => {
            mask.mask_foreign(tag);
            mask_json(mask, message);
        }
        Event::BadLine { head, reason: _ } => mask.mask_foreign(head),
        Event::ChildExited { detail, stderr, .. } => {
            mask_string(mask, detail);
            for line in stderr {
                mask.mask_foreign(line);
            }
        }
        Event::Commands { commands } => commands
            .iter_mut()
            .for_each(|of| mask_command_info(mask, of)),
        Event::Options { options } => options
            .iter_mut()
            .for_each(|of| mask_option_state(mask, of)),
        Event::SessionInfo { title, updated_at } => mask_options(mask, [title, updated_at]),
        Event::SlashResult { .. }
        | Event::AgentError { .. }
        | Event::TurnEnded { .. }
        | Event::Notice { .. }
        | Event::Compaction { .. } => mask_agent_event(mask, event),
        Event::SessionFresh { why, .. } => mask_string(mask, why),
        Event::TurnUnsent { detail, .. } => mask_string(mask, detail),
        Event::TerminalStarted {
            argv,
            cwd,
            terminal: _,
            by: _,
        } => {
            for word in argv {
                mask.mask_foreign(word);
            }
            mask.mask_foreign(cwd);
        }
        // Masked before the evaluation; a person's own text; ids by which models and modes are set;
        // without foreign text; or never an event of a session.
        Event::PermissionRequested { .. }
        | Event::PromptAccepted { .. }
        | Event::CommandSent { .. }
        | Event::ChildStarted { .. }
        | Event::ProgramRecorded { .. }
        | Event::TurnStarted { turn: _ }
        | Event::Usage(_)
        | Event::StateChanged { .. }
        | Event::SessionResumed { .. }
        | Event::TerminalEnded { .. }
        | Event::Egress { .. }
        | Event::Work(_) => {}
    }
}

/// Masks what an agent reports about its work and itself.
fn mask_agent_event(mask: &Mask, event: &mut Event) {
    match event {
        Event::SlashResult {
            command,
            text,
            data,
            ..
        } => {
            mask.mask_foreign(command);
            mask.mask_foreign(text);
            if let Some(data) = data {
                mask_json(mask, data);
            }
        }
        Event::AgentError {
            code,
            message,
            origin: _,
        } => {
            mask.mask_foreign(code);
            mask.mask_foreign(message);
        }
        Event::TurnEnded {
            stop_reason,
            detail,
            ..
        } => {
            mask_option(mask, stop_reason);
            if let Some(detail) = detail {
                mask_string(mask, detail);
            }
        }
        Event::Notice {
            severity,
            title,
            description,
        } => {
            mask.mask_foreign(title);
            mask_options(mask, [severity, description]);
        }
        Event::Compaction {
            status,
            error,
            id: _,
        } => mask_options(mask, [status, error]),
        _ => {} // `mask_event` handles the others.
    }
}

fn mask_file(mask: &Mask, texts: [&mut UntrustedText; 2], version: Option<&mut FileVersion>) {
    let paths = version
        .map(|of| [Some(&mut of.path), of.moved_from.as_mut()])
        .into_iter()
        .flatten()
        .flatten();
    texts
        .into_iter()
        .chain(paths)
        .for_each(|text| mask.mask_foreign(text));
}

fn mask_quarantined(mask: &Mask, path: &mut UntrustedText, texts: [&mut Option<String>; 2]) {
    mask.mask_foreign(path);
    for text in texts.into_iter().flatten() {
        mask_string(mask, text);
    }
}

fn mask_plan_entry(mask: &Mask, entry: &mut PlanEntry) {
    let PlanEntry {
        content,
        priority,
        status,
    } = entry;
    mask.mask_foreign(content);
    mask_options(mask, [priority, status]);
}

fn mask_command_info(mask: &Mask, command: &mut CommandInfo) {
    let CommandInfo {
        name,
        description,
        hint,
    } = command;
    mask.mask_foreign(name);
    mask.mask_foreign(description);
    mask_option(mask, hint);
}

fn mask_options<const N: usize>(mask: &Mask, texts: [&mut Option<UntrustedText>; N]) {
    for text in texts {
        mask_option(mask, text);
    }
}

/// The current model and mode and the session's id are ids: they stay.
fn mask_agent_info(mask: &Mask, info: &mut AgentInfo) {
    let AgentInfo {
        protocol,
        version,
        session: _,
        model: _,
        mode: _,
        modes,
        tools,
        context_window: _,
        cannot_resume: _,
    } = info;
    mask_string(mask, protocol);
    mask_option(mask, version);
    mask_choices(mask, modes);
    for tool in tools {
        mask.mask_foreign(tool);
    }
}

/// The current value is one of the ids: it stays.
fn mask_option_state(mask: &Mask, option: &mut OptionState) {
    let OptionState {
        id: _,
        name,
        category,
        value: _,
        choices: of,
        is_switch: _,
    } = option;
    mask_options(mask, [name, category]);
    mask_choices(mask, of);
}

fn mask_choices(mask: &Mask, choices: &mut [ChoiceInfo]) {
    for choice in choices {
        mask_option(mask, &mut choice.name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_model::{Cost, ErrorOrigin, TurnOutcome, Usage};

    const SECRET: &str = "correct-horse-battery";

    fn text() -> UntrustedText {
        UntrustedText::from(SECRET)
    }

    fn check<const N: usize>(events: [Event; N]) {
        let (mask, _) = Mask::new(&[("KEY".to_owned(), SECRET)]);
        for mut event in events {
            self::mask_event(&mask, &mut event);
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
                origin: ErrorOrigin::Local,
            },
            Event::ToolUpdate {
                id: UntrustedText::from("t"),
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
                id: UntrustedText::from("1"),
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
                status: marshal_model::StepStatus::Done,
            },
            Event::FileUpdated {
                tool: text(),
                path: text(),
                sha256: None,
                version: Some(Box::new(marshal_model::FileVersion {
                    workspace: "w".into(),
                    path: text(),
                    version: 1,
                    observed: false,
                    file: Some("0190a2b4-0000-7000-8000-000000000001".to_owned()),
                    moved_from: Some(text()),
                })),
            },
        ];
        check(events);
    }

    #[test]
    fn what_an_agent_offers_is_masked_but_its_ids() {
        let choice = || ChoiceInfo {
            id: UntrustedText::from("c"),
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
                    id: UntrustedText::from("o"),
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
