//! Events -> bodies of version 1.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;

use super::body::{self, maybe, text};
use crate::limits;
use crate::model::{Ask, ChoiceInfo, Claimed, Event, FileVersion, TaskSpec, Usage};

/// Appends the event's body, one JSON object, to `out`.
pub fn encode_into(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::Text { delta } | Event::Thought { delta } | Event::UserText { delta } => {
            put(out, &body::Delta { delta: text(delta) });
        }
        Event::PromptAccepted { .. }
        | Event::ChildStarted { .. }
        | Event::Ready(_)
        | Event::TurnStarted { .. }
        | Event::TurnEnded { .. }
        | Event::TurnUnsent { .. }
        | Event::ChildExited { .. }
        | Event::CheckEnded { .. } => course(event, out),
        Event::ToolStart { .. }
        | Event::ToolUpdate { .. }
        | Event::ToolResult { .. }
        | Event::Asked { .. }
        | Event::Decided(_)
        | Event::Unasked { .. }
        | Event::FileUpdated { .. }
        | Event::PlanStep { .. } => tools(event, out),
        Event::TerminalStarted { .. }
        | Event::TerminalOutput { .. }
        | Event::TerminalEnded { .. } => terminals(event, out),
        Event::Egress { .. } => egress(event, out),
        Event::Work(work) => super::work::write(work, out),
        Event::CommandGiven { command, args, by } => {
            put(out, &body::CommandGiven::of(command, args, by));
        }
        Event::Plan { .. }
        | Event::Usage(_)
        | Event::ContextUsed { .. }
        | Event::StateChanged { .. }
        | Event::SlashResult { .. }
        | Event::AgentError { .. }
        | Event::Unknown { .. }
        | Event::BadLine { .. } => reports(event, out),
        Event::Commands { .. }
        | Event::Options { .. }
        | Event::SessionInfo { .. }
        | Event::Notice { .. }
        | Event::Compaction { .. }
        | Event::CompactionText { .. }
        | Event::SessionResumed { .. }
        | Event::SessionFresh { .. } => of_session(event, out),
    }
}

/// What the agent claims beside an ask, as the ask's row keeps it.
pub(in crate::journal) fn claimed_json(claimed: &Claimed) -> String {
    let mut out = Vec::new();
    put(&mut out, &claims(claimed));
    String::from_utf8(out).unwrap_or_default()
}

/// A task's own wishes, as the task's row keeps them beside its prompt.
pub(in crate::journal) fn spec_json(spec: &TaskSpec) -> String {
    let mut out = Vec::new();
    put(
        &mut out,
        &body::Spec {
            pool: spec.pool.as_ref().map(|pool| Cow::Borrowed(pool.as_str())),
            workspace: spec.workspace.as_ref().map(|path| path.to_string_lossy()),
            attempts: spec.attempts,
            check: spec
                .check
                .as_ref()
                .map(|argv| argv.iter().map(Into::into).collect()),
            files: spec.files.iter().map(Into::into).collect(),
            embed: spec.embed.iter().map(Into::into).collect(),
            policy_layer: spec.policy_layer.as_deref().map(Cow::Borrowed),
            priority: spec.priority,
            after: spec.after.iter().map(|of| of.to_string().into()).collect(),
        },
    );
    String::from_utf8(out).unwrap_or_default()
}

/// Words as they are stored.
fn words<'a>(words: impl Iterator<Item = &'a str>) -> Vec<Cow<'a, str>> {
    words.map(Cow::Borrowed).collect()
}

/// How a turn begins and ends.
fn turn_of(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::TurnStarted { turn } => put(
            out,
            &body::TurnStarted {
                turn: maybe(turn.as_ref()),
            },
        ),
        Event::TurnEnded {
            outcome,
            stop_reason,
            usage: used,
            detail,
        } => put(
            out,
            &body::TurnEnded {
                outcome: Cow::Borrowed(outcome.word()),
                stop_reason: maybe(stop_reason.as_ref()),
                usage: usage(*used),
                detail: detail.as_deref().map(Cow::Borrowed),
            },
        ),
        Event::TurnUnsent {
            turn,
            outcome,
            detail,
        } => put(
            out,
            &body::TurnUnsent {
                turn: Cow::Borrowed(turn.as_str()),
                outcome: Cow::Borrowed(outcome.word()),
                detail: Cow::Borrowed(detail),
            },
        ),
        _ => {}
    }
}

/// The course of a session: prompts, children, turns.
fn course(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::PromptAccepted {
            task,
            attempt,
            text: prompt,
        } => put(
            out,
            &body::PromptAccepted {
                task: task.as_ref().map(|task| Cow::Borrowed(task.as_str())),
                attempt: *attempt,
                text: text(prompt),
            },
        ),
        Event::ChildStarted {
            pid,
            launcher,
            lacks,
            limits,
            walls,
        } => put(
            out,
            &body::ChildStarted {
                pid: *pid,
                launcher: Cow::Borrowed(launcher),
                lacks: words(lacks.iter().map(|word| word.word())),
                limits: limits.as_deref().map(Cow::Borrowed),
                walls: words(walls.iter().map(String::as_str)),
            },
        ),
        Event::Ready(info) => put(
            out,
            &body::Ready {
                protocol: Cow::Borrowed(&info.protocol),
                version: maybe(info.version.as_ref()),
                session: maybe(info.session.as_ref()),
                model: maybe(info.model.as_ref()),
                mode: maybe(info.mode.as_ref()),
                modes: choices(&info.modes),
                tools: info.tools.iter().map(text).collect(),
                context_window: info.context_window,
            },
        ),
        Event::TurnStarted { .. } | Event::TurnEnded { .. } | Event::TurnUnsent { .. } => {
            turn_of(event, out);
        }
        Event::ChildExited {
            class,
            status,
            detail,
            stderr,
            memory_peak,
        } => put(
            out,
            &body::ChildExited {
                class: Cow::Borrowed(class.word()),
                status: status.map(Into::into),
                detail: Cow::Borrowed(detail),
                stderr: stderr.iter().map(text).collect(),
                memory_peak: *memory_peak,
            },
        ),
        Event::CheckEnded { status, output } => put(
            out,
            &body::CheckEnded {
                status: status.map(Into::into),
                output: text(output),
            },
        ),
        _ => {}
    }
}

fn file_version(of: &FileVersion) -> body::FileVersion<'_> {
    body::FileVersion {
        workspace: text(&of.workspace),
        path: text(&of.path),
        v: of.v,
        observed: of.observed,
    }
}

/// Tools, asks and what they did.
fn tools(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::ToolStart { id, name, input } => put(
            out,
            &body::ToolStart {
                id: text(id),
                name: text(name),
                input: Cow::Borrowed(&**input),
            },
        ),
        Event::ToolUpdate {
            id,
            name,
            title,
            status,
            input,
        } => put(
            out,
            &body::ToolUpdate {
                id: text(id),
                name: maybe(name.as_ref()),
                title: maybe(title.as_ref()),
                status: maybe(status.as_ref()),
                input: input.as_deref().map(Cow::Borrowed),
            },
        ),
        Event::ToolResult {
            id,
            output,
            is_error,
            took,
        } => put(
            out,
            &body::ToolResult {
                id: text(id),
                output: text(output),
                is_error: *is_error,
                took_us: took.map(|took| u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
            },
        ),
        Event::Asked { id, ask } => asked(id.as_str(), ask, out),
        Event::Decided(verdict) => put(
            out,
            &body::Decided {
                ask: Cow::Borrowed(verdict.ask.as_str()),
                decision: Cow::Borrowed(verdict.decision.word()),
                by: Cow::Borrowed(verdict.by.word()),
                rules: verdict.rules.iter().map(Into::into).collect(),
                reason: Cow::Borrowed(&verdict.reason),
            },
        ),
        Event::Unasked {
            id,
            tool,
            decision,
            rules,
        } => put(
            out,
            &body::Unasked {
                id: text(id),
                tool: text(tool),
                decision: Cow::Borrowed(decision.word()),
                rules: rules.iter().map(Into::into).collect(),
            },
        ),
        Event::FileUpdated {
            tool,
            path,
            sha256,
            version,
        } => put(
            out,
            &body::FileUpdated {
                tool: text(tool),
                path: text(path),
                sha256: sha256.as_deref().map(Into::into),
                version: version.as_deref().map(file_version),
            },
        ),
        Event::PlanStep { step, status } => put(
            out,
            &body::PlanStep {
                step: text(step),
                status: status.word().into(),
            },
        ),
        _ => {}
    }
}

fn choices(of: &[ChoiceInfo]) -> Vec<body::Choice<'_>> {
    of.iter()
        .map(|choice| body::Choice {
            id: text(&choice.id),
            name: maybe(choice.name.as_ref()),
        })
        .collect()
}

/// Commands that an agent has its client run.
fn terminals(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::TerminalStarted {
            terminal,
            argv,
            cwd,
        } => put(
            out,
            &body::TerminalStarted {
                terminal: Cow::Borrowed(terminal),
                argv: argv.iter().map(text).collect(),
                cwd: text(cwd),
            },
        ),
        Event::TerminalOutput { terminal, delta } => put(
            out,
            &body::TerminalOutput {
                terminal: Cow::Borrowed(terminal),
                delta: text(delta),
            },
        ),
        Event::TerminalEnded {
            terminal,
            status,
            wrote,
            untold,
        } => put(
            out,
            &body::TerminalEnded {
                terminal: Cow::Borrowed(terminal),
                status: status.map(Into::into),
                wrote: *wrote,
                untold: *untold,
            },
        ),
        _ => {}
    }
}

/// Connections to hosts outside.
fn egress(event: &Event, out: &mut Vec<u8>) {
    if let Event::Egress {
        host,
        port,
        result,
        connections,
        sent,
        received,
        took,
    } = event
    {
        put(
            out,
            &body::Egress {
                host: host.as_deref().map(Cow::Borrowed),
                port: *port,
                result: Cow::Borrowed(result.word()),
                connections: *connections,
                sent: *sent,
                received: *received,
                took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            },
        );
    }
}

/// What an agent reports beside its work, and what is no message at all.
fn reports(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::Plan { entries } => put(
            out,
            &body::Plan {
                entries: entries
                    .iter()
                    .map(|entry| body::PlanEntry {
                        content: text(&entry.content),
                        priority: maybe(entry.priority.as_ref()),
                        status: maybe(entry.status.as_ref()),
                    })
                    .collect(),
            },
        ),
        Event::Usage(used) => put(out, &usage(*used)),
        Event::ContextUsed { used, size, cost } => put(
            out,
            &body::ContextUsed {
                used: *used,
                size: *size,
                cost: cost.as_ref().map(|cost| body::Cost {
                    amount: cost.amount,
                    currency: text(&cost.currency),
                }),
            },
        ),
        Event::StateChanged {
            model,
            mode,
            context_pct,
            context_window,
        } => put(
            out,
            &body::StateChanged {
                model: maybe(model.as_ref()),
                mode: maybe(mode.as_ref()),
                context_pct: *context_pct,
                context_window: *context_window,
            },
        ),
        Event::SlashResult {
            command,
            text: said,
            data,
            clear_session,
            exit,
        } => put(
            out,
            &body::SlashResult {
                command: text(command),
                text: text(said),
                data: data.as_deref().map(Cow::Borrowed),
                clear_session: *clear_session,
                exit: *exit,
            },
        ),
        Event::AgentError {
            code,
            message,
            origin,
        } => put(
            out,
            &body::AgentError {
                code: text(code),
                message: text(message),
                origin: Cow::Borrowed(origin.word()),
            },
        ),
        Event::Unknown { tag, raw } => put(
            out,
            &body::Unknown {
                tag: text(tag),
                raw: Cow::Borrowed(&**raw),
            },
        ),
        Event::BadLine { reason, head } => put(
            out,
            &body::BadLine {
                reason: Cow::Borrowed(reason),
                head: text(head),
            },
        ),
        _ => {}
    }
}

/// What an agent says of its session, and what we did about that.
fn of_session(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::Commands { commands } => {
            let commands = commands.iter().map(|command| body::CommandInfo {
                name: text(&command.name),
                description: text(&command.description),
                hint: maybe(command.hint.as_ref()),
            });
            let commands = commands.collect();
            put(out, &body::Commands { commands });
        }
        Event::Options { options } => {
            let options = options.iter().map(|option| body::OptionState {
                id: text(&option.id),
                name: maybe(option.name.as_ref()),
                category: maybe(option.category.as_ref()),
                value: maybe(option.value.as_ref()),
                choices: choices(&option.choices),
                switch: option.is_switch,
            });
            let options = options.collect();
            put(out, &body::Options { options });
        }
        Event::SessionInfo { title, updated_at } => put(
            out,
            &body::SessionInfo {
                title: maybe(title.as_ref()),
                updated_at: maybe(updated_at.as_ref()),
            },
        ),
        Event::Notice {
            severity,
            title,
            description,
        } => put(
            out,
            &body::Notice {
                severity: maybe(severity.as_ref()),
                title: text(title),
                description: maybe(description.as_ref()),
            },
        ),
        Event::Compaction { id, status, error } => put(
            out,
            &body::Compaction {
                id: text(id),
                status: maybe(status.as_ref()),
                error: maybe(error.as_ref()),
            },
        ),
        Event::CompactionText { id, delta } => put(
            out,
            &body::CompactionText {
                id: text(id),
                delta: text(delta),
            },
        ),
        Event::SessionResumed { how, replayed } => put(
            out,
            &body::SessionResumed {
                how: Cow::Borrowed(how),
                replayed: *replayed,
            },
        ),
        Event::SessionFresh {
            instead_of,
            why,
            untold,
        } => put(
            out,
            &body::SessionFresh {
                instead_of: Cow::Borrowed(instead_of.as_str()),
                why: Cow::Borrowed(why),
                untold: *untold,
            },
        ),
        _ => {}
    }
}

fn asked(id: &str, ask: &Ask, out: &mut Vec<u8>) {
    let bytes = ask.input.get().len();
    let stored: Cow<'_, RawValue> = if bytes > limits::ASK_INPUT_BYTES {
        Cow::Owned(RawValue::NULL.to_owned())
    } else {
        Cow::Borrowed(&*ask.input)
    };
    put(
        out,
        &body::Asked {
            id: Cow::Borrowed(id),
            key: Cow::Borrowed(&ask.key.id),
            tool_id: maybe(ask.tool_id.as_ref()),
            tool: text(&ask.tool),
            input: stored,
            input_bytes: (bytes > limits::ASK_INPUT_BYTES).then_some(bytes as u64),
            claimed: claims(&ask.claimed),
        },
    );
}

fn claims(claimed: &Claimed) -> body::Claimed<'_> {
    body::Claimed {
        active_mode: maybe(claimed.active_mode.as_ref()),
        required_mode: maybe(claimed.required_mode.as_ref()),
        reason: maybe(claimed.reason.as_ref()),
        title: maybe(claimed.title.as_ref()),
        kind: maybe(claimed.kind.as_ref()),
        no_allow: claimed.no_allow,
    }
}

fn usage(used: Usage) -> body::Usage {
    body::Usage {
        input: used.input,
        output: used.output,
    }
}

/// Appends `body` as JSON. Bodies are structs of strings and numbers and `out` is memory, so
/// this cannot fail; if it did, the half body is taken back and a reader finds it damaged.
fn put<T: Serialize>(out: &mut Vec<u8>, body: &T) {
    let before = out.len();
    if serde_json::to_writer(&mut *out, body).is_err() {
        out.truncate(before);
    }
}
