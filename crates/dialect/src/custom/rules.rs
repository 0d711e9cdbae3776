//! Reads a message by one rule of the definition: typed values instead of paths.
//!
//! Must not know in which order messages come. Reading is lenient: an optional value may be `null`.
//! A text, a name or a request's id must have its type.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::path_tree::{PathTree, PathValues, parse_name};
use crate::lenient::{BoundedList, Count, parse, parse_string, raw_or_null};
use marshal_config::dialect_definition::{
    Condition, DataPath, DialectDefinition, Expected, Field, Rule, RuleEvent,
};
use marshal_model::limits;
use marshal_model::{AgentClaims, AgentInfo, ErrorOrigin, Event, UntrustedText, Usage};
use marshal_wire::json::BadFrame;

/// Text blocks of one output.
const BLOCKS: usize = 64;

/// The rules for messages of one type.
#[derive(Debug, Default)]
pub(super) struct TypeRules {
    pub(super) paths: PathTree,
    pub(super) rules: Vec<CompiledRule>,
    /// The slot of the turn that the message names.
    turn: Option<usize>,
}

/// One rule, with slot numbers instead of paths.
#[derive(Debug)]
pub(super) struct CompiledRule {
    /// The index of the rule in the definition.
    pub(super) rule: usize,
    pub(super) event: RuleEvent,
    fields: Vec<(Field, bool, usize)>,
    when: Vec<(usize, Vec<Expected>)>,
    unless: Vec<(usize, Vec<Expected>)>,
}

/// The content of a message.
#[derive(Debug)]
pub(super) enum RuleMessage<'a> {
    Ready(Option<&'a RawValue>, Box<AgentInfo>),
    TurnStarted(Option<String>),
    Text(String),
    Thought(String),
    /// A tool call, or more of it.
    Tool(Event),
    /// The end of a tool call.
    ToolEnd(Event),
    Permission(Box<Request<'a>>),
    Withdraw(String),
    Usage(Usage),
    State(Event),
    End(Box<EndMessage>),
    Error {
        code: UntrustedText,
        message: UntrustedText,
        origin: ErrorOrigin,
    },
    Slash(Box<SlashMessage>),
    Send(Option<&'a RawValue>),
    NotResumed(UntrustedText),
    Failed(UntrustedText),
}

/// A permission request.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) id: &'a RawValue,
    pub(super) name: String,
    pub(super) tool: UntrustedText,
    pub(super) tool_id: Option<UntrustedText>,
    pub(super) input: Option<&'a RawValue>,
    pub(super) claimed: AgentClaims,
}

/// The end of a turn.
#[derive(Debug)]
pub(super) struct EndMessage {
    pub(super) reason: Option<String>,
    pub(super) error: Option<UntrustedText>,
    /// The usage that the message reports.
    pub(super) usage: Option<Usage>,
    /// Changed files as (tool, path).
    pub(super) files: Vec<(UntrustedText, UntrustedText)>,
    /// How many files were left out.
    pub(super) omitted_files: usize,
}

/// The result of a slash command.
#[derive(Debug)]
pub(super) struct SlashMessage {
    pub(super) result: Event,
    pub(super) state: Option<Event>,
    pub(super) clear: bool,
    pub(super) exit: bool,
}

impl TypeRules {
    /// Collects the definition's rules for a type.
    pub(super) fn new(definition: &DialectDefinition, kind: &str) -> Self {
        let mut own = Self::default();
        // The type's own path too, so that a duplicate is a clash.
        own.paths.add(&definition.type_path);
        own.turn = definition
            .turn_path
            .as_ref()
            .map(|path| own.paths.add(path));
        for (at, rule) in definition.rules.iter().enumerate() {
            if rule.types.iter().any(|name| name == kind) {
                let reading = CompiledRule::new(at, rule, &mut own.paths);
                own.rules.push(reading);
            }
        }
        own
    }

    /// The turn that a message names.
    pub(super) fn turn<'a>(
        &self,
        values: &PathValues<'a>,
    ) -> Result<Option<Cow<'a, str>>, BadFrame> {
        let Some(raw) = self.turn.and_then(|slot| values.get(slot)) else {
            return Ok(None);
        };
        let name = parse_name(raw).ok_or(BadFrame::Shape)?;
        Ok(Some(name).filter(|name| name.len() <= limits::FOREIGN_ID_BYTES))
    }
}

impl CompiledRule {
    fn new(at: usize, rule: &Rule, places: &mut PathTree) -> Self {
        let mut add = |path: &DataPath| places.add(path);
        let fields = rule
            .fields
            .iter()
            .map(|(field, is_needed, path)| (*field, *is_needed, add(path)))
            .collect();
        let mut conditions = |all: &[Condition]| {
            let all = all.iter();
            all.map(|one| (places.add(&one.path), one.one_of.clone()))
                .collect()
        };
        Self {
            rule: at,
            event: rule.event,
            fields,
            when: conditions(&rule.when),
            unless: conditions(&rule.unless),
        }
    }

    /// Whether the rule applies to the message.
    pub(super) fn fits(&self, values: &PathValues<'_>) -> bool {
        let holds = |(slot, one_of): &(usize, Vec<Expected>)| {
            let raw = values.get(*slot);
            raw.is_some_and(|raw| one_of.iter().any(|one| is_expected(raw, one)))
        };
        self.when.iter().all(holds) && !self.unless.iter().any(holds)
    }

    fn raw<'a>(&self, values: &PathValues<'a>, field: Field) -> Option<&'a RawValue> {
        let mut fields = self.fields.iter();
        let slot = fields.find_map(|(own, _, slot)| (*own == field).then_some(*slot));
        values.get(slot?)
    }

    /// A text, if there is one.
    fn text(
        &self,
        values: &PathValues<'_>,
        field: Field,
    ) -> Result<Option<UntrustedText>, BadFrame> {
        let Some(raw) = self.raw(values, field) else {
            return Ok(None);
        };
        let text = parse_string(Some(raw));
        text.map(Some).ok_or(BadFrame::Shape)
    }

    fn required_text(
        &self,
        values: &PathValues<'_>,
        field: Field,
    ) -> Result<UntrustedText, BadFrame> {
        self.text(values, field)?.ok_or(BadFrame::Shape)
    }

    /// A name, if there is one.
    fn name(&self, values: &PathValues<'_>, field: Field) -> Result<Option<String>, BadFrame> {
        let Some(raw) = self.raw(values, field) else {
            return Ok(None);
        };
        let name = parse_name(raw).map(Cow::into_owned);
        name.map(Some).ok_or(BadFrame::Shape)
    }

    fn count(&self, values: &PathValues<'_>, field: Field) -> Option<u64> {
        parse::<Count>(self.raw(values, field)?).map(|count| count.0)
    }

    fn switch(&self, values: &PathValues<'_>, field: Field) -> bool {
        let raw = self.raw(values, field);
        raw.is_some_and(|raw| raw.get() == "true")
    }

    fn usage(&self, values: &PathValues<'_>) -> Option<Usage> {
        let input = self.count(values, Field::InputTokens);
        let output = self.count(values, Field::OutputTokens);
        (input.is_some() || output.is_some()).then(|| Usage {
            input: input.unwrap_or(0),
            output: output.unwrap_or(0),
        })
    }

    /// The id of a request that is unreadable otherwise.
    pub(super) fn request_id<'a>(&self, values: &PathValues<'a>) -> Option<&'a RawValue> {
        let raw = self.raw(values, Field::Id)?;
        let name = parse_name(raw)?;
        (name.len() <= limits::FOREIGN_ID_BYTES).then_some(raw)
    }

    /// Reads the message's content.
    ///
    /// # Errors
    /// [`BadFrame::Shape`]
    pub(super) fn read_message<'a>(
        &self,
        values: &PathValues<'a>,
    ) -> Result<RuleMessage<'a>, BadFrame> {
        use Field as F;
        let owned_name = |field| {
            let name = self.name(values, field)?;
            Ok::<_, BadFrame>(UntrustedText::new(name.unwrap_or_default()))
        };
        Ok(match self.event {
            RuleEvent::Ready => {
                let info = Box::new(self.greeting(values));
                RuleMessage::Ready(self.raw(values, F::Version), info)
            }
            RuleEvent::TurnStarted => {
                let name = self.name(values, F::Id)?;
                RuleMessage::TurnStarted(name.filter(|name| name.len() <= limits::FOREIGN_ID_BYTES))
            }
            RuleEvent::Text => RuleMessage::Text(self.required_text(values, F::Delta)?.into_raw()),
            RuleEvent::Thought => {
                RuleMessage::Thought(self.required_text(values, F::Delta)?.into_raw())
            }
            RuleEvent::ToolStart => RuleMessage::Tool(Event::ToolStart {
                id: owned_name(F::Id)?,
                name: self.required_text(values, F::Name)?,
                input: raw_or_null(self.raw(values, F::Input)),
            }),
            RuleEvent::ToolUpdate => RuleMessage::Tool(Event::ToolUpdate {
                id: self.name(values, F::Id)?.ok_or(BadFrame::Shape)?.into(),
                name: self.text(values, F::Name)?,
                title: self.text(values, F::Title)?,
                status: self.text(values, F::Status)?,
                input: self.raw(values, F::Input).map(ToOwned::to_owned),
            }),
            RuleEvent::ToolEnd => RuleMessage::ToolEnd(Event::ToolResult {
                id: owned_name(F::Id)?,
                output: self.raw(values, F::Output).map(output).unwrap_or_default(),
                is_error: self.raw(values, F::Error).is_some_and(is_error),
                took: self.call_duration(values),
            }),
            RuleEvent::Permission => RuleMessage::Permission(Box::new(self.request(values)?)),
            RuleEvent::Withdraw => {
                RuleMessage::Withdraw(self.name(values, F::Id)?.ok_or(BadFrame::Shape)?)
            }
            RuleEvent::Usage => RuleMessage::Usage(self.usage(values).unwrap_or_default()),
            RuleEvent::State => RuleMessage::State(self.state(values).1),
            RuleEvent::End => RuleMessage::End(Box::new(self.end(values)?)),
            RuleEvent::Error => RuleMessage::Error {
                code: owned_name(F::Code)?,
                message: self.text(values, F::Message)?.unwrap_or_default(),
                origin: self
                    .text(values, F::Origin)?
                    .and_then(|word| ErrorOrigin::parse(word.raw()))
                    .unwrap_or(ErrorOrigin::Unknown),
            },
            RuleEvent::SlashResult => RuleMessage::Slash(Box::new(self.slash(values)?)),
            RuleEvent::Send => RuleMessage::Send(self.request_id(values)),
            RuleEvent::NotResumed => {
                RuleMessage::NotResumed(self.error(values).unwrap_or_default())
            }
            RuleEvent::Fault => RuleMessage::Failed(self.error(values).unwrap_or_default()),
        })
    }

    /// A ready message. Everything but its version is read leniently: the version decides first.
    fn greeting(&self, values: &PathValues<'_>) -> AgentInfo {
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        let tools = self
            .raw(values, Field::Tools)
            .and_then(parse::<BoundedList<'_, { limits::READY_TOOLS }>>)
            .unwrap_or_default();
        let tool = |tool: &RawValue| {
            parse_string(Some(tool)).or_else(|| parse::<Named>(tool).map(|named| named.name.into()))
        };
        let session = self.raw(values, Field::Session).and_then(parse_name);
        AgentInfo {
            version: parse_string(self.raw(values, Field::AgentVersion)),
            session: session.map(|name| UntrustedText::new(name.into_owned())),
            model: parse_string(self.raw(values, Field::Model)),
            mode: parse_string(self.raw(values, Field::Mode)),
            tools: tools.items.into_iter().filter_map(tool).collect(),
            context_window: self.count(values, Field::ContextWindow),
            ..AgentInfo::default()
        }
    }

    fn call_duration(&self, values: &PathValues<'_>) -> Option<Duration> {
        let number = |field| parse::<f64>(self.raw(values, field)?);
        let seconds = number(Field::Seconds)
            .or_else(|| number(Field::Milliseconds).map(|number| number / 1000.0));
        Duration::try_from_secs_f64(seconds?).ok()
    }

    /// A request. If a part of it is missing, it is not passed on.
    fn request<'a>(&self, values: &PathValues<'a>) -> Result<Request<'a>, BadFrame> {
        if values.blocked {
            return Err(BadFrame::Shape);
        }
        let id = self.raw(values, Field::Id).ok_or(BadFrame::Shape)?;
        Ok(Request {
            id,
            name: parse_name(id).ok_or(BadFrame::Shape)?.into_owned(),
            tool: self.required_text(values, Field::Tool)?,
            tool_id: self.name(values, Field::Call)?.map(UntrustedText::new),
            input: self.raw(values, Field::Input),
            claimed: AgentClaims {
                active_mode: self.text(values, Field::ActiveMode)?,
                required_mode: self.text(values, Field::RequiredMode)?,
                reason: self.text(values, Field::Reason)?,
                title: self.text(values, Field::Title)?,
                kind: self.text(values, Field::Kind)?,
                has_no_allow_option: false,
            },
        })
    }

    /// The state, and whether any of it is known.
    fn state(&self, values: &PathValues<'_>) -> (bool, Event) {
        let model = parse_string(self.raw(values, Field::Model));
        let mode = parse_string(self.raw(values, Field::Mode));
        let context_pct = self.raw(values, Field::ContextPct).and_then(parse::<f64>);
        let context_window = self.count(values, Field::ContextWindow);
        let any =
            model.is_some() || mode.is_some() || context_pct.is_some() || context_window.is_some();
        let event = Event::StateChanged {
            model,
            mode,
            context_pct,
            context_window,
        };
        (any, event)
    }

    fn end(&self, values: &PathValues<'_>) -> Result<EndMessage, BadFrame> {
        let list = self
            .raw(values, Field::Files)
            .and_then(parse::<BoundedList<'_, { limits::TURN_MUTATIONS }>>)
            .unwrap_or_default();
        Ok(EndMessage {
            reason: self
                .text(values, Field::Reason)?
                .map(UntrustedText::into_raw),
            error: self.error(values),
            usage: self.usage(values),
            files: list.items.into_iter().filter_map(changed_file).collect(),
            omitted_files: list.omitted,
        })
    }

    /// The error's text, as the agent wrote it.
    fn error(&self, values: &PathValues<'_>) -> Option<UntrustedText> {
        self.raw(values, Field::Error).map(output)
    }

    fn slash(&self, values: &PathValues<'_>) -> Result<SlashMessage, BadFrame> {
        let (is_state, state) = self.state(values);
        let clear = self.switch(values, Field::Clear);
        let exit = self.switch(values, Field::Exit);
        Ok(SlashMessage {
            result: Event::SlashResult {
                command: self.text(values, Field::Command)?.unwrap_or_default(),
                text: self.text(values, Field::Text)?.unwrap_or_default(),
                data: self.raw(values, Field::Data).map(ToOwned::to_owned),
                clear_session: clear,
                exit,
            },
            state: is_state.then_some(state),
            clear,
            exit,
        })
    }
}

/// Whether a value is the expected one.
fn is_expected(raw: &RawValue, expected: &Expected) -> bool {
    match expected {
        Expected::Boolean(value) => raw.get() == if *value { "true" } else { "false" },
        Expected::Integer(value) => parse::<i64>(raw) == Some(*value),
        Expected::Text(text) => {
            raw.get().starts_with('"') && parse_name(raw).is_some_and(|own| own == text.as_str())
        }
    }
}

/// A text: a string, or the texts of a list of blocks; anything else as its JSON.
fn output(raw: &RawValue) -> UntrustedText {
    #[derive(Deserialize)]
    struct Block {
        text: String,
    }
    if let Some(text) = parse_string(Some(raw)) {
        return text;
    }
    let block = |raw: &RawValue| {
        parse_string(Some(raw)).or_else(|| parse::<Block>(raw).map(|block| block.text.into()))
    };
    let list = raw.get().starts_with('[').then_some(raw);
    if let Some(list) = list.and_then(parse::<BoundedList<'_, BLOCKS>>) {
        let texts: Vec<UntrustedText> = list.items.iter().filter_map(|item| block(item)).collect();
        if texts.len() == list.items.len() && list.omitted == 0 {
            let texts: Vec<&str> = texts.iter().map(UntrustedText::raw).collect();
            return UntrustedText::new(texts.join("\n"));
        }
    }
    raw.get().into()
}

/// Whether a value reports a failure: `true`, or any text.
fn is_error(raw: &RawValue) -> bool {
    !matches!(raw.get(), "false" | "0" | "\"\"")
}

/// A changed file: a pair of tool and path, or an object with them.
fn changed_file(raw: &RawValue) -> Option<(UntrustedText, UntrustedText)> {
    #[derive(Deserialize)]
    struct File {
        tool: Option<String>,
        path: String,
    }
    if raw.get().starts_with('{') {
        let file = parse::<File>(raw)?;
        return Some((file.tool.unwrap_or_default().into(), file.path.into()));
    }
    let pair = parse::<BoundedList<'_, 2>>(raw)?.items;
    match pair.as_slice() {
        [tool, path] => Some((parse_string(Some(tool))?, parse_string(Some(path))?)),
        _ => None,
    }
}
