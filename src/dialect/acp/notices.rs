//! The updates that an agent sends seldom: what it says of its session, of commands and options, of
//! its context. Each becomes one event, or `None` where it cannot be read.
//!
//! Must not know turns.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::message::block_text;
use super::settings::{self, Settings};
use crate::dialect::lenient::{Front, members, parse, string};
use crate::limits;
use crate::model::{CommandInfo, Event, Foreign};

/// The event of an update that changes nothing of ours.
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
    let changed: Changed<'_> = members(update)?;
    Some(Settings {
        options: settings::options(changed.config_options)?,
        ..Settings::default()
    })
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
        let command: Command<'_> = members(raw)?;
        let input: Option<Input<'_>> = command.input.and_then(members);
        Some(CommandInfo {
            name: short(string(command.name)?),
            description: string(command.description).map(short).unwrap_or_default(),
            hint: input.and_then(|input| string(input.hint)).map(short),
        })
    };
    let commands: Commands<'_> = members(update)?;
    let list: Front<'_, { limits::OFFERED }> = parse(commands.available_commands)?;
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
    let info: Info<'_> = members(update)?;
    Some(Event::SessionInfo {
        title: string(info.title).map(short),
        updated_at: string(info.updated_at).map(short),
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
    let notice: Notice<'_> = members(update)?;
    Some(Event::Notice {
        severity: string(notice.severity),
        title: notice.title.into(),
        description: string(notice.description),
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
    let compaction: Shape<'_> = members(update)?;
    let error = compaction.error.filter(|raw| raw.get() != "null");
    Some(Event::Compaction {
        id: compaction.compaction_id.into(),
        status: string(compaction.status),
        error: error.map(|raw| string(Some(raw)).unwrap_or_else(|| Foreign::new(raw.get()))),
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
    let summary: Summary<'_> = members(update)?;
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
    let chunk: Chunk<'_> = members(update)?;
    Some(Event::UserText {
        delta: block_text(chunk.content)?.into(),
    })
}

/// A text of which the front is enough.
fn short(text: Foreign) -> Foreign {
    if text.len() <= limits::OFFER_TEXT_BYTES {
        return text;
    }
    let end = (0..=limits::OFFER_TEXT_BYTES)
        .rev()
        .find(|at| text.raw().is_char_boundary(*at));
    let front = end.and_then(|end| text.raw().get(..end));
    Foreign::new(front.unwrap_or_default())
}
