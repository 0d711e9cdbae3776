//! What a message says by one rule of the table: typed values instead of places.
//!
//! Must not know in which order messages come. Reading is lenient: what may be absent may be `null`;
//! what says something, as a text, a name or a request's id, must have the type for it.

use std::borrow::Cow;
use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::reading::{Places, Values, name_of};
use crate::config::dialect_table::{
    Condition, DataPath, DialectTable, Expected, Field, Rule, RuleEvent,
};
use crate::dialect::lenient::{Count, Front, owned, parse, string};
use crate::limits;
use crate::model::{AgentInfo, Claimed, Event, Foreign, Origin, Usage};
use crate::wire::json::BadFrame;

/// Text blocks of one output.
const BLOCKS: usize = 64;

/// What messages of one type may mean.
#[derive(Debug, Default)]
pub(super) struct Kind {
    pub(super) places: Places,
    pub(super) rules: Vec<Reading>,
    /// Where they name their turn.
    turn: Option<usize>,
}

/// One rule, with numbers for places.
#[derive(Debug)]
pub(super) struct Reading {
    /// Which rule of the table.
    pub(super) rule: usize,
    pub(super) event: RuleEvent,
    fields: Vec<(Field, bool, usize)>,
    when: Vec<(usize, Vec<Expected>)>,
    unless: Vec<(usize, Vec<Expected>)>,
}

/// What a message says.
#[derive(Debug)]
pub(super) enum Said<'a> {
    Ready(Option<&'a RawValue>, Box<AgentInfo>),
    TurnStarted(Option<String>),
    Text(String),
    Thought(String),
    /// A tool's call, or more of it.
    Tool(Event),
    /// A tool's call that ended.
    ToolEnd(Event),
    Permission(Box<Request<'a>>),
    Withdraw(String),
    Usage(Usage),
    State(Event),
    End(Box<End>),
    Error {
        code: Foreign,
        message: Foreign,
        origin: Origin,
    },
    Slash(Box<Slash>),
    Send(Option<&'a RawValue>),
    NotResumed(Foreign),
    Fault(Foreign),
}

/// A permission request.
#[derive(Debug)]
pub(super) struct Request<'a> {
    pub(super) id: &'a RawValue,
    pub(super) name: String,
    pub(super) tool: Foreign,
    pub(super) tool_id: Option<Foreign>,
    pub(super) input: Option<&'a RawValue>,
    pub(super) claimed: Claimed,
}

/// A turn's end.
#[derive(Debug)]
pub(super) struct End {
    pub(super) reason: Option<String>,
    pub(super) error: Option<Foreign>,
    /// Its own word on what was used.
    pub(super) usage: Option<Usage>,
    /// Changed files as (tool, path).
    pub(super) files: Vec<(Foreign, Foreign)>,
    /// How many were left out.
    pub(super) beyond: usize,
}

/// What came of a slash command.
#[derive(Debug)]
pub(super) struct Slash {
    pub(super) result: Event,
    pub(super) state: Option<Event>,
    pub(super) clear: bool,
    pub(super) exit: bool,
}

impl Kind {
    /// What the table says of a type.
    pub(super) fn of(table: &DialectTable, kind: &str) -> Self {
        let mut own = Self::default();
        // Its own type too: one that comes twice is a clash.
        own.places.add(&table.kind);
        own.turn = table.turn.as_ref().map(|path| own.places.add(path));
        for (at, rule) in table.rules.iter().enumerate() {
            if rule.kinds.iter().any(|name| name == kind) {
                let reading = Reading::of(at, rule, &mut own.places);
                own.rules.push(reading);
            }
        }
        own
    }

    /// The turn that a message names.
    pub(super) fn turn<'a>(&self, values: &Values<'a>) -> Result<Option<Cow<'a, str>>, BadFrame> {
        let Some(raw) = self.turn.and_then(|slot| values.get(slot)) else {
            return Ok(None);
        };
        let name = name_of(raw).ok_or(BadFrame::Shape)?;
        Ok(Some(name).filter(|name| name.len() <= limits::FOREIGN_ID_BYTES))
    }
}

impl Reading {
    fn of(at: usize, rule: &Rule, places: &mut Places) -> Self {
        let mut add = |path: &DataPath| places.add(path);
        let fields = rule.fields.iter();
        let fields = fields.map(|(field, is_needed, path)| (*field, *is_needed, add(path)));
        let fields = fields.collect();
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

    /// Whether the message is what the rule is about.
    pub(super) fn fits(&self, values: &Values<'_>) -> bool {
        let holds = |(slot, one_of): &(usize, Vec<Expected>)| {
            let raw = values.get(*slot);
            raw.is_some_and(|raw| one_of.iter().any(|one| is(raw, one)))
        };
        self.when.iter().all(holds) && !self.unless.iter().any(holds)
    }

    fn raw<'a>(&self, values: &Values<'a>, field: Field) -> Option<&'a RawValue> {
        let mut fields = self.fields.iter();
        let slot = fields.find_map(|(own, _, slot)| (*own == field).then_some(*slot));
        values.get(slot?)
    }

    /// A text, if there is one.
    fn text(&self, values: &Values<'_>, field: Field) -> Result<Option<Foreign>, BadFrame> {
        let Some(raw) = self.raw(values, field) else {
            return Ok(None);
        };
        let text = string(Some(raw));
        text.map(Some).ok_or(BadFrame::Shape)
    }

    fn needed(&self, values: &Values<'_>, field: Field) -> Result<Foreign, BadFrame> {
        self.text(values, field)?.ok_or(BadFrame::Shape)
    }

    /// A name, if there is one.
    fn name(&self, values: &Values<'_>, field: Field) -> Result<Option<String>, BadFrame> {
        let Some(raw) = self.raw(values, field) else {
            return Ok(None);
        };
        let name = name_of(raw).map(Cow::into_owned);
        name.map(Some).ok_or(BadFrame::Shape)
    }

    fn count(&self, values: &Values<'_>, field: Field) -> Option<u64> {
        parse::<Count>(self.raw(values, field)?).map(|count| count.0)
    }

    fn switch(&self, values: &Values<'_>, field: Field) -> bool {
        let raw = self.raw(values, field);
        raw.is_some_and(|raw| raw.get() == "true")
    }

    fn usage(&self, values: &Values<'_>) -> Option<Usage> {
        let input = self.count(values, Field::InputTokens);
        let output = self.count(values, Field::OutputTokens);
        (input.is_some() || output.is_some()).then(|| Usage {
            input: input.unwrap_or(0),
            output: output.unwrap_or(0),
        })
    }

    /// What could be told of a request that cannot be read otherwise.
    pub(super) fn request_id<'a>(&self, values: &Values<'a>) -> Option<&'a RawValue> {
        let raw = self.raw(values, Field::Id)?;
        let name = name_of(raw)?;
        (name.len() <= limits::FOREIGN_ID_BYTES).then_some(raw)
    }

    /// What the message says.
    ///
    /// # Errors
    /// [`BadFrame::Shape`]
    pub(super) fn said<'a>(&self, values: &Values<'a>) -> Result<Said<'a>, BadFrame> {
        use Field as F;
        let owned_name = |field| {
            let name = self.name(values, field)?;
            Ok::<_, BadFrame>(Foreign::new(name.unwrap_or_default()))
        };
        Ok(match self.event {
            RuleEvent::Ready => {
                let info = Box::new(self.greeting(values));
                Said::Ready(self.raw(values, F::Version), info)
            }
            RuleEvent::TurnStarted => {
                let name = self.name(values, F::Id)?;
                Said::TurnStarted(name.filter(|name| name.len() <= limits::FOREIGN_ID_BYTES))
            }
            RuleEvent::Text => Said::Text(self.needed(values, F::Delta)?.into_raw()),
            RuleEvent::Thought => Said::Thought(self.needed(values, F::Delta)?.into_raw()),
            RuleEvent::ToolStart => Said::Tool(Event::ToolStart {
                id: owned_name(F::Id)?,
                name: self.needed(values, F::Name)?,
                input: owned(self.raw(values, F::Input)),
            }),
            RuleEvent::ToolUpdate => Said::Tool(Event::ToolUpdate {
                id: self.name(values, F::Id)?.ok_or(BadFrame::Shape)?.into(),
                name: self.text(values, F::Name)?,
                title: self.text(values, F::Title)?,
                status: self.text(values, F::Status)?,
                input: self.raw(values, F::Input).map(ToOwned::to_owned),
            }),
            RuleEvent::ToolEnd => Said::ToolEnd(Event::ToolResult {
                id: owned_name(F::Id)?,
                output: self.raw(values, F::Output).map(output).unwrap_or_default(),
                is_error: self.raw(values, F::Error).is_some_and(is_error),
                took: self.took(values),
            }),
            RuleEvent::Permission => Said::Permission(Box::new(self.request(values)?)),
            RuleEvent::Withdraw => {
                Said::Withdraw(self.name(values, F::Id)?.ok_or(BadFrame::Shape)?)
            }
            RuleEvent::Usage => Said::Usage(self.usage(values).unwrap_or_default()),
            RuleEvent::State => Said::State(self.state(values).1),
            RuleEvent::End => Said::End(Box::new(self.end(values)?)),
            RuleEvent::Error => Said::Error {
                code: owned_name(F::Code)?,
                message: self.text(values, F::Message)?.unwrap_or_default(),
                origin: self
                    .text(values, F::Origin)?
                    .and_then(|word| Origin::from_word(word.raw()))
                    .unwrap_or(Origin::Unknown),
            },
            RuleEvent::SlashResult => Said::Slash(Box::new(self.slash(values)?)),
            RuleEvent::Send => Said::Send(self.request_id(values)),
            RuleEvent::NotResumed => Said::NotResumed(self.error(values).unwrap_or_default()),
            RuleEvent::Fault => Said::Fault(self.error(values).unwrap_or_default()),
        })
    }

    /// A greeting, everything but its version as lenient as can be: the version decides first.
    fn greeting(&self, values: &Values<'_>) -> AgentInfo {
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        let tools = self
            .raw(values, Field::Tools)
            .and_then(parse::<Front<'_, { limits::READY_TOOLS }>>)
            .unwrap_or_default();
        let tool = |tool: &RawValue| {
            string(Some(tool)).or_else(|| parse::<Named>(tool).map(|named| named.name.into()))
        };
        let session = self.raw(values, Field::Session).and_then(name_of);
        AgentInfo {
            version: string(self.raw(values, Field::AgentVersion)),
            session: session.map(|name| Foreign::new(name.into_owned())),
            model: string(self.raw(values, Field::Model)),
            mode: string(self.raw(values, Field::Mode)),
            tools: tools.items.into_iter().filter_map(tool).collect(),
            context_window: self.count(values, Field::ContextWindow),
            ..AgentInfo::default()
        }
    }

    fn took(&self, values: &Values<'_>) -> Option<Duration> {
        let number = |field| parse::<f64>(self.raw(values, field)?);
        let seconds = number(Field::Seconds)
            .or_else(|| number(Field::Milliseconds).map(|number| number / 1000.0));
        Duration::try_from_secs_f64(seconds?).ok()
    }

    /// A request of which not all can be found is not asked about in part.
    fn request<'a>(&self, values: &Values<'a>) -> Result<Request<'a>, BadFrame> {
        if values.blocked {
            return Err(BadFrame::Shape);
        }
        let id = self.raw(values, Field::Id).ok_or(BadFrame::Shape)?;
        Ok(Request {
            id,
            name: name_of(id).ok_or(BadFrame::Shape)?.into_owned(),
            tool: self.needed(values, Field::Tool)?,
            tool_id: self.name(values, Field::Call)?.map(Foreign::new),
            input: self.raw(values, Field::Input),
            claimed: Claimed {
                active_mode: self.text(values, Field::ActiveMode)?,
                required_mode: self.text(values, Field::RequiredMode)?,
                reason: self.text(values, Field::Reason)?,
                title: self.text(values, Field::Title)?,
                kind: self.text(values, Field::Kind)?,
                no_allow: false,
            },
        })
    }

    /// The state, and whether anything is known of it.
    fn state(&self, values: &Values<'_>) -> (bool, Event) {
        let model = string(self.raw(values, Field::Model));
        let mode = string(self.raw(values, Field::Mode));
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

    fn end(&self, values: &Values<'_>) -> Result<End, BadFrame> {
        let list = self
            .raw(values, Field::Files)
            .and_then(parse::<Front<'_, { limits::TURN_MUTATIONS }>>)
            .unwrap_or_default();
        Ok(End {
            reason: self.text(values, Field::Reason)?.map(Foreign::into_raw),
            error: self.error(values),
            usage: self.usage(values),
            files: list.items.into_iter().filter_map(changed).collect(),
            beyond: list.beyond,
        })
    }

    /// What went wrong, in the agent's words.
    fn error(&self, values: &Values<'_>) -> Option<Foreign> {
        self.raw(values, Field::Error).map(output)
    }

    fn slash(&self, values: &Values<'_>) -> Result<Slash, BadFrame> {
        let (is_state, state) = self.state(values);
        let clear = self.switch(values, Field::Clear);
        let exit = self.switch(values, Field::Exit);
        Ok(Slash {
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

/// Whether a value is what is expected.
fn is(raw: &RawValue, expected: &Expected) -> bool {
    match expected {
        Expected::Boolean(value) => raw.get() == if *value { "true" } else { "false" },
        Expected::Integer(value) => parse::<i64>(raw) == Some(*value),
        Expected::Text(text) => {
            raw.get().starts_with('"') && name_of(raw).is_some_and(|own| own == text.as_str())
        }
    }
}

/// Words: a string, or the texts of a list of blocks; anything else as its JSON.
fn output(raw: &RawValue) -> Foreign {
    #[derive(Deserialize)]
    struct Block {
        text: String,
    }
    if let Some(text) = string(Some(raw)) {
        return text;
    }
    let block = |raw: &RawValue| {
        string(Some(raw)).or_else(|| parse::<Block>(raw).map(|block| block.text.into()))
    };
    let list = raw.get().starts_with('[').then_some(raw);
    if let Some(list) = list.and_then(parse::<Front<'_, BLOCKS>>) {
        let texts: Vec<Foreign> = list.items.iter().filter_map(|item| block(item)).collect();
        if texts.len() == list.items.len() && list.beyond == 0 {
            let texts: Vec<&str> = texts.iter().map(Foreign::raw).collect();
            return Foreign::new(texts.join("\n"));
        }
    }
    raw.get().into()
}

/// Whether something failed: true, or any words about it.
fn is_error(raw: &RawValue) -> bool {
    !matches!(raw.get(), "false" | "0" | "\"\"")
}

/// A changed file: a pair of tool and path, or an object with them.
fn changed(raw: &RawValue) -> Option<(Foreign, Foreign)> {
    #[derive(Deserialize)]
    struct File {
        tool: Option<String>,
        path: String,
    }
    if raw.get().starts_with('{') {
        let file = parse::<File>(raw)?;
        return Some((file.tool.unwrap_or_default().into(), file.path.into()));
    }
    let pair = parse::<Front<'_, 2>>(raw)?.items;
    match pair.as_slice() {
        [tool, path] => Some((string(Some(tool))?, string(Some(path))?)),
        _ => None,
    }
}
