//! The tool calls of a turn and the requests that are open: which request is of which call.
//!
//! Pure. Must not judge anything.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::directory::Directory;
use crate::limits::{ASK_INPUT_BYTES, OPEN_ASKS, OPEN_CALLS};
use crate::model::{self, Ask, AskId, AskKey, EngineWish, Event, Foreign};

/// One tool call, as the agent announced it.
#[derive(Debug)]
pub(crate) struct Call {
    pub(super) id: Foreign,
    pub(super) name: Foreign,
    /// Its input; `None` if it is larger than can be judged.
    pub(super) input: Option<Box<RawValue>>,
    digest: Digest,
    request: Request,
}

/// Whether a permission was asked for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Request {
    None,
    Made(AskKey),
    /// And taken back before it was answered.
    Withdrawn,
}

impl Request {
    /// Taken back, if it was that one.
    fn withdraw(&mut self, key: &AskKey) {
        if matches!(self, Self::Made(made) if made == key) {
            *self = Self::Withdrawn;
        }
    }
}

impl Call {
    /// Whether a request for it was made that it waits for, or waited for until its answer.
    pub(super) fn is_asked(&self) -> bool {
        matches!(self.request, Request::Made(_))
    }

    /// Whether it ran without a request, or without the answer to it: what ended otherwise than with
    /// a result, and had a request that was withdrawn, is one that did not run.
    fn is_unasked(&self, shown: Shown) -> bool {
        match self.request {
            Request::None => true,
            Request::Made(_) => false,
            Request::Withdrawn => shown == Shown::Done,
        }
    }
}

/// SHA-256 of the canonical input: what an announcement and a request are compared by.
type Digest = [u8; 32];

/// The open asks and tool calls of a turn.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    /// Asked, decided, not yet answered. By our own id: a verdict that becomes durable is for that
    /// one request, whatever names an agent gives to others.
    pub(super) open: HashMap<AskId, AskKey>,
    /// The same, of what the agent has its client do; its dialect bounds these.
    pub(super) clients: HashMap<AskId, AskKey>,
    pub(super) calls: VecDeque<Call>,
    /// Requests that came before their call.
    requests: VecDeque<Early>,
    /// Where the agent's shell is.
    pub(crate) directory: Directory,
    /// How often rules that allow only so often have allowed something in this turn.
    pub(super) used: BTreeMap<String, u32>,
    /// Calls of our own tools in this turn that the agent has not shown as calls; at most
    /// [`OPEN_CALLS`].
    pub(super) own: VecDeque<Own>,
    /// Calls of our own tools that the agent may make, as it asked first, by their ids; at most
    /// [`OPEN_ASKS`].
    pub(super) announced: VecDeque<(Foreign, EngineWish)>,
}

/// A call of one of our own tools that came to us.
#[derive(Debug)]
pub(super) struct Own {
    /// The request that it is.
    pub(super) key: AskKey,
    pub(super) wish: EngineWish,
    /// It was allowed, and carried out: only then can what the agent shows as done be this one.
    pub(super) is_allowed: bool,
}

/// What an agent shows of the end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// It brought a result.
    Done,
    /// It failed, or nothing is shown.
    NotDone,
}

/// A request whose call was not announced: the call's id where it has one, tool, canonical input.
#[derive(Debug)]
struct Early {
    id: Option<Foreign>,
    tool: Foreign,
    digest: Digest,
    request: Request,
}

impl Asks {
    /// How often rules that allow only so often have allowed something in this turn.
    pub(super) fn used(&self) -> &BTreeMap<String, u32> {
        &self.used
    }

    /// Whether the answer is still wanted.
    pub(crate) fn answered(&mut self, ask: &AskId) -> bool {
        self.open.remove(ask).is_some() || self.clients.remove(ask).is_some()
    }

    /// The agent does not wait for the answer any more.
    pub(crate) fn withdrawn(&mut self, key: &AskKey) {
        self.open.retain(|_, open| open != key);
        self.clients.retain(|_, open| open != key);
        for call in &mut self.calls {
            call.request.withdraw(key);
        }
        for early in &mut self.requests {
            early.request.withdraw(key);
        }
    }

    /// The child is gone: nothing can be answered.
    pub(crate) fn gone(&mut self) {
        self.open.clear();
        self.clients.clear();
        // Its next child begins at the root.
        self.directory = Directory::default();
    }

    /// Notes a tool call; a request that came before it makes it an asked one. Gives the oldest
    /// call back if there are too many: it must be judged now, as nothing will be known of it.
    pub(crate) fn tool_started(&mut self, event: &Event) -> Option<Call> {
        let Event::ToolStart { id, name, input } = event else {
            return None;
        };
        let digest = digest(input);
        let of_id = |early: &Early| early.id.as_ref() == Some(id);
        let same = |early: &Early| early.tool == *name && early.digest == digest;
        let before = self.requests.iter().position(of_id);
        let before = before.or_else(|| self.requests.iter().position(same));
        let before = before.and_then(|at| self.requests.remove(at));
        let request = before.map_or(Request::None, |early| early.request);
        let evicted = if self.calls.len() >= OPEN_CALLS {
            self.calls.pop_front()
        } else {
            None
        };
        self.calls.push_back(Call {
            id: id.clone(),
            name: name.clone(),
            input: (input.get().len() <= ASK_INPUT_BYTES).then(|| input.clone()),
            digest,
            request,
        });
        evicted.filter(|call| call.is_unasked(Shown::NotDone))
    }

    /// Notes what a call is by now: what it was when it began may have been half of it.
    pub(crate) fn tool_updated(&mut self, event: &Event) {
        let Event::ToolUpdate {
            id, name, input, ..
        } = event
        else {
            return;
        };
        let Some(call) = self.calls.iter_mut().find(|call| call.id == *id) else {
            return;
        };
        if let Some(name) = name {
            call.name = name.clone();
        }
        if let Some(input) = input {
            call.input = (input.get().len() <= ASK_INPUT_BYTES).then(|| input.clone());
            call.digest = digest(input);
        }
    }

    /// Notes that the agent may make that call of a tool of ours.
    pub(super) fn note_announced(&mut self, id: Option<&Foreign>, wish: Option<EngineWish>) {
        if let (Some(id), Some(wish)) = (id, wish) {
            if self.announced.len() >= OPEN_ASKS {
                self.announced.pop_front();
            }
            self.announced.push_back((id.clone(), wish));
        }
    }

    /// What the call of this id was to be, if it was announced.
    pub(super) fn announced_as(&mut self, id: &Foreign) -> Option<EngineWish> {
        let at = self.announced.iter().position(|(of, _)| of == id)?;
        self.announced.remove(at).map(|(_, wish)| wish)
    }

    /// A call that runs.
    pub(super) fn call(&self, id: &Foreign) -> Option<&Call> {
        self.calls.iter().find(|call| call.id == *id)
    }

    /// A call's result came: gives the tool's name, and the call if it ran without a request.
    pub(super) fn tool_ended(
        &mut self,
        id: &Foreign,
        shown: Shown,
    ) -> (Option<Foreign>, Option<Call>) {
        let at = self.calls.iter().position(|call| call.id == *id);
        let call = at.and_then(|at| self.calls.remove(at));
        let name = call.as_ref().map(|call| call.name.clone());
        (name, call.filter(|call| call.is_unasked(shown)))
    }

    /// The turn is over: gives the calls that ran without a request and brought no result.
    pub(crate) fn turn_ended(&mut self) -> Vec<Call> {
        self.requests.clear();
        self.used.clear();
        let calls = self.calls.drain(..);
        calls
            .filter(|call| call.is_unasked(Shown::NotDone))
            .collect()
    }

    /// Joins a request with its call: by the tool's id, else by tool and canonical input, the
    /// oldest first.
    pub(super) fn note_request(&mut self, ask: &Ask) {
        let digest = digest(&ask.input);
        let of_id = |call: &&mut Call| ask.tool_id.as_ref() == Some(&call.id);
        if let Some(call) = self.calls.iter_mut().find(of_id) {
            call.request = Request::Made(ask.key.clone());
            return;
        }
        let same =
            |call: &&mut Call| !call.is_asked() && call.name == ask.tool && call.digest == digest;
        if let Some(call) = self.calls.iter_mut().find(same) {
            call.request = Request::Made(ask.key.clone());
            return;
        }
        if self.requests.len() >= OPEN_CALLS {
            self.requests.pop_front();
        }
        self.requests.push_back(Early {
            id: ask.tool_id.clone(),
            tool: ask.tool.clone(),
            digest,
            request: Request::Made(ask.key.clone()),
        });
    }
}

/// The digest of the input in its one form, so that the announcement and the request of one call
/// compare equal.
fn digest(input: &RawValue) -> Digest {
    Sha256::digest(canonical(input).as_bytes()).into()
}

/// An input in its one form; one that has none is only like itself, byte for byte.
pub(super) fn canonical(input: &RawValue) -> String {
    model::canonical(input).unwrap_or_else(|why| format!("{why}\0{}", input.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(serial: u64, tool_id: &str) -> Ask {
        Ask {
            key: AskKey {
                id: serial.to_string(),
                serial,
            },
            tool_id: Some(tool_id.into()),
            tool: "Bash".into(),
            input: RawValue::from_string("{}".to_owned()).unwrap(),
            claimed: model::Claimed::default(),
        }
    }

    fn started(id: &str) -> Event {
        Event::ToolStart {
            id: id.into(),
            name: "Bash".into(),
            input: RawValue::from_string("{}".to_owned()).unwrap(),
        }
    }

    #[test]
    fn a_call_whose_request_was_withdrawn_ran_unasked_if_it_brought_a_result() {
        let mut asks = Asks::default();
        let ended = |asks: &mut Asks, id: &str, shown| {
            let (_, unasked) = asks.tool_ended(&id.into(), shown);
            unasked.is_some()
        };
        for (serial, shown, is_unasked) in [(1, Shown::Done, true), (2, Shown::NotDone, false)] {
            // The call first, then the request first.
            for early in [false, true] {
                let asked = ask(serial, "c");
                if early {
                    asks.note_request(&asked);
                }
                asks.tool_started(&started("c"));
                if !early {
                    asks.note_request(&asked);
                }
                asks.withdrawn(&asked.key);
                assert_eq!(
                    ended(&mut asks, "c", shown),
                    is_unasked,
                    "{shown:?} {early}"
                );
            }
        }
        // The request before the call, and taken back before it; one that was answered.
        asks.note_request(&ask(3, "d"));
        asks.withdrawn(&ask(3, "d").key);
        asks.tool_started(&started("d"));
        assert!(ended(&mut asks, "d", Shown::Done));
        asks.tool_started(&started("e"));
        asks.note_request(&ask(4, "e"));
        asks.withdrawn(&ask(3, "d").key);
        assert!(!ended(&mut asks, "e", Shown::Done));
        // What was withdrawn and never ended did not run.
        asks.tool_started(&started("f"));
        asks.note_request(&ask(5, "f"));
        asks.withdrawn(&ask(5, "f").key);
        asks.tool_started(&started("g"));
        let left = asks.turn_ended();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].id.raw(), "g");
    }

    #[test]
    fn a_verdict_is_for_the_one_request_that_it_was_given_for() {
        let key = |serial| AskKey {
            id: "7".to_owned(),
            serial,
        };
        let id = |text: &str| AskId::new(text).unwrap();
        let mut asks = Asks::default();
        // The agent withdrew one, and asks for another thing under the same name.
        asks.clients.insert(id("first"), key(1));
        asks.withdrawn(&key(1));
        asks.clients.insert(id("second"), key(2));
        assert!(!asks.answered(&id("first")));
        // A request for a permission that has its name is none of it either.
        asks.open.insert(id("third"), key(3));
        assert!(asks.answered(&id("third")));
        assert!(asks.answered(&id("second")) && !asks.answered(&id("second")));
        // Nor is one of the next child.
        asks.open.insert(id("fourth"), key(1));
        asks.gone();
        asks.open.insert(id("fifth"), key(1));
        assert!(!asks.answered(&id("fourth")) && asks.answered(&id("fifth")));
    }
}
