//! Formats one journalled event as one line.
//!
//! Pure; every text here is safe to show. Must not know where lines go.

use marshal_journal::StoredEvent;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{Event, UntrustedText, Verdict, WorkEvent};

/// The least columns of an event's text.
const LEAST: usize = 40;

/// A time (microseconds since the Unix epoch) in RFC 3339 format.
#[must_use]
pub fn time(at_us: i64) -> String {
    match jiff::Timestamp::from_microsecond(at_us) {
        Ok(time) => format!("{time:.3}"),
        Err(_) => format!("{at_us}us"),
    }
}

/// A time for people: this host's clock and time zone, to the second.
#[must_use]
pub fn local_time(at_us: i64) -> String {
    match jiff::Timestamp::from_microsecond(at_us) {
        Ok(time) => {
            let local = time.to_zoned(jiff::tz::TimeZone::system());
            local.strftime("%Y-%m-%d %H:%M:%S").to_string()
        }
        Err(_) => format!("{at_us}us"),
    }
}

/// The line of an event, cut at `width` columns if possible; with its session if `named`.
#[must_use]
pub fn line(event: &StoredEvent, named: bool, width: usize) -> String {
    let mut text = time(event.at_us);
    if named {
        text = format!("{text} {}", escape_for_display(&event.session, 64));
    }
    text = format!(
        "{text} {} {}",
        event.id,
        escape_for_display(&event.kind, 32)
    );
    let description = match event.decode() {
        Ok(stamped) => describe_event(&stamped.event),
        // An event of a newer version is shown as it is stored.
        Err(_) => event.body.clone(),
    };
    if description.is_empty() {
        return text;
    }
    let remaining = width.saturating_sub(text.chars().count() + 1).max(LEAST);
    format!("{text} {}", escape_for_display(&description, remaining))
}

/// Describes a child's start: its sandbox layers, how its limits are enforced, and what is missing.
fn describe_start(event: &Event) -> String {
    let Event::ChildStarted {
        pid,
        launcher,
        sandbox_gaps: lacks,
        limits,
        sandbox_layers,
    } = event
    else {
        return String::new();
    };
    let words: Vec<_> = lacks.iter().map(|word| word.as_str()).collect();
    let lacks = if words.is_empty() {
        String::new()
    } else {
        format!(", lacks {}", words.join(", "))
    };
    let limits = limits.as_ref().map_or(String::new(), |l| format!(", {l}"));
    let layers = match sandbox_layers.join(", ") {
        none if none.is_empty() => none,
        layers => format!(", {layers}"),
    };
    format!("pid {pid}, launcher {launcher}{layers}{limits}{lacks}")
}

/// Describes an event; untrusted text in it is not escaped yet.
fn describe_event(event: &Event) -> String {
    let or =
        |text: Option<&marshal_model::UntrustedText>| text.map_or("", |text| text.raw()).to_owned();
    match event {
        Event::PromptAccepted {
            task,
            attempt,
            text,
        } => {
            let task = task.as_ref().map_or("-", |task| task.as_str());
            format!("{task} attempt {attempt}: {}", text.raw())
        }
        Event::ChildStarted { .. } => describe_start(event),
        Event::Ready(info) => format!(
            "protocol {} {} {}",
            info.protocol,
            or(info.version.as_ref()),
            or(info.model.as_ref())
        ),
        Event::TurnStarted { turn } => or(turn.as_ref()),
        Event::Text { delta } | Event::Thought { delta } | Event::UserText { delta } => {
            delta.raw().to_owned()
        }
        Event::ToolStart { id, name, input } => {
            format!("{} {} {}", id.raw(), name.raw(), input.get())
        }
        Event::ToolUpdate {
            id, title, status, ..
        } => format!(
            "{} {} {}",
            id.raw(),
            or(status.as_ref()),
            or(title.as_ref())
        ),
        Event::ToolResult {
            id,
            output,
            is_error,
            ..
        } => {
            let how = if *is_error { "error" } else { "ok" };
            format!("{} {how}: {}", id.raw(), output.raw())
        }
        Event::PermissionRequested { .. }
        | Event::PermissionDecided(_)
        | Event::UnrequestedToolCall { .. } => of_ask(event),
        Event::Plan { entries } => {
            let steps = entries.iter().map(|entry| entry.content.raw());
            steps.collect::<Vec<_>>().join("; ")
        }
        Event::ContextUsed { used, size, cost } => {
            let cost = cost.as_ref();
            let cost = cost.map(|cost| format!(", {} {}", cost.amount, cost.currency.raw()));
            format!("{used} of {size} tokens{}", cost.unwrap_or_default())
        }
        Event::Usage(usage) => format!("{} in, {} out", usage.input, usage.output),
        Event::PlanStep { step, status } => format!("{status}: {}", step.raw()),
        Event::FileUpdated { tool, path, .. } => format!("{} by {}", path.raw(), tool.raw()),
        Event::StateChanged { model, mode, .. } => {
            format!("{} {}", or(model.as_ref()), or(mode.as_ref()))
        }
        Event::CommandSent { command, args, by } => {
            format!("/{command} {} (by {by})", args.raw())
        }
        Event::SlashResult { command, text, .. } => format!("{} {}", command.raw(), text.raw()),
        Event::AgentError { code, message, .. } => format!("{}: {}", code.raw(), message.raw()),
        Event::TurnEnded {
            outcome, detail, ..
        } => match detail {
            Some(detail) => format!("{outcome}: {detail}"),
            None => outcome.to_string(),
        },
        Event::TurnUnsent {
            outcome, detail, ..
        } => format!("{outcome}: {detail}"),
        Event::Unknown { tag, raw } => format!("{} {}", tag.raw(), raw.get()),
        Event::BadLine { reason, head } => format!("{reason}: {}", head.raw()),
        Event::ChildExited { class, detail, .. } => format!("{class}: {detail}"),
        Event::CheckEnded { status, output } => match status {
            Some(status) => format!("{status}: {}", output.raw()),
            None => output.raw().to_owned(),
        },
        Event::Quarantined {
            path,
            moved_to,
            detail,
        } => match (moved_to, detail) {
            (Some(to), _) => format!("{} -> {to}", path.raw()),
            (None, why) => format!("{}: {}", path.raw(), why.as_deref().unwrap_or_default()),
        },
        Event::ProgramRecorded { path, sha256, was } => match was {
            Some(was) => format!("{path}: SHA-256 {sha256}, was {was}"),
            None => format!("{path}: SHA-256 {sha256}"),
        },
        Event::TerminalStarted { .. }
        | Event::TerminalOutput { .. }
        | Event::TerminalEnded { .. } => of_terminal(event),
        Event::Egress { .. } => of_egress(event),
        other => of_session(other),
    }
}

/// Describes a permission request or a decision.
fn of_ask(event: &Event) -> String {
    match event {
        Event::PermissionRequested {
            id,
            request: approval,
        } => {
            format!("{id} {} {}", approval.tool.raw(), approval.input.get())
        }
        Event::PermissionDecided(verdict) => {
            format!("{} {}", verdict.request, describe_verdict(verdict))
        }
        Event::UnrequestedToolCall {
            id,
            tool,
            decision,
            rules,
        } => format!(
            "{} {} {decision} {}",
            id.raw(),
            tool.raw(),
            rules.join(", ")
        ),
        _ => String::new(),
    }
}

/// Describes an agent's report about its session, and the supervisor's reaction.
fn of_session(event: &Event) -> String {
    let or =
        |text: Option<&marshal_model::UntrustedText>| text.map_or("", |text| text.raw()).to_owned();
    match event {
        Event::Commands { commands } => {
            let names = commands.iter().map(|command| command.name.raw());
            names.collect::<Vec<_>>().join(", ")
        }
        Event::Options { options } => {
            let options = options
                .iter()
                .map(|option| format!("{}={}", option.id.raw(), or(option.value.as_ref())));
            options.collect::<Vec<_>>().join(", ")
        }
        Event::SessionInfo { title, updated_at } => {
            format!("{} {}", or(title.as_ref()), or(updated_at.as_ref()))
        }
        Event::Notice {
            severity,
            title,
            description,
        } => format!(
            "{}: {} {}",
            or(severity.as_ref()),
            title.raw(),
            or(description.as_ref())
        ),
        Event::Compaction { id, status, error } => format!(
            "{} {} {}",
            id.raw(),
            or(status.as_ref()),
            or(error.as_ref())
        ),
        Event::CompactionText { id, delta } => format!("{}: {}", id.raw(), delta.raw()),
        Event::SessionResumed { how, replayed } => {
            format!("by {how}, {replayed} messages of its history not repeated")
        }
        Event::Work(work) => of_work(work),
        Event::SessionFresh {
            instead_of, why, ..
        } => format!("instead of {instead_of}: {why}"),
        _ => String::new(),
    }
}

fn of_work(work: &WorkEvent) -> String {
    match work {
        WorkEvent::Item {
            step,
            status,
            content,
            done,
            total,
            ..
        } => format!("{done}/{total}, {step} {status}: {}", content.raw()),
        WorkEvent::Forwarded { chat, seq } => format!("event {seq} of {chat}"),
        WorkEvent::Member {
            chat,
            role,
            outcome,
        } => format!("{role} in {chat}: {outcome}"),
        WorkEvent::Review {
            state, plan, by, ..
        } => format!("{plan} {state} by {}", by.as_deref().unwrap_or("nobody")),
        WorkEvent::Round { round, why } => format!("{round}: {why}"),
        WorkEvent::Ended {
            outcome, message, ..
        } => format!("{outcome}: {message}"),
    }
}

fn of_egress(event: &Event) -> String {
    let Event::Egress {
        host,
        port,
        result,
        connections,
        sent,
        received,
        took,
    } = event
    else {
        return String::new();
    };
    let place = match (host, port) {
        (Some(host), Some(port)) => format!("{host}:{port}"),
        (Some(host), None) => host.clone(),
        (None, _) => "no host".to_owned(),
    };
    let many = if *connections == 1 {
        String::new()
    } else {
        format!(" {connections} times")
    };
    let bytes = if result.has_passed() {
        format!(", {sent} bytes out, {received} in, {took:.1?}")
    } else {
        String::new()
    };
    format!("{place} {result}{many}{bytes}")
}

fn of_terminal(event: &Event) -> String {
    match event {
        Event::TerminalStarted {
            terminal,
            argv,
            cwd,
            by,
        } => {
            let words: Vec<_> = argv.iter().map(UntrustedText::raw).collect();
            let by = by.as_ref().map(|by| format!(" (by {by})"));
            let by = by.unwrap_or_default();
            format!("{terminal} in {}: {}{by}", cwd.raw(), words.join(" "))
        }
        Event::TerminalOutput { terminal, delta } => format!("{terminal}: {}", delta.raw()),
        Event::TerminalEnded {
            terminal,
            status,
            written_bytes: wrote,
            ..
        } => {
            let how = status.map_or_else(|| "lost".to_owned(), |status| status.to_string());
            format!("{terminal} {how}, {wrote} bytes")
        }
        _ => String::new(),
    }
}

fn describe_verdict(verdict: &Verdict) -> String {
    let rules = verdict.rules.join(", ");
    let (decision, by, reason) = (verdict.decision, verdict.decided_by, &verdict.reason);
    format!("{decision} by {by} ({rules}): {reason}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use marshal_engine::api::test_fixtures::{EVIL, hostile_items};
    use marshal_fleet::FleetEvent;
    use marshal_journal::codec;
    use marshal_model::untrusted::is_unsafe;

    #[test]
    fn nothing_that_acts_on_a_terminal_is_in_a_line_of_any_kind() {
        for evil in EVIL {
            for notice in hostile_items(evil).1 {
                let FleetEvent::SessionEvents {
                    session, events, ..
                } = notice
                else {
                    continue;
                };
                for stamped in Arc::unwrap_or_clone(events) {
                    let mut body = Vec::new();
                    codec::encode_into(&stamped.event, &mut body);
                    let mut stored = StoredEvent {
                        session: session.to_string(),
                        id: stamped.id,
                        at_us: stamped.at_us,
                        kind: stamped.event.kind().as_str().to_owned(),
                        version: codec::VERSION,
                        body: String::from_utf8(body).expect("JSON"),
                    };
                    let text = line(&stored, true, 120);
                    assert!(!text.chars().any(is_unsafe), "{text:?}");
                    assert!(
                        text.starts_with("2023-11-14T22:13:20.000Z s 1-1 "),
                        "{text}"
                    );
                    stored.version = 99;
                    stored.kind = (*evil).to_owned();
                    let text = line(&stored, true, 120);
                    assert!(!text.chars().any(is_unsafe), "{text:?}");
                }
            }
        }
    }
}
