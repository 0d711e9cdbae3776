//! The rare updates of an agent: about its session, its commands and options, its context. Each
//! becomes one event, or `None` if it is unreadable.
//!
//! Must not know turns.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::message::block_text;
use super::settings::{self, Settings};
use crate::lenient::{BoundedList, parse, parse_object, parse_string};
use marshal_model::limits;
use marshal_model::{CommandInfo, Event, UntrustedText};

/// The event of an update that does not change our state.
pub(super) fn event(tag: &str, update: &RawValue) -> Option<Event> {
    match tag {
        "available_commands_update" => commands(update),
        "session_info_update" => info(update),
        "notice" => notice(update),
        "compaction_update" => compaction(update),
        "compaction_summary_chunk" => summary(update),
        "user_message_chunk" => user_text(update),
        _ => None,
    }
}

/// The settings of a `config_option_update`.
pub(super) fn options(update: &RawValue) -> Option<Settings> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Changed<'a> {
        #[serde(borrow)]
        config_options: &'a RawValue,
    }
    let changed: Changed<'_> = parse_object(update)?;
    Some(Settings {
        options: settings::options(changed.config_options)?,
        ..Settings::default()
    })
}

/// A person has completed what the agent asked for on a web page.
pub(super) fn page_completed(params: Option<&RawValue>) -> Event {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Completed<'a> {
        #[serde(borrow)]
        elicitation_id: Option<&'a RawValue>,
    }
    let completed: Completed<'_> = params.and_then(parse_object).unwrap_or_default();
    Event::Notice {
        severity: Some("info".into()),
        title: "the page that the agent asked to open is completed".into(),
        description: parse_string(completed.elicitation_id),
    }
}

fn commands(update: &RawValue) -> Option<Event> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Commands<'a> {
        #[serde(borrow)]
        available_commands: &'a RawValue,
    }
    #[derive(Deserialize)]
    struct Command<'a> {
        #[serde(borrow)]
        name: Option<&'a RawValue>,
        #[serde(borrow)]
        description: Option<&'a RawValue>,
        #[serde(borrow)]
        input: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Input<'a> {
        #[serde(borrow)]
        hint: Option<&'a RawValue>,
    }
    let read = |raw: &RawValue| {
        let command: Command<'_> = parse_object(raw)?;
        let input: Option<Input<'_>> = command.input.and_then(parse_object);
        Some(CommandInfo {
            name: short(parse_string(command.name)?),
            description: parse_string(command.description)
                .map(short)
                .unwrap_or_default(),
            hint: input.and_then(|input| parse_string(input.hint)).map(short),
        })
    };
    let commands: Commands<'_> = parse_object(update)?;
    let list: BoundedList<'_, { limits::ADVERTISED_ITEMS }> = parse(commands.available_commands)?;
    Some(Event::Commands {
        commands: list.items.into_iter().filter_map(read).collect(),
    })
}

fn info(update: &RawValue) -> Option<Event> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Info<'a> {
        #[serde(borrow)]
        title: Option<&'a RawValue>,
        #[serde(borrow)]
        updated_at: Option<&'a RawValue>,
    }
    let info: Info<'_> = parse_object(update)?;
    Some(Event::SessionInfo {
        title: parse_string(info.title).map(short),
        updated_at: parse_string(info.updated_at).map(short),
    })
}

fn notice(update: &RawValue) -> Option<Event> {
    #[derive(Deserialize)]
    struct Notice<'a> {
        #[serde(borrow)]
        severity: Option<&'a RawValue>,
        title: String,
        #[serde(borrow)]
        description: Option<&'a RawValue>,
    }
    let notice: Notice<'_> = parse_object(update)?;
    Some(Event::Notice {
        severity: parse_string(notice.severity),
        title: notice.title.into(),
        description: parse_string(notice.description),
    })
}

fn compaction(update: &RawValue) -> Option<Event> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Shape<'a> {
        compaction_id: String,
        #[serde(borrow)]
        status: Option<&'a RawValue>,
        #[serde(borrow)]
        error: Option<&'a RawValue>,
    }
    let compaction: Shape<'_> = parse_object(update)?;
    let error = compaction.error.filter(|raw| raw.get() != "null");
    Some(Event::Compaction {
        id: compaction.compaction_id.into(),
        status: parse_string(compaction.status),
        error: error
            .map(|raw| parse_string(Some(raw)).unwrap_or_else(|| UntrustedText::new(raw.get()))),
    })
}

fn summary(update: &RawValue) -> Option<Event> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Summary<'a> {
        compaction_id: String,
        #[serde(borrow)]
        content: &'a RawValue,
    }
    let summary: Summary<'_> = parse_object(update)?;
    Some(Event::CompactionText {
        id: summary.compaction_id.into(),
        delta: block_text(summary.content)?.into(),
    })
}

fn user_text(update: &RawValue) -> Option<Event> {
    #[derive(Deserialize)]
    struct Chunk<'a> {
        #[serde(borrow)]
        content: &'a RawValue,
    }
    let chunk: Chunk<'_> = parse_object(update)?;
    Some(Event::UserText {
        delta: block_text(chunk.content)?.into(),
    })
}

/// A text, truncated.
fn short(text: UntrustedText) -> UntrustedText {
    if text.len() <= limits::ADVERTISED_TEXT_BYTES {
        return text;
    }
    let end = (0..=limits::ADVERTISED_TEXT_BYTES)
        .rev()
        .find(|at| text.raw().is_char_boundary(*at));
    let front = end.and_then(|end| text.raw().get(..end));
    UntrustedText::new(front.unwrap_or_default())
}
