//! Events -> bodies of version 1.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;

use super::body::{self, optional_text, text};
use marshal_model::limits;
use marshal_model::{
    AgentClaims, ChoiceInfo, Event, FileVersion, PermissionRequest, TaskSpec, Usage,
};

/// Appends the event's body, one JSON object, to `out`.
pub fn encode_into(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::Text { delta } | Event::Thought { delta } | Event::UserText { delta } => {
            write_json(out, &body::Delta { delta: text(delta) });
        }
        Event::PromptAccepted { .. }
        | Event::ChildStarted { .. }
        | Event::Ready(_)
        | Event::TurnStarted { .. }
        | Event::TurnEnded { .. }
        | Event::TurnUnsent { .. }
        | Event::ChildExited { .. }
        | Event::CheckEnded { .. }
        | Event::Quarantined { .. }
        | Event::ProgramRecorded { .. } => encode_lifecycle(event, out),
        Event::ToolStart { .. }
        | Event::ToolUpdate { .. }
        | Event::ToolResult { .. }
        | Event::PermissionRequested { .. }
        | Event::PermissionDecided(_)
        | Event::UnrequestedToolCall { .. }
        | Event::FileUpdated { .. }
        | Event::PlanStep { .. } => encode_tools(event, out),
        Event::TerminalStarted { .. }
        | Event::TerminalOutput { .. }
        | Event::TerminalEnded { .. } => encode_terminals(event, out),
        Event::Egress { .. } => encode_egress(event, out),
        Event::Work(work) => super::work::encode_work(work, out),
        Event::CommandSent { command, args, by } => {
            write_json(out, &body::CommandSent::new(command, args, by));
        }
        Event::Plan { .. }
        | Event::Usage(_)
        | Event::ContextUsed { .. }
        | Event::StateChanged { .. }
        | Event::SlashResult { .. }
        | Event::AgentError { .. }
        | Event::Unknown { .. }
        | Event::BadLine { .. } => encode_reports(event, out),
        Event::Commands { .. }
        | Event::Options { .. }
        | Event::SessionInfo { .. }
        | Event::Notice { .. }
        | Event::Compaction { .. }
        | Event::CompactionText { .. }
        | Event::SessionResumed { .. }
        | Event::SessionFresh { .. } => encode_session(event, out),
    }
}

/// The agent's claims about a request, for the `claimed` column.
pub(crate) fn claimed_json(claimed: &AgentClaims) -> String {
    let mut out = Vec::new();
    write_json(&mut out, &encode_claims(claimed));
    String::from_utf8(out).unwrap_or_default()
}

/// A task's options beside its prompt, for the `spec` column.
pub(crate) fn spec_json(spec: &TaskSpec) -> String {
    let mut out = Vec::new();
    write_json(
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
            embed: spec.embedded_files.iter().map(Into::into).collect(),
            policy_layer: spec.policy_layer.as_deref().map(Cow::Borrowed),
            priority: spec.priority,
            after: spec
                .depends_on
                .iter()
                .map(|of| of.to_string().into())
                .collect(),
        },
    );
    String::from_utf8(out).unwrap_or_default()
}

/// Borrows words for serialization.
fn borrow_words<'a>(words: impl Iterator<Item = &'a str>) -> Vec<Cow<'a, str>> {
    words.map(Cow::Borrowed).collect()
}

/// Encodes the begin and the end of a turn.
fn encode_turn(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::TurnStarted { turn } => write_json(
            out,
            &body::TurnStarted {
                turn: optional_text(turn.as_ref()),
            },
        ),
        Event::TurnEnded {
            outcome,
            stop_reason,
            usage: used,
            detail,
        } => write_json(
            out,
            &body::TurnEnded {
                outcome: Cow::Borrowed(outcome.as_str()),
                stop_reason: optional_text(stop_reason.as_ref()),
                usage: encode_usage(*used),
                detail: detail.as_deref().map(Cow::Borrowed),
            },
        ),
        Event::TurnUnsent {
            turn,
            outcome,
            detail,
        } => write_json(
            out,
            &body::TurnUnsent {
                turn: Cow::Borrowed(turn.as_str()),
                outcome: Cow::Borrowed(outcome.as_str()),
                detail: Cow::Borrowed(detail),
            },
        ),
        _ => {}
    }
}

/// Encodes the course of a session: prompts, children, turns.
fn encode_lifecycle(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::PromptAccepted {
            task,
            attempt,
            text: prompt,
        } => write_json(
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
            sandbox_gaps: lacks,
            limits,
            sandbox_layers,
        } => write_json(
            out,
            &body::ChildStarted {
                pid: *pid,
                launcher: Cow::Borrowed(launcher),
                lacks: borrow_words(lacks.iter().map(|word| word.as_str())),
                limits: limits.as_deref().map(Cow::Borrowed),
                sandbox: borrow_words(sandbox_layers.iter().map(String::as_str)),
            },
        ),
        Event::Ready(info) => write_json(
            out,
            &body::Ready {
                protocol: Cow::Borrowed(&info.protocol),
                version: optional_text(info.version.as_ref()),
                session: optional_text(info.session.as_ref()),
                model: optional_text(info.model.as_ref()),
                mode: optional_text(info.mode.as_ref()),
                modes: encode_choices(&info.modes),
                tools: info.tools.iter().map(text).collect(),
                context_window: info.context_window,
            },
        ),
        Event::TurnStarted { .. } | Event::TurnEnded { .. } | Event::TurnUnsent { .. } => {
            encode_turn(event, out);
        }
        Event::ChildExited {
            class,
            status,
            detail,
            stderr,
            memory_peak,
        } => write_json(
            out,
            &body::ChildExited {
                class: Cow::Borrowed(class.as_str()),
                status: status.map(Into::into),
                detail: Cow::Borrowed(detail),
                stderr: stderr.iter().map(text).collect(),
                memory_peak: *memory_peak,
            },
        ),
        Event::CheckEnded { status, output } => write_json(
            out,
            &body::CheckEnded {
                status: status.map(Into::into),
                output: text(output),
            },
        ),
        Event::Quarantined {
            path,
            moved_to,
            detail,
        } => write_json(
            out,
            &body::Quarantined {
                path: text(path),
                moved_to: moved_to.as_deref().map(Cow::Borrowed),
                detail: detail.as_deref().map(Cow::Borrowed),
            },
        ),
        Event::ProgramRecorded { path, sha256, was } => write_json(
            out,
            &body::ProgramRecorded {
                path: path.into(),
                sha256: sha256.into(),
                was: was.as_deref().map(Cow::Borrowed),
            },
        ),
        _ => {}
    }
}

fn encode_file_version(of: &FileVersion) -> body::FileVersion<'_> {
    body::FileVersion {
        workspace: text(&of.workspace),
        path: text(&of.path),
        v: of.version,
        file: of.file.as_deref().map(Cow::Borrowed),
        observed: of.observed,
        moved_from: of.moved_from.as_ref().map(text),
    }
}

/// Encodes tool calls, permission requests and file changes.
fn encode_tools(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::ToolStart { id, name, input } => write_json(
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
        } => write_json(
            out,
            &body::ToolUpdate {
                id: text(id),
                name: optional_text(name.as_ref()),
                title: optional_text(title.as_ref()),
                status: optional_text(status.as_ref()),
                input: input.as_deref().map(Cow::Borrowed),
            },
        ),
        Event::ToolResult {
            id,
            output,
            is_error,
            took,
        } => write_json(
            out,
            &body::ToolResult {
                id: text(id),
                output: text(output),
                is_error: *is_error,
                took_us: took.map(|took| u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
            },
        ),
        Event::PermissionRequested { id, request: ask } => {
            encode_permission_request(id.as_str(), ask, out);
        }
        Event::PermissionDecided(verdict) => write_json(
            out,
            &body::PermissionDecided {
                request: Cow::Borrowed(verdict.request.as_str()),
                decision: Cow::Borrowed(verdict.decision.as_str()),
                by: Cow::Borrowed(verdict.decided_by.as_str()),
                rules: verdict.rules.iter().map(Into::into).collect(),
                reason: Cow::Borrowed(&verdict.reason),
            },
        ),
        Event::UnrequestedToolCall {
            id,
            tool,
            decision,
            rules,
        } => write_json(
            out,
            &body::UnrequestedToolCall {
                id: text(id),
                tool: text(tool),
                decision: Cow::Borrowed(decision.as_str()),
                rules: rules.iter().map(Into::into).collect(),
            },
        ),
        Event::FileUpdated {
            tool,
            path,
            sha256,
            version,
        } => write_json(
            out,
            &body::FileUpdated {
                tool: text(tool),
                path: text(path),
                sha256: sha256.as_deref().map(Into::into),
                version: version.as_deref().map(encode_file_version),
            },
        ),
        Event::PlanStep { step, status } => write_json(
            out,
            &body::PlanStep {
                step: text(step),
                status: status.as_str().into(),
            },
        ),
        _ => {}
    }
}

fn encode_choices(of: &[ChoiceInfo]) -> Vec<body::Choice<'_>> {
    of.iter()
        .map(|choice| body::Choice {
            id: text(&choice.id),
            name: optional_text(choice.name.as_ref()),
        })
        .collect()
}

/// Encodes commands that an agent has its client run.
fn encode_terminals(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::TerminalStarted {
            terminal,
            argv,
            cwd,
        } => write_json(
            out,
            &body::TerminalStarted {
                terminal: Cow::Borrowed(terminal),
                argv: argv.iter().map(text).collect(),
                cwd: text(cwd),
            },
        ),
        Event::TerminalOutput { terminal, delta } => write_json(
            out,
            &body::TerminalOutput {
                terminal: Cow::Borrowed(terminal),
                delta: text(delta),
            },
        ),
        Event::TerminalEnded {
            terminal,
            status,
            written_bytes: wrote,
            omitted_bytes: untold,
        } => write_json(
            out,
            &body::TerminalEnded {
                terminal: Cow::Borrowed(terminal),
                status: status.map(Into::into),
                bytes: *wrote,
                omitted_bytes: *untold,
            },
        ),
        _ => {}
    }
}

/// Encodes connections to hosts outside.
fn encode_egress(event: &Event, out: &mut Vec<u8>) {
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
        write_json(
            out,
            &body::Egress {
                host: host.as_deref().map(Cow::Borrowed),
                port: *port,
                result: Cow::Borrowed(result.as_str()),
                connections: *connections,
                sent: *sent,
                received: *received,
                took_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            },
        );
    }
}

/// Encodes an agent's reports beside its work, and lines that are no messages.
fn encode_reports(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::Plan { entries } => write_json(
            out,
            &body::Plan {
                entries: entries
                    .iter()
                    .map(|entry| body::PlanEntry {
                        content: text(&entry.content),
                        priority: optional_text(entry.priority.as_ref()),
                        status: optional_text(entry.status.as_ref()),
                    })
                    .collect(),
            },
        ),
        Event::Usage(used) => write_json(out, &encode_usage(*used)),
        Event::ContextUsed { used, size, cost } => write_json(
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
        } => write_json(
            out,
            &body::StateChanged {
                model: optional_text(model.as_ref()),
                mode: optional_text(mode.as_ref()),
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
        } => write_json(
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
        } => write_json(
            out,
            &body::AgentError {
                code: text(code),
                message: text(message),
                origin: Cow::Borrowed(origin.as_str()),
            },
        ),
        Event::Unknown { tag, raw } => write_json(
            out,
            &body::Unknown {
                tag: text(tag),
                raw: Cow::Borrowed(&**raw),
            },
        ),
        Event::BadLine { reason, head } => write_json(
            out,
            &body::BadLine {
                reason: Cow::Borrowed(reason),
                head: text(head),
            },
        ),
        _ => {}
    }
}

/// Encodes what an agent reports of its session, and the supervisor's reactions.
fn encode_session(event: &Event, out: &mut Vec<u8>) {
    match event {
        Event::Commands { commands } => {
            let commands = commands.iter().map(|command| body::CommandInfo {
                name: text(&command.name),
                description: text(&command.description),
                hint: optional_text(command.hint.as_ref()),
            });
            let commands = commands.collect();
            write_json(out, &body::Commands { commands });
        }
        Event::Options { options } => {
            let options = options.iter().map(|option| body::OptionState {
                id: text(&option.id),
                name: optional_text(option.name.as_ref()),
                category: optional_text(option.category.as_ref()),
                value: optional_text(option.value.as_ref()),
                choices: encode_choices(&option.choices),
                switch: option.is_switch,
            });
            let options = options.collect();
            write_json(out, &body::Options { options });
        }
        Event::SessionInfo { title, updated_at } => write_json(
            out,
            &body::SessionInfo {
                title: optional_text(title.as_ref()),
                updated_at: optional_text(updated_at.as_ref()),
            },
        ),
        Event::Notice {
            severity,
            title,
            description,
        } => write_json(
            out,
            &body::Notice {
                severity: optional_text(severity.as_ref()),
                title: text(title),
                description: optional_text(description.as_ref()),
            },
        ),
        Event::Compaction { id, status, error } => write_json(
            out,
            &body::Compaction {
                id: text(id),
                status: optional_text(status.as_ref()),
                error: optional_text(error.as_ref()),
            },
        ),
        Event::CompactionText { id, delta } => write_json(
            out,
            &body::CompactionText {
                id: text(id),
                delta: text(delta),
            },
        ),
        Event::SessionResumed { how, replayed } => write_json(
            out,
            &body::SessionResumed {
                how: Cow::Borrowed(how),
                replayed: *replayed,
            },
        ),
        Event::SessionFresh {
            instead_of,
            why,
            history_omitted: untold,
        } => write_json(
            out,
            &body::SessionFresh {
                instead_of: Cow::Borrowed(instead_of.as_str()),
                why: Cow::Borrowed(why),
                history_omitted: *untold,
            },
        ),
        _ => {}
    }
}

fn encode_permission_request(id: &str, request: &PermissionRequest, out: &mut Vec<u8>) {
    let bytes = request.input.get().len();
    let stored: Cow<'_, RawValue> = if bytes > limits::PERMISSION_INPUT_BYTES {
        Cow::Owned(RawValue::NULL.to_owned())
    } else {
        Cow::Borrowed(&*request.input)
    };
    write_json(
        out,
        &body::PermissionRequested {
            id: Cow::Borrowed(id),
            key: Cow::Borrowed(&request.key.id),
            tool_id: optional_text(request.tool_id.as_ref()),
            tool: text(&request.tool),
            input: stored,
            input_bytes: (bytes > limits::PERMISSION_INPUT_BYTES).then_some(bytes as u64),
            claimed: encode_claims(&request.claims),
        },
    );
}

fn encode_claims(claimed: &AgentClaims) -> body::Claimed<'_> {
    body::Claimed {
        active_mode: optional_text(claimed.active_mode.as_ref()),
        required_mode: optional_text(claimed.required_mode.as_ref()),
        reason: optional_text(claimed.reason.as_ref()),
        title: optional_text(claimed.title.as_ref()),
        kind: optional_text(claimed.kind.as_ref()),
        no_allow: claimed.has_no_allow_option,
    }
}

fn encode_usage(used: Usage) -> body::Usage {
    body::Usage {
        input: used.input,
        output: used.output,
    }
}

/// Appends `body` as JSON. Bodies are structs of strings and numbers and `out` is memory, so this
/// cannot fail. If it failed, `out` is truncated to its former length and a reader reports the
/// event as damaged.
fn write_json<T: Serialize>(out: &mut Vec<u8>, body: &T) {
    let before = out.len();
    if serde_json::to_writer(&mut *out, body).is_err() {
        out.truncate(before);
    }
}
