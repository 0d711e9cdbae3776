//! Tool calls: their beginnings, their results, and which of them belong together.
//!
//! The end of a call names its tool but not its id, so an end belongs to the oldest open call of
//! that tool. The summary of a round of calls mostly repeats what was reported call by call; the
//! rest of it is reported then. Must not know turns.

use std::collections::VecDeque;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::lenient::{BoundedList, parse, parse_id, parse_object, parse_string, raw_or_null};
use marshal_model::limits;
use marshal_model::{Event, UntrustedText};

/// The open calls of a turn.
#[derive(Debug, Default)]
pub(super) struct ToolCalls {
    open: VecDeque<(UntrustedText, UntrustedText)>,
    /// How many calls ended since the last round did.
    ended_count: usize,
    /// Calls without a usable id.
    unnamed: u64,
}

/// A call, or its end, in any of the members that agents use.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields<'a> {
    #[serde(borrow)]
    call_id: Option<&'a RawValue>,
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
    #[serde(borrow)]
    ok: Option<&'a RawValue>,
    #[serde(borrow)]
    result: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// The `data` of an event about calls.
#[derive(Debug, Default, Deserialize)]
struct Data<'a> {
    #[serde(borrow)]
    call: Option<&'a RawValue>,
    #[serde(borrow)]
    executed: Option<&'a RawValue>,
}

impl ToolCalls {
    /// Forgets the calls when their turn has ended.
    pub(super) fn clear(&mut self) {
        self.open.clear();
        self.ended_count = 0;
    }

    /// The event of a call that began; `None` if the data is unreadable.
    pub(super) fn started(&mut self, data: &RawValue) -> Option<Event> {
        let of: Data<'_> = parse_object(data)?;
        let fields: Fields<'_> = parse_object(of.call.unwrap_or(data))?;
        let name = fields.name()?;
        Some(self.begin(&fields, name))
    }

    /// The events of a call that ended. If its beginning was not reported, that is reported first.
    pub(super) fn completed(&mut self, data: &RawValue) -> Option<Vec<Event>> {
        let of: Data<'_> = parse_object(data)?;
        let fields: Fields<'_> = parse_object(of.executed.unwrap_or(data))?;
        let events = self.end(&fields)?;
        self.ended_count += 1;
        Some(events)
    }

    /// The events of a round of calls, as far as they were not reported.
    pub(super) fn results(&mut self, data: &RawValue) -> Option<Vec<Event>> {
        let of: Data<'_> = parse_object(data)?;
        let list: BoundedList<'_, { limits::OPEN_CALLS }> = parse(of.executed?)?;
        let ended = std::mem::take(&mut self.ended_count);
        let rest = list.items.into_iter().skip(ended);
        let ends = rest.filter_map(parse_object).filter_map(|of| self.end(&of));
        Some(ends.flatten().collect())
    }

    fn begin(&mut self, fields: &Fields<'_>, name: UntrustedText) -> Event {
        let id = fields.id().unwrap_or_else(|| {
            self.unnamed += 1;
            UntrustedText::new(format!("unnamed-{}", self.unnamed))
        });
        if self.open.len() >= limits::OPEN_CALLS {
            self.open.pop_front();
        }
        self.open.push_back((id.clone(), name.clone()));
        Event::ToolStart {
            id,
            name,
            input: raw_or_null(fields.input),
        }
    }

    fn end(&mut self, fields: &Fields<'_>) -> Option<Vec<Event>> {
        let (id, name) = (fields.id(), fields.name()?);
        let is_it = |open: &&(UntrustedText, UntrustedText)| match &id {
            Some(id) => open.0 == *id,
            None => open.1 == name,
        };
        let mut events = Vec::new();
        if !self.open.iter().any(|open| is_it(&open)) {
            events.push(self.begin(fields, name.clone()));
        }
        let at = self.open.iter().position(|open| is_it(&open));
        let (id, _) = at.and_then(|at| self.open.remove(at))?;
        let failed = fields.error.is_some_and(|error| error.get() != "null")
            || fields.ok.and_then(parse) == Some(false);
        events.push(Event::ToolResult {
            id,
            output: fields.output(),
            is_error: failed,
            took: None,
        });
        Some(events)
    }
}

impl Fields<'_> {
    fn id(&self) -> Option<UntrustedText> {
        parse_id(self.call_id)
    }

    fn name(&self) -> Option<UntrustedText> {
        parse_string(self.name).filter(|name| name.len() <= limits::FOREIGN_ID_BYTES)
    }

    /// The tool's output: a text as it is, anything else as JSON, the error if there is nothing.
    fn output(&self) -> UntrustedText {
        let result = self.result.filter(|raw| raw.get() != "null");
        let value = result.or(self.error).filter(|raw| raw.get() != "null");
        value.map_or_else(UntrustedText::default, |raw| {
            parse_string(Some(raw)).unwrap_or_else(|| raw.get().into())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.to_owned()).expect("JSON")
    }

    fn describe_events(events: Option<Vec<Event>>) -> Vec<String> {
        let tell = |event: Event| match event {
            Event::ToolStart { id, name, .. } => format!("{} {}", id.raw(), name.raw()),
            Event::ToolResult {
                id,
                output,
                is_error,
                ..
            } => format!("{} = {} {is_error}", id.raw(), output.raw()),
            other => format!("{other:?}"),
        };
        events.into_iter().flatten().map(tell).collect()
    }

    fn start(calls: &mut ToolCalls, call: &str) -> Vec<String> {
        describe_events(calls.started(&raw(call)).map(|event| vec![event]))
    }

    #[test]
    fn an_end_without_an_id_belongs_to_the_oldest_open_call_of_its_tool() {
        let mut calls = ToolCalls::default();
        start(&mut calls, r#"{"call":{"name":"a","callId":"1"}}"#);
        start(&mut calls, r#"{"call":{"name":"b","callId":"2"}}"#);
        start(&mut calls, r#"{"call":{"name":"a","callId":"3"}}"#);
        let mut end = |text: &str| describe_events(calls.completed(&raw(text)));
        assert_eq!(
            end(r#"{"executed":{"name":"b","ok":true,"result":"x"}}"#),
            ["2 = x false"]
        );
        assert_eq!(
            end(r#"{"executed":{"name":"a","ok":false,"result":null,"error":"no"}}"#),
            ["1 = no true"]
        );
        assert_eq!(
            end(r#"{"name":"a","callId":"3","result":{"n":1}}"#),
            [r#"3 = {"n":1} false"#]
        );
        // Its beginning was never reported.
        assert_eq!(
            end(r#"{"executed":{"name":"a","result":""}}"#),
            ["unnamed-1 a", "unnamed-1 =  false"]
        );
    }

    #[test]
    fn a_round_tells_only_what_was_not_told_call_by_call() {
        let round = r#"{"executed":[{"name":"a","result":"1"},{"name":"a","result":"2"},7]}"#;
        let mut calls = ToolCalls::default();
        start(&mut calls, r#"{"call":{"name":"a","callId":"x"}}"#);
        describe_events(calls.completed(&raw(r#"{"executed":{"name":"a","result":"1"}}"#)));
        assert_eq!(
            describe_events(calls.results(&raw(round))),
            ["unnamed-1 a", "unnamed-1 = 2 false"]
        );
        // The next round starts a new count.
        assert_eq!(describe_events(calls.results(&raw(round))).len(), 4);
    }

    #[test]
    fn what_cannot_be_read_is_no_call_and_open_calls_have_a_bound() {
        let mut calls = ToolCalls::default();
        for bad in ["7", "{}", r#"{"call":{"name":7}}"#, r#"{"call":[]}"#] {
            assert!(calls.started(&raw(bad)).is_none(), "{bad}");
            assert!(calls.completed(&raw(bad)).is_none(), "{bad}");
            assert!(calls.results(&raw(bad)).is_none(), "{bad}");
        }
        for _ in 0..2 * limits::OPEN_CALLS {
            start(&mut calls, r#"{"call":{"name":"a"}}"#);
        }
        assert_eq!(calls.open.len(), limits::OPEN_CALLS);
    }
}
