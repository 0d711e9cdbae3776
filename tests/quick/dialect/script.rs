//! Runs a dialect against written-down input and tells what came of it, one effect a line.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use marshal_config::{DialectDefinition, DialectName};
use marshal_dialect::{
    Command, Dialect, Effect, Effects, Input, OpenParams, PendingDenials, SlashOutcome,
    create_dialect,
};
use marshal_model::{
    ClientError, ClientErrorKind, ClientOutput, ClientResult, Event, PermissionRequestKey,
    PermissionResponse, Setting, SettingValue, UntrustedText,
};
use marshal_wire::ndjson::{LineDecoder, LineError};

/// A dialect, its framing, and everything that came out of it so far.
pub(crate) struct Conversation {
    dialect: Box<dyn Dialect>,
    lines: LineDecoder,
    now: Instant,
    pub(crate) effects: Effects,
}

impl Conversation {
    pub(crate) fn new(name: DialectName) -> Self {
        let opening = OpenParams {
            workspace: "/workspace".to_owned(),
            ..OpenParams::default()
        };
        Self::opened(name, &opening)
    }

    /// The same, by a table of `examples/dialects`.
    pub(crate) fn by_table(table: &str) -> Self {
        let opening = OpenParams {
            workspace: "/workspace".to_owned(),
            dialect_definition: Some(example(table)),
            ..OpenParams::default()
        };
        Self::opened(DialectName::Custom, &opening)
    }

    pub(crate) fn opened(name: DialectName, opening: &OpenParams) -> Self {
        let mut talk = Self {
            dialect: create_dialect(name),
            lines: LineDecoder::default(),
            now: Instant::now(),
            effects: Effects::new(),
        };
        talk.dialect.open(opening, talk.now, &mut talk.effects);
        talk
    }

    /// Everything that was written so far, line by line.
    pub(crate) fn written_lines(&self) -> Vec<&str> {
        let lines = self.effects.iter().filter_map(|effect| match effect {
            Effect::Write(bytes) => std::str::from_utf8(bytes).unwrap().strip_suffix('\n'),
            _ => None,
        });
        lines.collect()
    }

    /// Bytes from the child's stdout.
    pub(crate) fn chunk(&mut self, bytes: &[u8]) {
        self.lines.push(bytes.to_vec());
        for line in self.lines.by_ref() {
            let input = match &line {
                Ok(line) => Input::Frame(line),
                Err(LineError::TooLong { head, .. }) => Input::TooLong(head),
            };
            self.dialect
                .handle_input(input, self.now, &mut self.effects);
        }
    }

    /// The end of the child's stdout.
    pub(crate) fn eof(&mut self) {
        if let Some(last) = self.lines.finish() {
            self.dialect
                .handle_input(Input::Frame(&last), self.now, &mut self.effects);
        }
        self.dialect
            .handle_input(Input::Eof, self.now, &mut self.effects);
    }

    /// So much time passes, and every deadline in it is kept.
    pub(crate) fn after(&mut self, wait: Duration) {
        let end = self.now + wait;
        while let Some(due) = self.dialect.deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.dialect.tick(self.now, &mut self.effects);
        }
        self.now = end;
    }

    /// A command; gives what it wrote, or the refusal.
    pub(crate) fn command(&mut self, mut command: Command) -> Result<String, String> {
        keyed(&mut command, &self.effects);
        let before = self.effects.len();
        self.dialect
            .handle_command(command, self.now, &mut self.effects)
            .map_err(|refused| refused.to_string())?;
        let written = self.effects[before..].iter().filter_map(|e| match e {
            Effect::Write(bytes) => Some(String::from_utf8(bytes.clone()).unwrap()),
            _ => None,
        });
        Ok(written.collect())
    }

    /// The channel is over: denials that no prompt told.
    pub(crate) fn untold(&mut self) -> PendingDenials {
        self.dialect.take_pending_denials()
    }

    /// What came out so far, one effect a line.
    pub(crate) fn effects_text(&self) -> String {
        let mut out = String::new();
        for effect in &self.effects {
            writeln!(out, "{}", describe(effect)).unwrap();
        }
        out
    }
}

/// The key of a request that is known by the agent's name for it; [`idempotent_run_id`] finds out which it is.
pub(crate) fn named(id: &str) -> PermissionRequestKey {
    PermissionRequestKey {
        id: id.to_owned(),
        serial: 0,
    }
}

/// Makes a command that answers a request answer the last one of that name.
pub(crate) fn keyed(command: &mut Command, effects: &[Effect]) {
    let (Command::AnswerPermission { key, .. } | Command::AnswerClientRequest { key, .. }) =
        command
    else {
        return;
    };
    if key.serial != 0 {
        return;
    }
    let keys = effects.iter().rev().filter_map(|effect| match effect {
        Effect::PermissionRequest(ask) => Some(&ask.key),
        Effect::ClientRequest { key, .. } => Some(key),
        _ => None,
    });
    if let Some(last) = keys.into_iter().find(|last| last.id == key.id) {
        key.clone_from(last);
    }
}

/// A table of `examples/dialects`.
pub(crate) fn example(name: &str) -> Arc<DialectDefinition> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/dialects");
    let file = std::path::Path::new(file).join(format!("{name}.toml"));
    let bytes = std::fs::read(&file).unwrap();
    Arc::new(DialectDefinition::parse(&bytes, &file).unwrap())
}

/// The lines of a script: `< LINE` is the agent's, `> WORD ARGS` is ours, `~ N` are milliseconds.
pub(crate) fn run(script: &str) -> String {
    played(Conversation::new(DialectName::Scaiflux), script)
}

/// Plays a script in a conversation that may have begun.
pub(crate) fn played(mut talk: Conversation, script: &str) -> String {
    play(&mut talk, script)
}

/// The same, of a conversation that goes on.
pub(crate) fn play(talk: &mut Conversation, script: &str) -> String {
    let mut refusals = String::new();
    for line in script.lines().map(str::trim).filter(|l| !l.is_empty()) {
        match line.split_at(2) {
            ("< ", "EOF") => talk.eof(),
            ("< ", "READY") => talk.chunk(b"{\"type\":\"ready\",\"protocol\":1}\n"),
            ("< ", said) => talk.chunk(format!("{said}\n").as_bytes()),
            ("~ ", wait) => talk.after(Duration::from_millis(wait.parse().unwrap())),
            ("> ", wanted) => {
                if let Err(refused) = talk.command(command(wanted)) {
                    writeln!(refusals, "refused {wanted}: {refused}").unwrap();
                }
            }
            _ => panic!("{line:?} is no line of a script"),
        }
    }
    talk.effects_text() + &refusals
}

/// The answer to a request to the client.
fn client(key: &str, answer: ClientResult) -> Command {
    let key = named(key);
    Command::AnswerClientRequest { key, answer }
}

fn error(fault: ClientErrorKind, message: &str) -> ClientResult {
    Err(ClientError::new(fault, message))
}

fn command(wanted: &str) -> Command {
    let (word, rest) = wanted.split_once(' ').unwrap_or((wanted, ""));
    let answer = |answer| {
        let key = rest.split(' ').next().unwrap();
        Command::AnswerPermission {
            key: named(key),
            answer,
        }
    };
    let (first, more) = rest.split_once(' ').unwrap_or((rest, ""));
    match word {
        "prompt" => Command::Prompt {
            text: rest.into(),
            attachments: Arc::default(),
        },
        "slash" => Command::Slash {
            command: first.to_owned(),
            args: more.to_owned(),
        },
        "cancel" => Command::Cancel,
        "mode" => Command::Set(Setting::Mode(rest.to_owned())),
        "option" => Command::Set(Setting::Option {
            id: first.to_owned(),
            value: match more {
                "on" => SettingValue::Switch(true),
                "off" => SettingValue::Switch(false),
                value => SettingValue::Choice(value.to_owned()),
            },
        }),
        "goodbye" => Command::Goodbye,
        "allow" => answer(PermissionResponse::Allow),
        "deny" => answer(PermissionResponse::Deny(more.to_owned())),
        "text" => client(first, Ok(ClientOutput::Text(more.to_owned()))),
        "done" => client(first, Ok(ClientOutput::Empty)),
        "missing" => client(first, error(ClientErrorKind::NotFound, more)),
        "refused" => client(first, error(ClientErrorKind::Denied, more)),
        "invalid" => client(first, error(ClientErrorKind::Invalid, more)),
        "cancelled" => client(first, error(ClientErrorKind::Cancelled, more)),
        _ => panic!("{word:?} is no command"),
    }
}

fn describe(effect: &Effect) -> String {
    match effect {
        Effect::Write(bytes) => {
            let text = std::str::from_utf8(bytes).unwrap();
            format!("write {}", text.strip_suffix('\n').unwrap())
        }
        Effect::Event(event) => describe_event(event),
        Effect::Ready(info) => {
            let mut out = format!("ready protocol={}", info.protocol);
            let tools: Vec<_> = info.tools.iter().map(text).collect();
            for (name, value) in [
                ("version", &info.version),
                ("session", &info.session),
                ("model", &info.model),
                ("mode", &info.mode),
            ] {
                if let Some(value) = value {
                    write!(out, " {name}={}", text(value)).unwrap();
                }
            }
            if !tools.is_empty() {
                write!(out, " tools={}", tools.join(",")).unwrap();
            }
            if let Some(window) = info.context_window {
                write!(out, " context_window={window}").unwrap();
            }
            out
        }
        Effect::SettingResult(Ok(())) => "set".to_owned(),
        Effect::SettingResult(Err(why)) => format!("not set: {why}"),
        Effect::SlashEnded(SlashOutcome::Answered { ok: true, .. }) => "commanded".to_owned(),
        Effect::SlashEnded(SlashOutcome::Answered { text: said, .. }) => {
            format!("not commanded {}", text(said))
        }
        Effect::SlashEnded(SlashOutcome::Unanswered(why)) => format!("not commanded: {why}"),
        Effect::SlashEnded(SlashOutcome::Rejected(refused)) => format!("not commanded: {refused}"),
        Effect::PermissionRequest(ask) => {
            let claims = [
                ("active", &ask.claims.active_mode),
                ("required", &ask.claims.required_mode),
                ("reason", &ask.claims.reason),
                ("call", &ask.tool_id),
                ("title", &ask.claims.title),
                ("kind", &ask.claims.kind),
            ];
            let mut out = format!("ask {} {} {}", id(&ask.key), text(&ask.tool), ask.input);
            for (name, value) in claims {
                if let Some(value) = value {
                    write!(out, " {name}={}", text(value)).unwrap();
                }
            }
            if ask.claims.has_no_allow_option {
                out += " no_allow";
            }
            out
        }
        Effect::ClientRequest {
            key,
            call,
            permission_request: ask,
        } => {
            let judged = ask.as_ref().map_or("-", |ask| ask.input.get());
            format!("client {} {} {judged}", id(key), call.method())
        }
        Effect::RequestWithdrawn(key) => format!("withdrawn {}", id(key)),
        Effect::Cancelling => "cancelling".to_owned(),
        Effect::CloseInput => "close input".to_owned(),
        Effect::ExitExpected => "exit wanted".to_owned(),
        Effect::SessionCleared => "session cleared".to_owned(),
        Effect::ChannelFailed(fault) => format!("fault {fault}"),
    }
}

#[expect(clippy::too_many_lines, reason = "one arm for each kind of event")]
fn describe_event(event: &Event) -> String {
    match event {
        Event::TurnStarted { turn } => format!("turn started {}", optional(turn.as_ref())),
        Event::Text { delta } => format!("text {}", text(delta)),
        Event::ToolStart { id, name, input } => {
            format!("tool {} {} {input}", text(id), text(name))
        }
        Event::ToolResult {
            id,
            output,
            is_error,
            took,
        } => format!(
            "result {} {} error={is_error} took={took:?}",
            text(id),
            text(output)
        ),
        Event::ToolUpdate {
            id,
            name,
            title,
            status,
            input,
        } => format!(
            "update {} {} {} {} {}",
            text(id),
            optional(name.as_ref()),
            optional(title.as_ref()),
            optional(status.as_ref()),
            input.as_ref().map_or("-", |raw| raw.get())
        ),
        Event::Plan { entries } => {
            let mut out = "plan".to_owned();
            for entry in entries {
                let (priority, status) = (entry.priority.as_ref(), entry.status.as_ref());
                write!(out, " {}", text(&entry.content)).unwrap();
                write!(out, "({} {})", optional(priority), optional(status)).unwrap();
            }
            out
        }
        Event::ContextUsed { used, size, cost } => {
            let mut out = format!("context {used}/{size}");
            if let Some(cost) = cost {
                write!(out, " {} {}", cost.amount, text(&cost.currency)).unwrap();
            }
            out
        }
        Event::Thought { delta } => format!("thought {}", text(delta)),
        Event::FileUpdated { tool, path, .. } => format!("file {} {}", text(tool), text(path)),
        Event::TurnEnded {
            outcome,
            stop_reason,
            usage,
            detail,
        } => {
            let mut out = format!(
                "turn ended {outcome} {} tokens={}/{}",
                optional(stop_reason.as_ref()),
                usage.input,
                usage.output
            );
            if let Some(detail) = detail {
                write!(out, " ({detail})").unwrap();
            }
            out
        }
        Event::AgentError {
            code,
            message,
            origin,
        } => format!("error {} {} {origin}", text(code), text(message)),
        Event::BadLine { reason, head } => format!("bad {reason} {}", head.escape_for_display(60)),
        Event::Unknown { tag, raw } => format!("unknown {} {raw}", text(tag)),
        Event::StateChanged {
            model,
            mode,
            context_pct,
            context_window,
        } => format!(
            "state model={} mode={} pct={context_pct:?} window={context_window:?}",
            optional(model.as_ref()),
            optional(mode.as_ref())
        ),
        Event::SlashResult {
            command,
            text: said,
            data,
            clear_session,
            exit,
        } => format!(
            "slash {} {} data={} clear={clear_session} exit={exit}",
            text(command),
            text(said),
            data.as_ref().map_or("-", |raw| raw.get())
        ),
        Event::UserText { delta } => format!("user {}", text(delta)),
        Event::Commands { commands } => {
            let names = commands.iter().map(|command| {
                let hint = optional(command.hint.as_ref());
                format!(
                    "{}({} {hint})",
                    text(&command.name),
                    text(&command.description)
                )
            });
            format!("commands {}", names.collect::<Vec<_>>().join(" "))
        }
        Event::Options { options } => {
            let options = options
                .iter()
                .map(|option| format!("{}={}", text(&option.id), optional(option.value.as_ref())));
            format!("options {}", options.collect::<Vec<_>>().join(" "))
        }
        Event::SessionResumed { how, replayed } => format!("resumed by {how} without {replayed}"),
        Event::SessionInfo { title, updated_at } => format!(
            "info {} {}",
            optional(title.as_ref()),
            optional(updated_at.as_ref())
        ),
        Event::Notice {
            severity,
            title,
            description,
        } => format!(
            "notice {} {} {}",
            optional(severity.as_ref()),
            text(title),
            optional(description.as_ref())
        ),
        Event::Compaction { id, status, error } => format!(
            "compaction {} {} {}",
            text(id),
            optional(status.as_ref()),
            optional(error.as_ref())
        ),
        Event::Usage(usage) => format!("usage {}/{}", usage.input, usage.output),
        Event::CompactionText { id, delta } => format!("compacted {} {}", text(id), text(delta)),
        other => format!("{other:?}"),
    }
}

fn id(key: &PermissionRequestKey) -> String {
    UntrustedText::from(key.id.as_str()).escape_for_display(120)
}

fn text(foreign: &UntrustedText) -> String {
    format!("'{}'", foreign.escape_for_display(120))
}

fn optional(foreign: Option<&UntrustedText>) -> String {
    foreign.map_or_else(|| "-".to_owned(), text)
}
