//! Bodies -> events.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;

use super::{CodecError, VERSION, body};
use marshal_model::{
    AgentClaims, AgentInfo, ChoiceInfo, CommandInfo, Cost, DecidedBy, Decision, EgressResult,
    ErrorOrigin, Event, EventKind, ExitClass, FileVersion, OptionState, PermissionRequest,
    PermissionRequestId, PermissionRequestKey, PlanEntry, PoolName, SandboxGap, SessionId,
    StepStatus, TaskId, TaskRef, TaskSpec, TurnId, TurnOutcome, UntrustedText, Usage, Verdict,
};

/// The words that [`Event::ChildStarted`] and [`Event::BadLine`] carry as static texts. Any other
/// word reads back as `other`.
const STATIC_WORDS: &[&str] = &[
    "unshare",
    "none",
    "pty",
    "ssh",
    "too_long",
    "bad_utf8",
    "bad_json",
    "not_object",
    "no_type",
    "bad_shape",
    "duplicate_id",
    "too_many_asks",
    "unknown_type",
    "unknown_id",
    "out_of_state",
    "version",
    "session/load",
    "resume",
    "session/resume",
    "session.get",
    "resume_args",
    "--resume",
];

/// Decodes an event.
///
/// # Errors
/// [`CodecError`] if a newer program wrote it or the body is damaged.
pub fn decode(kind: &str, version: u32, body: &str) -> Result<Event, CodecError> {
    let kind = EventKind::parse(kind).ok_or_else(|| CodecError::Kind(kind.to_owned()))?;
    if version > VERSION {
        return Err(CodecError::Version(version));
    }
    let reader = BodyReader { kind, body };
    match kind {
        EventKind::Text => reader.parse_into(|b: body::Delta<'_>| Event::Text {
            delta: to_untrusted(b.delta),
        }),
        EventKind::Thought => reader.parse_into(|b: body::Delta<'_>| Event::Thought {
            delta: to_untrusted(b.delta),
        }),
        EventKind::UserText => reader.parse_into(|b: body::Delta<'_>| Event::UserText {
            delta: to_untrusted(b.delta),
        }),
        EventKind::PromptAccepted
        | EventKind::ChildStarted
        | EventKind::Ready
        | EventKind::TurnStarted
        | EventKind::TurnEnded
        | EventKind::TurnUnsent
        | EventKind::ChildExited
        | EventKind::CheckEnded
        | EventKind::Quarantined => decode_lifecycle(&reader),
        EventKind::ProgramRecorded => {
            reader.parse_into(|b: body::ProgramRecorded<'_>| Event::ProgramRecorded {
                path: b.path.into_owned(),
                sha256: b.sha256.into_owned(),
                was: b.was.map(Cow::into_owned),
            })
        }
        EventKind::ToolStart
        | EventKind::ToolUpdate
        | EventKind::ToolResult
        | EventKind::PermissionRequested
        | EventKind::PermissionDecided
        | EventKind::UnrequestedToolCall
        | EventKind::FileUpdated
        | EventKind::PlanStep => decode_tools(&reader),
        EventKind::TerminalStarted | EventKind::TerminalOutput | EventKind::TerminalEnded => {
            decode_terminals(&reader)
        }
        EventKind::Egress => {
            let b: body::Egress<'_> = reader.parse()?;
            Ok(Event::Egress {
                host: b.host.map(Cow::into_owned),
                port: b.port,
                result: reader.parse_word("result", &b.result, EgressResult::parse)?,
                connections: b.connections,
                sent: b.sent,
                received: b.received,
                took: Duration::from_millis(b.took_ms),
            })
        }
        EventKind::Work => super::work::decode_work(body).map(Event::Work),
        EventKind::Plan
        | EventKind::Usage
        | EventKind::ContextUsed
        | EventKind::StateChanged
        | EventKind::CommandSent
        | EventKind::SlashResult
        | EventKind::AgentError
        | EventKind::Unknown
        | EventKind::BadLine => decode_reports(&reader),
        EventKind::Commands
        | EventKind::Options
        | EventKind::SessionInfo
        | EventKind::Notice
        | EventKind::Compaction
        | EventKind::CompactionText
        | EventKind::SessionResumed
        | EventKind::SessionFresh => decode_session(&reader),
    }
}

/// Decodes a task's specification from the `id`, `prompt` and `spec` of its row.
///
/// # Errors
/// [`CodecError::Spec`]
pub fn read_spec(id: &str, prompt: &UntrustedText, spec: &str) -> Result<TaskSpec, CodecError> {
    let damaged = |detail: String| CodecError::Spec {
        task: marshal_model::untrusted::escape_for_display(id, 128),
        detail,
    };
    let body: body::Spec<'_> = serde_json::from_str(spec).map_err(|e| damaged(e.to_string()))?;
    let pool = body.pool.map(|pool| PoolName::new(&pool)).transpose();
    let after = body.after.iter().map(|of| TaskRef::parse(of)).collect();
    let after: Result<Vec<_>, _> = after;
    Ok(TaskSpec {
        id: TaskId::new(id).map_err(|e| damaged(e.to_string()))?,
        prompt: prompt.clone(),
        pool: pool.map_err(|e| damaged(e.to_string()))?,
        workspace: body.workspace.map(|path| path.into_owned().into()),
        attempts: body.attempts,
        check: body
            .check
            .map(|argv| argv.into_iter().map(Cow::into_owned).collect()),
        files: body.files.into_iter().map(Cow::into_owned).collect(),
        embedded_files: body.embed.into_iter().map(Cow::into_owned).collect(),
        policy_layer: body.policy_layer.map(Cow::into_owned),
        priority: body.priority,
        depends_on: after.map_err(|e| damaged(e.to_string()))?,
    })
}

/// A body and the kind that it should be.
struct BodyReader<'a> {
    kind: EventKind,
    body: &'a str,
}

impl<'a> BodyReader<'a> {
    fn parse<B: Deserialize<'a>>(&self) -> Result<B, CodecError> {
        serde_json::from_str(self.body).map_err(|source| CodecError::Body {
            kind: self.kind,
            source,
        })
    }

    fn parse_into<B: Deserialize<'a>>(
        &self,
        make: impl FnOnce(B) -> Event,
    ) -> Result<Event, CodecError> {
        self.parse().map(make)
    }

    /// Parses a word or an id; fails if it is unknown or invalid.
    fn parse_word<T>(
        &self,
        what: &'static str,
        text: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, CodecError> {
        read(text).ok_or_else(|| CodecError::InvalidValue {
            kind: self.kind,
            what,
            text: text.to_owned(),
        })
    }

    fn parse_request_id(&self, text: &str) -> Result<PermissionRequestId, CodecError> {
        self.parse_word("permission request id", text, |text| {
            PermissionRequestId::new(text).ok()
        })
    }
}

fn decode_lifecycle(reader: &BodyReader<'_>) -> Result<Event, CodecError> {
    Ok(match reader.kind {
        EventKind::PromptAccepted => {
            let b: body::PromptAccepted<'_> = reader.parse()?;
            Event::PromptAccepted {
                task: match b.task {
                    Some(task) => {
                        Some(reader.parse_word("task id", &task, |text| TaskId::new(text).ok())?)
                    }
                    None => None,
                },
                attempt: b.attempt,
                text: to_untrusted(b.text),
            }
        }
        EventKind::ChildStarted => {
            let b: body::ChildStarted<'_> = reader.parse()?;
            Event::ChildStarted {
                pid: b.pid,
                launcher: intern_word(&b.launcher),
                sandbox_gaps: b
                    .lacks
                    .iter()
                    .filter_map(|word| SandboxGap::parse(word))
                    .collect(),
                limits: b.limits.map(std::borrow::Cow::into_owned),
                sandbox_layers: b
                    .sandbox
                    .into_iter()
                    .map(std::borrow::Cow::into_owned)
                    .collect(),
            }
        }
        EventKind::Ready => {
            let b: body::Ready<'_> = reader.parse()?;
            Event::Ready(AgentInfo {
                protocol: b.protocol.into_owned(),
                version: b.version.map(to_untrusted),
                session: b.session.map(to_untrusted),
                model: b.model.map(to_untrusted),
                mode: b.mode.map(to_untrusted),
                modes: decode_choices(b.modes),
                tools: b.tools.into_iter().map(to_untrusted).collect(),
                context_window: b.context_window,
                cannot_resume: false,
            })
        }
        EventKind::TurnStarted => {
            let b: body::TurnStarted<'_> = reader.parse()?;
            Event::TurnStarted {
                turn: b.turn.map(to_untrusted),
            }
        }
        EventKind::ChildExited => {
            let b: body::ChildExited<'_> = reader.parse()?;
            Event::ChildExited {
                class: reader.parse_word("exit class", &b.class, ExitClass::parse)?,
                status: b.status.map(Into::into),
                detail: b.detail.into_owned(),
                stderr: b.stderr.into_iter().map(to_untrusted).collect(),
                memory_peak: b.memory_peak,
            }
        }
        EventKind::CheckEnded => {
            let b: body::CheckEnded<'_> = reader.parse()?;
            Event::CheckEnded {
                status: b.status.map(Into::into),
                output: to_untrusted(b.output),
            }
        }
        EventKind::Quarantined => {
            let b: body::Quarantined<'_> = reader.parse()?;
            Event::Quarantined {
                path: to_untrusted(b.path),
                moved_to: b.moved_to.map(Cow::into_owned),
                detail: b.detail.map(Cow::into_owned),
            }
        }
        EventKind::TurnUnsent => {
            let b: body::TurnUnsent<'_> = reader.parse()?;
            Event::TurnUnsent {
                turn: reader.parse_word("turn id", &b.turn, |text| TurnId::new(text).ok())?,
                outcome: reader.parse_word("turn outcome", &b.outcome, TurnOutcome::parse)?,
                detail: b.detail.into_owned(),
            }
        }
        _ => {
            let b: body::TurnEnded<'_> = reader.parse()?;
            Event::TurnEnded {
                outcome: reader.parse_word("turn outcome", &b.outcome, TurnOutcome::parse)?,
                stop_reason: b.stop_reason.map(to_untrusted),
                usage: decode_usage(b.usage),
                detail: b.detail.map(Cow::into_owned),
            }
        }
    })
}

fn decode_tools(reader: &BodyReader<'_>) -> Result<Event, CodecError> {
    Ok(match reader.kind {
        EventKind::ToolStart => {
            let b: body::ToolStart<'_> = reader.parse()?;
            Event::ToolStart {
                id: to_untrusted(b.id),
                name: to_untrusted(b.name),
                input: b.input.into_owned(),
            }
        }
        EventKind::ToolUpdate => {
            let b: body::ToolUpdate<'_> = reader.parse()?;
            Event::ToolUpdate {
                id: to_untrusted(b.id),
                name: b.name.map(to_untrusted),
                title: b.title.map(to_untrusted),
                status: b.status.map(to_untrusted),
                input: b.input.map(Cow::into_owned),
            }
        }
        EventKind::ToolResult => {
            let b: body::ToolResult<'_> = reader.parse()?;
            Event::ToolResult {
                id: to_untrusted(b.id),
                output: to_untrusted(b.output),
                is_error: b.is_error,
                took: b.took_us.map(Duration::from_micros),
            }
        }
        EventKind::PermissionRequested => {
            let b: body::PermissionRequested<'_> = reader.parse()?;
            Event::PermissionRequested {
                id: reader.parse_request_id(&b.id)?,
                request: PermissionRequest {
                    key: PermissionRequestKey {
                        id: b.key.into_owned(),
                        serial: 0,
                    },
                    tool_id: b.tool_id.map(to_untrusted),
                    tool: to_untrusted(b.tool),
                    input: b.input.into_owned(),
                    claims: decode_claims(b.claimed),
                },
            }
        }
        EventKind::PermissionDecided => {
            let b: body::PermissionDecided<'_> = reader.parse()?;
            Event::PermissionDecided(Verdict {
                request: reader.parse_request_id(&b.request)?,
                decision: reader.parse_word("decision", &b.decision, Decision::parse)?,
                decided_by: reader.parse_word("decider", &b.by, DecidedBy::parse)?,
                rules: b.rules.into_iter().map(Cow::into_owned).collect(),
                reason: b.reason.into_owned(),
            })
        }
        EventKind::UnrequestedToolCall => {
            let b: body::UnrequestedToolCall<'_> = reader.parse()?;
            Event::UnrequestedToolCall {
                id: to_untrusted(b.id),
                tool: to_untrusted(b.tool),
                decision: reader.parse_word("decision", &b.decision, Decision::parse)?,
                rules: b.rules.into_iter().map(Cow::into_owned).collect(),
            }
        }
        EventKind::PlanStep => {
            let b: body::PlanStep<'_> = reader.parse()?;
            Event::PlanStep {
                status: reader.parse_word("status", &b.status, StepStatus::parse)?,
                step: to_untrusted(b.step),
            }
        }
        _ => {
            let b: body::FileUpdated<'_> = reader.parse()?;
            Event::FileUpdated {
                tool: to_untrusted(b.tool),
                path: to_untrusted(b.path),
                sha256: b.sha256.map(Cow::into_owned),
                version: b.version.map(|of| {
                    Box::new(FileVersion {
                        workspace: to_untrusted(of.workspace),
                        path: to_untrusted(of.path),
                        file: of.file.map(Cow::into_owned),
                        version: of.v,
                        observed: of.observed,
                        moved_from: of.moved_from.map(to_untrusted),
                    })
                }),
            }
        }
    })
}

/// Decodes events of commands that an agent has its client run.
fn decode_terminals(reader: &BodyReader<'_>) -> Result<Event, CodecError> {
    Ok(match reader.kind {
        EventKind::TerminalStarted => {
            let b: body::TerminalStarted<'_> = reader.parse()?;
            Event::TerminalStarted {
                terminal: b.terminal.into_owned(),
                argv: b.argv.into_iter().map(to_untrusted).collect(),
                cwd: to_untrusted(b.cwd),
            }
        }
        EventKind::TerminalOutput => {
            let b: body::TerminalOutput<'_> = reader.parse()?;
            Event::TerminalOutput {
                terminal: b.terminal.into_owned(),
                delta: to_untrusted(b.delta),
            }
        }
        _ => {
            let b: body::TerminalEnded<'_> = reader.parse()?;
            Event::TerminalEnded {
                terminal: b.terminal.into_owned(),
                status: b.status.map(Into::into),
                written_bytes: b.bytes,
                omitted_bytes: b.omitted_bytes,
            }
        }
    })
}

fn decode_reports(reader: &BodyReader<'_>) -> Result<Event, CodecError> {
    Ok(match reader.kind {
        EventKind::Plan => {
            let b: body::Plan<'_> = reader.parse()?;
            let entry = |entry: body::PlanEntry<'_>| PlanEntry {
                content: to_untrusted(entry.content),
                priority: entry.priority.map(to_untrusted),
                status: entry.status.map(to_untrusted),
            };
            Event::Plan {
                entries: b.entries.into_iter().map(entry).collect(),
            }
        }
        EventKind::Usage => Event::Usage(decode_usage(reader.parse()?)),
        EventKind::ContextUsed => {
            let b: body::ContextUsed<'_> = reader.parse()?;
            Event::ContextUsed {
                used: b.used,
                size: b.size,
                cost: b.cost.map(|cost| Cost {
                    amount: cost.amount,
                    currency: to_untrusted(cost.currency),
                }),
            }
        }
        EventKind::StateChanged => {
            let b: body::StateChanged<'_> = reader.parse()?;
            Event::StateChanged {
                model: b.model.map(to_untrusted),
                mode: b.mode.map(to_untrusted),
                context_pct: b.context_pct,
                context_window: b.context_window,
            }
        }
        EventKind::CommandSent => {
            let b: body::CommandSent<'_> = reader.parse()?;
            Event::CommandSent {
                command: b.command.into_owned(),
                args: to_untrusted(b.args),
                by: b.by.into_owned(),
            }
        }
        EventKind::SlashResult => {
            let b: body::SlashResult<'_> = reader.parse()?;
            Event::SlashResult {
                command: to_untrusted(b.command),
                text: to_untrusted(b.text),
                data: b.data.map(Cow::into_owned),
                clear_session: b.clear_session,
                exit: b.exit,
            }
        }
        EventKind::AgentError => {
            let b: body::AgentError<'_> = reader.parse()?;
            Event::AgentError {
                code: to_untrusted(b.code),
                message: to_untrusted(b.message),
                origin: reader.parse_word("origin", &b.origin, ErrorOrigin::parse)?,
            }
        }
        EventKind::Unknown => {
            let b: body::Unknown<'_> = reader.parse()?;
            Event::Unknown {
                tag: to_untrusted(b.tag),
                raw: b.raw.into_owned(),
            }
        }
        _ => {
            let b: body::BadLine<'_> = reader.parse()?;
            Event::BadLine {
                reason: intern_word(&b.reason),
                head: to_untrusted(b.head),
            }
        }
    })
}

fn decode_session(reader: &BodyReader<'_>) -> Result<Event, CodecError> {
    Ok(match reader.kind {
        EventKind::Commands => {
            let b: body::Commands<'_> = reader.parse()?;
            let command = |b: body::CommandInfo<'_>| CommandInfo {
                name: to_untrusted(b.name),
                description: to_untrusted(b.description),
                hint: b.hint.map(to_untrusted),
            };
            Event::Commands {
                commands: b.commands.into_iter().map(command).collect(),
            }
        }
        EventKind::Options => {
            let b: body::Options<'_> = reader.parse()?;
            let option = |b: body::OptionState<'_>| OptionState {
                id: to_untrusted(b.id),
                name: b.name.map(to_untrusted),
                category: b.category.map(to_untrusted),
                value: b.value.map(to_untrusted),
                choices: decode_choices(b.choices),
                is_switch: b.switch,
            };
            Event::Options {
                options: b.options.into_iter().map(option).collect(),
            }
        }
        EventKind::SessionInfo => {
            let b: body::SessionInfo<'_> = reader.parse()?;
            Event::SessionInfo {
                title: b.title.map(to_untrusted),
                updated_at: b.updated_at.map(to_untrusted),
            }
        }
        EventKind::Notice => {
            let b: body::Notice<'_> = reader.parse()?;
            Event::Notice {
                severity: b.severity.map(to_untrusted),
                title: to_untrusted(b.title),
                description: b.description.map(to_untrusted),
            }
        }
        EventKind::Compaction => {
            let b: body::Compaction<'_> = reader.parse()?;
            Event::Compaction {
                id: to_untrusted(b.id),
                status: b.status.map(to_untrusted),
                error: b.error.map(to_untrusted),
            }
        }
        EventKind::CompactionText => {
            let b: body::CompactionText<'_> = reader.parse()?;
            Event::CompactionText {
                id: to_untrusted(b.id),
                delta: to_untrusted(b.delta),
            }
        }
        EventKind::SessionResumed => {
            let b: body::SessionResumed<'_> = reader.parse()?;
            Event::SessionResumed {
                how: intern_word(&b.how),
                replayed: b.replayed,
            }
        }
        _ => {
            let b: body::SessionFresh<'_> = reader.parse()?;
            Event::SessionFresh {
                instead_of: reader.parse_word("session id", &b.instead_of, |text| {
                    SessionId::new(text).ok()
                })?,
                why: b.why.into_owned(),
                history_omitted: b.history_omitted,
            }
        }
    })
}

fn decode_claims(b: body::Claimed<'_>) -> AgentClaims {
    AgentClaims {
        active_mode: b.active_mode.map(to_untrusted),
        required_mode: b.required_mode.map(to_untrusted),
        reason: b.reason.map(to_untrusted),
        title: b.title.map(to_untrusted),
        kind: b.kind.map(to_untrusted),
        has_no_allow_option: b.no_allow,
    }
}

fn decode_usage(b: body::Usage) -> Usage {
    Usage {
        input: b.input,
        output: b.output,
    }
}

fn decode_choices(of: Vec<body::Choice<'_>>) -> Vec<ChoiceInfo> {
    let choice = |b: body::Choice<'_>| ChoiceInfo {
        id: to_untrusted(b.id),
        name: b.name.map(to_untrusted),
    };
    of.into_iter().map(choice).collect()
}

fn to_untrusted(text: Cow<'_, str>) -> UntrustedText {
    UntrustedText::new(text)
}

fn intern_word(text: &str) -> &'static str {
    STATIC_WORDS
        .iter()
        .copied()
        .find(|word| *word == text)
        .unwrap_or("other")
}
