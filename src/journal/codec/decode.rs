//! Bodies -> events.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;

use super::{CodecError, VERSION, body};
use crate::model::{
    AgentInfo, Ask, AskId, AskKey, ChoiceInfo, Claimed, CommandInfo, Cost, DecidedBy, Decision,
    EgressResult, Event, EventKind, ExitClass, FileVersion, Foreign, OptionState, Origin,
    PlanEntry, PoolName, SessionId, StepStatus, TaskId, TaskRef, TaskSpec, TurnId, TurnOutcome,
    Usage, Verdict, Weakness,
};

/// The words that [`Event::ChildStarted`] and [`Event::BadLine`] carry as static texts. A word
/// that is not here reads back as `other`.
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

/// Reads an event back.
///
/// # Errors
/// [`CodecError`] if a newer program wrote it or the body is damaged.
pub fn decode(kind: &str, version: u32, body: &str) -> Result<Event, CodecError> {
    let kind = EventKind::from_word(kind).ok_or_else(|| CodecError::Kind(kind.to_owned()))?;
    if version > VERSION {
        return Err(CodecError::Version(version));
    }
    let reader = Reader { kind, body };
    match kind {
        EventKind::Text => reader.read(|b: body::Delta<'_>| Event::Text {
            delta: own(b.delta),
        }),
        EventKind::Thought => reader.read(|b: body::Delta<'_>| Event::Thought {
            delta: own(b.delta),
        }),
        EventKind::UserText => reader.read(|b: body::Delta<'_>| Event::UserText {
            delta: own(b.delta),
        }),
        EventKind::PromptAccepted
        | EventKind::ChildStarted
        | EventKind::Ready
        | EventKind::TurnStarted
        | EventKind::TurnEnded
        | EventKind::TurnUnsent
        | EventKind::ChildExited
        | EventKind::CheckEnded => course(&reader),
        EventKind::ToolStart
        | EventKind::ToolUpdate
        | EventKind::ToolResult
        | EventKind::Asked
        | EventKind::Decided
        | EventKind::Unasked
        | EventKind::FileUpdated
        | EventKind::PlanStep => tools(&reader),
        EventKind::TerminalStarted | EventKind::TerminalOutput | EventKind::TerminalEnded => {
            terminals(&reader)
        }
        EventKind::Egress => {
            let b: body::Egress<'_> = reader.parse()?;
            Ok(Event::Egress {
                host: b.host.map(Cow::into_owned),
                port: b.port,
                result: reader.word("result", &b.result, EgressResult::from_word)?,
                connections: b.connections,
                sent: b.sent,
                received: b.received,
                took: Duration::from_millis(b.took_ms),
            })
        }
        EventKind::Work => super::work::read(body).map(Event::Work),
        EventKind::Plan
        | EventKind::Usage
        | EventKind::ContextUsed
        | EventKind::StateChanged
        | EventKind::CommandGiven
        | EventKind::SlashResult
        | EventKind::AgentError
        | EventKind::Unknown
        | EventKind::BadLine => reports(&reader),
        EventKind::Commands
        | EventKind::Options
        | EventKind::SessionInfo
        | EventKind::Notice
        | EventKind::Compaction
        | EventKind::CompactionText
        | EventKind::SessionResumed
        | EventKind::SessionFresh => of_session(&reader),
    }
}

/// Reads what a task asked for back: its row's `id`, `prompt` and `spec`.
///
/// # Errors
/// [`CodecError::Spec`]
pub fn read_spec(id: &str, prompt: &Foreign, spec: &str) -> Result<TaskSpec, CodecError> {
    let damaged = |detail: String| CodecError::Spec {
        task: crate::model::foreign::show(id, 128),
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
        embed: body.embed.into_iter().map(Cow::into_owned).collect(),
        policy_layer: body.policy_layer.map(Cow::into_owned),
        priority: body.priority,
        after: after.map_err(|e| damaged(e.to_string()))?,
    })
}

/// One body and what it should be.
struct Reader<'a> {
    kind: EventKind,
    body: &'a str,
}

impl<'a> Reader<'a> {
    fn parse<B: Deserialize<'a>>(&self) -> Result<B, CodecError> {
        serde_json::from_str(self.body).map_err(|source| CodecError::Body {
            kind: self.kind,
            source,
        })
    }

    fn read<B: Deserialize<'a>>(&self, make: impl FnOnce(B) -> Event) -> Result<Event, CodecError> {
        self.parse().map(make)
    }

    /// A word or an id that must be one.
    fn word<T>(
        &self,
        what: &'static str,
        text: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, CodecError> {
        read(text).ok_or_else(|| CodecError::Word {
            kind: self.kind,
            what,
            text: text.to_owned(),
        })
    }

    fn ask_id(&self, text: &str) -> Result<AskId, CodecError> {
        self.word("ask id", text, |text| AskId::new(text).ok())
    }
}

fn course(reader: &Reader<'_>) -> Result<Event, CodecError> {
    Ok(match reader.kind {
        EventKind::PromptAccepted => {
            let b: body::PromptAccepted<'_> = reader.parse()?;
            Event::PromptAccepted {
                task: match b.task {
                    Some(task) => {
                        Some(reader.word("task id", &task, |text| TaskId::new(text).ok())?)
                    }
                    None => None,
                },
                attempt: b.attempt,
                text: own(b.text),
            }
        }
        EventKind::ChildStarted => {
            let b: body::ChildStarted<'_> = reader.parse()?;
            Event::ChildStarted {
                pid: b.pid,
                launcher: static_word(&b.launcher),
                lacks: b
                    .lacks
                    .iter()
                    .filter_map(|word| Weakness::from_word(word))
                    .collect(),
                limits: b.limits.map(std::borrow::Cow::into_owned),
                walls: b
                    .walls
                    .into_iter()
                    .map(std::borrow::Cow::into_owned)
                    .collect(),
            }
        }
        EventKind::Ready => {
            let b: body::Ready<'_> = reader.parse()?;
            Event::Ready(AgentInfo {
                protocol: b.protocol.into_owned(),
                version: b.version.map(own),
                session: b.session.map(own),
                model: b.model.map(own),
                mode: b.mode.map(own),
                modes: choices(b.modes),
                tools: b.tools.into_iter().map(own).collect(),
                context_window: b.context_window,
                forgets: false,
            })
        }
        EventKind::TurnStarted => {
            let b: body::TurnStarted<'_> = reader.parse()?;
            Event::TurnStarted {
                turn: b.turn.map(own),
            }
        }
        EventKind::ChildExited => {
            let b: body::ChildExited<'_> = reader.parse()?;
            Event::ChildExited {
                class: reader.word("exit class", &b.class, ExitClass::from_word)?,
                status: b.status.map(Into::into),
                detail: b.detail.into_owned(),
                stderr: b.stderr.into_iter().map(own).collect(),
                memory_peak: b.memory_peak,
            }
        }
        EventKind::CheckEnded => {
            let b: body::CheckEnded<'_> = reader.parse()?;
            Event::CheckEnded {
                status: b.status.map(Into::into),
                output: own(b.output),
            }
        }
        EventKind::TurnUnsent => {
            let b: body::TurnUnsent<'_> = reader.parse()?;
            Event::TurnUnsent {
                turn: reader.word("turn id", &b.turn, |text| TurnId::new(text).ok())?,
                outcome: reader.word("turn outcome", &b.outcome, TurnOutcome::from_word)?,
                detail: b.detail.into_owned(),
            }
        }
        _ => {
            let b: body::TurnEnded<'_> = reader.parse()?;
            Event::TurnEnded {
                outcome: reader.word("turn outcome", &b.outcome, TurnOutcome::from_word)?,
                stop_reason: b.stop_reason.map(own),
                usage: usage(b.usage),
                detail: b.detail.map(Cow::into_owned),
            }
        }
    })
}

fn tools(reader: &Reader<'_>) -> Result<Event, CodecError> {
    Ok(match reader.kind {
        EventKind::ToolStart => {
            let b: body::ToolStart<'_> = reader.parse()?;
            Event::ToolStart {
                id: own(b.id),
                name: own(b.name),
                input: b.input.into_owned(),
            }
        }
        EventKind::ToolUpdate => {
            let b: body::ToolUpdate<'_> = reader.parse()?;
            Event::ToolUpdate {
                id: own(b.id),
                name: b.name.map(own),
                title: b.title.map(own),
                status: b.status.map(own),
                input: b.input.map(Cow::into_owned),
            }
        }
        EventKind::ToolResult => {
            let b: body::ToolResult<'_> = reader.parse()?;
            Event::ToolResult {
                id: own(b.id),
                output: own(b.output),
                is_error: b.is_error,
                took: b.took_us.map(Duration::from_micros),
            }
        }
        EventKind::Asked => {
            let b: body::Asked<'_> = reader.parse()?;
            Event::Asked {
                id: reader.ask_id(&b.id)?,
                ask: Ask {
                    key: AskKey {
                        id: b.key.into_owned(),
                        serial: 0,
                    },
                    tool_id: b.tool_id.map(own),
                    tool: own(b.tool),
                    input: b.input.into_owned(),
                    claimed: claimed(b.claimed),
                },
            }
        }
        EventKind::Decided => {
            let b: body::Decided<'_> = reader.parse()?;
            Event::Decided(Verdict {
                ask: reader.ask_id(&b.ask)?,
                decision: reader.word("decision", &b.decision, Decision::from_word)?,
                by: reader.word("decider", &b.by, DecidedBy::from_word)?,
                rules: b.rules.into_iter().map(Cow::into_owned).collect(),
                reason: b.reason.into_owned(),
            })
        }
        EventKind::Unasked => {
            let b: body::Unasked<'_> = reader.parse()?;
            Event::Unasked {
                id: own(b.id),
                tool: own(b.tool),
                decision: reader.word("decision", &b.decision, Decision::from_word)?,
                rules: b.rules.into_iter().map(Cow::into_owned).collect(),
            }
        }
        EventKind::PlanStep => {
            let b: body::PlanStep<'_> = reader.parse()?;
            Event::PlanStep {
                status: reader.word("status", &b.status, StepStatus::from_word)?,
                step: own(b.step),
            }
        }
        _ => {
            let b: body::FileUpdated<'_> = reader.parse()?;
            Event::FileUpdated {
                tool: own(b.tool),
                path: own(b.path),
                sha256: b.sha256.map(Cow::into_owned),
                version: b.version.map(|of| {
                    Box::new(FileVersion {
                        workspace: own(of.workspace),
                        path: own(of.path),
                        v: of.v,
                        observed: of.observed,
                    })
                }),
            }
        }
    })
}

/// Commands that an agent has its client run.
fn terminals(reader: &Reader<'_>) -> Result<Event, CodecError> {
    Ok(match reader.kind {
        EventKind::TerminalStarted => {
            let b: body::TerminalStarted<'_> = reader.parse()?;
            Event::TerminalStarted {
                terminal: b.terminal.into_owned(),
                argv: b.argv.into_iter().map(own).collect(),
                cwd: own(b.cwd),
            }
        }
        EventKind::TerminalOutput => {
            let b: body::TerminalOutput<'_> = reader.parse()?;
            Event::TerminalOutput {
                terminal: b.terminal.into_owned(),
                delta: own(b.delta),
            }
        }
        _ => {
            let b: body::TerminalEnded<'_> = reader.parse()?;
            Event::TerminalEnded {
                terminal: b.terminal.into_owned(),
                status: b.status.map(Into::into),
                wrote: b.wrote,
                untold: b.untold,
            }
        }
    })
}

fn reports(reader: &Reader<'_>) -> Result<Event, CodecError> {
    Ok(match reader.kind {
        EventKind::Plan => {
            let b: body::Plan<'_> = reader.parse()?;
            let entry = |entry: body::PlanEntry<'_>| PlanEntry {
                content: own(entry.content),
                priority: entry.priority.map(own),
                status: entry.status.map(own),
            };
            Event::Plan {
                entries: b.entries.into_iter().map(entry).collect(),
            }
        }
        EventKind::Usage => Event::Usage(usage(reader.parse()?)),
        EventKind::ContextUsed => {
            let b: body::ContextUsed<'_> = reader.parse()?;
            Event::ContextUsed {
                used: b.used,
                size: b.size,
                cost: b.cost.map(|cost| Cost {
                    amount: cost.amount,
                    currency: own(cost.currency),
                }),
            }
        }
        EventKind::StateChanged => {
            let b: body::StateChanged<'_> = reader.parse()?;
            Event::StateChanged {
                model: b.model.map(own),
                mode: b.mode.map(own),
                context_pct: b.context_pct,
                context_window: b.context_window,
            }
        }
        EventKind::CommandGiven => {
            let b: body::CommandGiven<'_> = reader.parse()?;
            Event::CommandGiven {
                command: b.command.into_owned(),
                args: own(b.args),
                by: b.by.into_owned(),
            }
        }
        EventKind::SlashResult => {
            let b: body::SlashResult<'_> = reader.parse()?;
            Event::SlashResult {
                command: own(b.command),
                text: own(b.text),
                data: b.data.map(Cow::into_owned),
                clear_session: b.clear_session,
                exit: b.exit,
            }
        }
        EventKind::AgentError => {
            let b: body::AgentError<'_> = reader.parse()?;
            Event::AgentError {
                code: own(b.code),
                message: own(b.message),
                origin: reader.word("origin", &b.origin, Origin::from_word)?,
            }
        }
        EventKind::Unknown => {
            let b: body::Unknown<'_> = reader.parse()?;
            Event::Unknown {
                tag: own(b.tag),
                raw: b.raw.into_owned(),
            }
        }
        _ => {
            let b: body::BadLine<'_> = reader.parse()?;
            Event::BadLine {
                reason: static_word(&b.reason),
                head: own(b.head),
            }
        }
    })
}

fn of_session(reader: &Reader<'_>) -> Result<Event, CodecError> {
    Ok(match reader.kind {
        EventKind::Commands => {
            let b: body::Commands<'_> = reader.parse()?;
            let command = |b: body::CommandInfo<'_>| CommandInfo {
                name: own(b.name),
                description: own(b.description),
                hint: b.hint.map(own),
            };
            Event::Commands {
                commands: b.commands.into_iter().map(command).collect(),
            }
        }
        EventKind::Options => {
            let b: body::Options<'_> = reader.parse()?;
            let option = |b: body::OptionState<'_>| OptionState {
                id: own(b.id),
                name: b.name.map(own),
                category: b.category.map(own),
                value: b.value.map(own),
                choices: choices(b.choices),
                is_switch: b.switch,
            };
            Event::Options {
                options: b.options.into_iter().map(option).collect(),
            }
        }
        EventKind::SessionInfo => {
            let b: body::SessionInfo<'_> = reader.parse()?;
            Event::SessionInfo {
                title: b.title.map(own),
                updated_at: b.updated_at.map(own),
            }
        }
        EventKind::Notice => {
            let b: body::Notice<'_> = reader.parse()?;
            Event::Notice {
                severity: b.severity.map(own),
                title: own(b.title),
                description: b.description.map(own),
            }
        }
        EventKind::Compaction => {
            let b: body::Compaction<'_> = reader.parse()?;
            Event::Compaction {
                id: own(b.id),
                status: b.status.map(own),
                error: b.error.map(own),
            }
        }
        EventKind::CompactionText => {
            let b: body::CompactionText<'_> = reader.parse()?;
            Event::CompactionText {
                id: own(b.id),
                delta: own(b.delta),
            }
        }
        EventKind::SessionResumed => {
            let b: body::SessionResumed<'_> = reader.parse()?;
            Event::SessionResumed {
                how: static_word(&b.how),
                replayed: b.replayed,
            }
        }
        _ => {
            let b: body::SessionFresh<'_> = reader.parse()?;
            Event::SessionFresh {
                instead_of: reader.word("session id", &b.instead_of, |text| {
                    SessionId::new(text).ok()
                })?,
                why: b.why.into_owned(),
                untold: b.untold,
            }
        }
    })
}

fn claimed(b: body::Claimed<'_>) -> Claimed {
    Claimed {
        active_mode: b.active_mode.map(own),
        required_mode: b.required_mode.map(own),
        reason: b.reason.map(own),
        title: b.title.map(own),
        kind: b.kind.map(own),
        no_allow: b.no_allow,
    }
}

fn usage(b: body::Usage) -> Usage {
    Usage {
        input: b.input,
        output: b.output,
    }
}

fn choices(of: Vec<body::Choice<'_>>) -> Vec<ChoiceInfo> {
    let choice = |b: body::Choice<'_>| ChoiceInfo {
        id: own(b.id),
        name: b.name.map(own),
    };
    of.into_iter().map(choice).collect()
}

fn own(text: Cow<'_, str>) -> Foreign {
    Foreign::new(text)
}

fn static_word(text: &str) -> &'static str {
    STATIC_WORDS
        .iter()
        .copied()
        .find(|word| *word == text)
        .unwrap_or("other")
}
