//! The tool calls and open permission requests of a turn, and which request belongs to which call.
//!
//! Pure. Must not evaluate anything.

use std::collections::{BTreeMap, HashMap, VecDeque};

use serde_json::value::RawValue;
use sha2::{Digest as _, Sha256};

use super::shell_directory::ShellDirectory;
use marshal_model::limits::{OPEN_CALLS, OPEN_PERMISSION_REQUESTS, PERMISSION_INPUT_BYTES};
use marshal_model::{
    self as model, EngineRequest, Event, PermissionRequest, PermissionRequestId,
    PermissionRequestKey, UntrustedText,
};

/// One tool call, as the agent announced it.
#[derive(Debug)]
pub(crate) struct ToolCall {
    pub(super) id: UntrustedText,
    pub(crate) name: UntrustedText,
    /// Its input; `None` if it is too large to evaluate.
    pub(crate) input: Option<Box<RawValue>>,
    digest: Digest,
    request: RequestState,
}

/// Whether a permission was requested for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
enum RequestState {
    None,
    Made(PermissionRequestKey),
    /// Withdrawn before it was answered.
    Withdrawn,
}

impl RequestState {
    /// Marks the request as withdrawn, if it is this one.
    fn withdraw(&mut self, key: &PermissionRequestKey) {
        if matches!(self, Self::Made(made) if made == key) {
            *self = Self::Withdrawn;
        }
    }
}

impl ToolCall {
    /// Whether it has a request that is open or was answered.
    pub(super) fn has_request(&self) -> bool {
        matches!(self.request, RequestState::Made(_))
    }

    /// Whether it ran without a request, or without the answer to it. A call whose request was
    /// withdrawn did not run unless it has a result.
    fn ran_without_request(&self, shown: ReportedResult) -> bool {
        match self.request {
            RequestState::None => true,
            RequestState::Made(_) => false,
            RequestState::Withdrawn => shown == ReportedResult::Done,
        }
    }
}

/// SHA-256 of the canonical input, by which an announcement and a request are compared.
type Digest = [u8; 32];

/// The open permission requests and tool calls of a turn.
#[derive(Debug, Default)]
pub(crate) struct OpenRequests {
    /// Decided, not yet answered. Keyed by our own id: a verdict that becomes durable is for this
    /// one request, whatever ids an agent reuses.
    pub(super) open: HashMap<PermissionRequestId, PermissionRequestKey>,
    /// The same for client requests; the dialect bounds their number.
    pub(super) client_requests: HashMap<PermissionRequestId, PermissionRequestKey>,
    pub(super) calls: VecDeque<ToolCall>,
    /// Requests that arrived before their call.
    requests: VecDeque<EarlyRequest>,
    /// The possible directories of the agent's shell.
    pub(crate) directory: ShellDirectory,
    /// Uses in this turn of rules that allow only a number of times.
    pub(super) rule_uses: BTreeMap<String, u32>,
    /// Engine tool calls of this turn that the agent has not shown as calls; at most
    /// [`OPEN_CALLS`].
    pub(super) engine_calls: VecDeque<EngineCallRecord>,
    /// Announced engine tool calls, by their ids; at most [`OPEN_PERMISSION_REQUESTS`].
    pub(super) announced: VecDeque<(UntrustedText, EngineRequest)>,
}

/// An engine tool call that arrived on the socket.
#[derive(Debug)]
pub(super) struct EngineCallRecord {
    /// The key of its request.
    pub(super) key: PermissionRequestKey,
    pub(super) engine_request: EngineRequest,
    /// Whether it was allowed and carried out: only then can it match a call that the agent shows
    /// as done.
    pub(super) is_allowed: bool,
}

/// What an agent shows of the end of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReportedResult {
    /// It has a result.
    Done,
    /// It failed, or nothing is shown.
    NotDone,
}

/// A request whose call is not announced yet.
#[derive(Debug)]
struct EarlyRequest {
    id: Option<UntrustedText>,
    tool: UntrustedText,
    digest: Digest,
    request: RequestState,
}

impl OpenRequests {
    /// Uses in this turn of rules that allow only a number of times.
    pub(super) fn rule_uses(&self) -> &BTreeMap<String, u32> {
        &self.rule_uses
    }

    /// Takes out an open request; `false` if its answer is no longer wanted.
    pub(crate) fn take_open(&mut self, permission_request: &PermissionRequestId) -> bool {
        self.open.remove(permission_request).is_some()
            || self.client_requests.remove(permission_request).is_some()
    }

    /// Removes a request that the agent withdrew.
    pub(crate) fn withdraw(&mut self, key: &PermissionRequestKey) {
        self.open.retain(|_, open| open != key);
        self.client_requests.retain(|_, open| open != key);
        for call in &mut self.calls {
            call.request.withdraw(key);
        }
        for early in &mut self.requests {
            early.request.withdraw(key);
        }
    }

    /// Removes all open requests, because the child is gone.
    pub(crate) fn clear_open(&mut self) {
        self.open.clear();
        self.client_requests.clear();
        // The next child starts at the workspace root.
        self.directory = ShellDirectory::default();
    }

    /// Records a tool call, and joins it with an earlier request. If there are too many calls,
    /// gives back the oldest one: it must be evaluated now, as its end will not be recognised.
    pub(crate) fn record_tool_start(&mut self, event: &Event) -> Option<ToolCall> {
        let Event::ToolStart { id, name, input } = event else {
            return None;
        };
        let digest = digest(input);
        let of_id = |early: &EarlyRequest| early.id.as_ref() == Some(id);
        let same = |early: &EarlyRequest| early.tool == *name && early.digest == digest;
        let before = self
            .requests
            .iter()
            .position(of_id)
            .or_else(|| self.requests.iter().position(same))
            .and_then(|at| self.requests.remove(at));
        let request = before.map_or(RequestState::None, |early| early.request);
        let evicted = if self.calls.len() >= OPEN_CALLS {
            self.calls.pop_front()
        } else {
            None
        };
        self.calls.push_back(ToolCall {
            id: id.clone(),
            name: name.clone(),
            input: (input.get().len() <= PERMISSION_INPUT_BYTES).then(|| input.clone()),
            digest,
            request,
        });
        evicted.filter(|call| call.ran_without_request(ReportedResult::NotDone))
    }

    /// Updates the name and input of a call: they may have been incomplete when it started.
    pub(crate) fn record_tool_update(&mut self, event: &Event) {
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
            call.input = (input.get().len() <= PERMISSION_INPUT_BYTES).then(|| input.clone());
            call.digest = digest(input);
        }
    }

    /// Records an engine tool call that the agent announced and may make.
    pub(super) fn record_announced(
        &mut self,
        id: Option<&UntrustedText>,
        engine_request: Option<EngineRequest>,
    ) {
        if let (Some(id), Some(engine_request)) = (id, engine_request) {
            if self.announced.len() >= OPEN_PERMISSION_REQUESTS {
                self.announced.pop_front();
            }
            self.announced.push_back((id.clone(), engine_request));
        }
    }

    /// Takes out the announced call of this id.
    pub(super) fn take_announced(&mut self, id: &UntrustedText) -> Option<EngineRequest> {
        let at = self.announced.iter().position(|(item, _)| item == id)?;
        self.announced
            .remove(at)
            .map(|(_, engine_request)| engine_request)
    }

    /// The running call of this id.
    pub(crate) fn call(&self, id: &UntrustedText) -> Option<&ToolCall> {
        self.calls.iter().find(|call| call.id == *id)
    }

    /// Records the end of a call. Gives the tool's name, and the call if it ran without a request.
    pub(crate) fn record_tool_end(
        &mut self,
        id: &UntrustedText,
        shown: ReportedResult,
    ) -> (Option<UntrustedText>, Option<ToolCall>) {
        let at = self.calls.iter().position(|call| call.id == *id);
        let call = at.and_then(|at| self.calls.remove(at));
        let name = call.as_ref().map(|call| call.name.clone());
        (name, call.filter(|call| call.ran_without_request(shown)))
    }

    /// How many calls have no result yet.
    pub(crate) fn open_calls(&self) -> usize {
        self.calls.len()
    }

    /// Forgets the engine tool calls of a turn that ended.
    pub(crate) fn forget_engine_calls(&mut self) {
        self.engine_calls.clear();
        self.announced.clear();
    }

    /// Ends the turn. Gives the calls without a result that ran without a request.
    pub(crate) fn end_turn(&mut self) -> Vec<ToolCall> {
        self.requests.clear();
        self.rule_uses.clear();
        let calls = self.calls.drain(..);
        calls
            .filter(|call| call.ran_without_request(ReportedResult::NotDone))
            .collect()
    }

    /// Joins a request with its call: by the call's id, else by tool and canonical input, the
    /// oldest first.
    pub(super) fn record_request(&mut self, permission_request: &PermissionRequest) {
        let digest = digest(&permission_request.input);
        let of_id = |call: &&mut ToolCall| permission_request.tool_id.as_ref() == Some(&call.id);
        if let Some(call) = self.calls.iter_mut().find(of_id) {
            call.request = RequestState::Made(permission_request.key.clone());
            return;
        }
        let same = |call: &&mut ToolCall| {
            !call.has_request() && call.name == permission_request.tool && call.digest == digest
        };
        if let Some(call) = self.calls.iter_mut().find(same) {
            call.request = RequestState::Made(permission_request.key.clone());
            return;
        }
        if self.requests.len() >= OPEN_CALLS {
            self.requests.pop_front();
        }
        self.requests.push_back(EarlyRequest {
            id: permission_request.tool_id.clone(),
            tool: permission_request.tool.clone(),
            digest,
            request: RequestState::Made(permission_request.key.clone()),
        });
    }
}

/// The digest of the canonical input, so that the announcement and the request of one call compare
/// equal.
fn digest(input: &RawValue) -> Digest {
    Sha256::digest(canonical(input).as_bytes()).into()
}

/// The canonical input. An input without a canonical form equals only itself, byte for byte.
pub(super) fn canonical(input: &RawValue) -> String {
    model::canonicalize(input).unwrap_or_else(|why| format!("{why}\0{}", input.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission_request(serial: u64, tool_id: &str) -> PermissionRequest {
        PermissionRequest {
            key: PermissionRequestKey {
                id: serial.to_string(),
                serial,
            },
            tool_id: Some(tool_id.into()),
            tool: "Bash".into(),
            input: RawValue::from_string("{}".to_owned()).unwrap(),
            claims: model::AgentClaims::default(),
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
        let mut requests = OpenRequests::default();
        let ended = |requests: &mut OpenRequests, id: &str, shown| {
            let (_, unasked) = requests.record_tool_end(&id.into(), shown);
            unasked.is_some()
        };
        for (serial, shown, is_unasked) in [
            (1, ReportedResult::Done, true),
            (2, ReportedResult::NotDone, false),
        ] {
            // The call first, then the request first.
            for early in [false, true] {
                let request = permission_request(serial, "c");
                if early {
                    requests.record_request(&request);
                }
                requests.record_tool_start(&started("c"));
                if !early {
                    requests.record_request(&request);
                }
                requests.withdraw(&request.key);
                assert_eq!(
                    ended(&mut requests, "c", shown),
                    is_unasked,
                    "{shown:?} {early}"
                );
            }
        }
        // The request before the call, and taken back before it; one that was answered.
        requests.record_request(&permission_request(3, "d"));
        requests.withdraw(&permission_request(3, "d").key);
        requests.record_tool_start(&started("d"));
        assert!(ended(&mut requests, "d", ReportedResult::Done));
        requests.record_tool_start(&started("e"));
        requests.record_request(&permission_request(4, "e"));
        requests.withdraw(&permission_request(3, "d").key);
        assert!(!ended(&mut requests, "e", ReportedResult::Done));
        // What was withdrawn and never ended did not run.
        requests.record_tool_start(&started("f"));
        requests.record_request(&permission_request(5, "f"));
        requests.withdraw(&permission_request(5, "f").key);
        requests.record_tool_start(&started("g"));
        let left = requests.end_turn();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].id.raw(), "g");
    }

    #[test]
    fn a_verdict_is_for_the_one_request_that_it_was_given_for() {
        let key = |serial| PermissionRequestKey {
            id: "7".to_owned(),
            serial,
        };
        let id = |text: &str| PermissionRequestId::new(text).unwrap();
        let mut requests = OpenRequests::default();
        // The agent withdrew one, and asks for another thing under the same name.
        requests.client_requests.insert(id("first"), key(1));
        requests.withdraw(&key(1));
        requests.client_requests.insert(id("second"), key(2));
        assert!(!requests.take_open(&id("first")));
        // A request for a permission that has its name is none of it either.
        requests.open.insert(id("third"), key(3));
        assert!(requests.take_open(&id("third")));
        assert!(requests.take_open(&id("second")) && !requests.take_open(&id("second")));
        // Nor is one of the next child.
        requests.open.insert(id("fourth"), key(1));
        requests.clear_open();
        requests.open.insert(id("fifth"), key(1));
        assert!(!requests.take_open(&id("fourth")) && requests.take_open(&id("fifth")));
    }
}
