//! The tools that we give to the agent, as far as the session has a word in it: which, where, what a
//! person answers, and that a call of one was asked for.
//!
//! Must not carry anything out: its channel does that.
//!
//! What an agent asks before it calls such a tool is allowed as `engine_tools.announced`
//! (`dialect/acp/mcp_tool_call.rs` reads it). It counts as a request for nothing else: the call is judged when it
//! comes by the socket. What a person says to `ask_person` is the text of the answer.

use std::sync::Arc;

use serde_json::Value;

use super::approvals::ApprovalEnd;
use super::prepare::{self, PreparedSession};
use super::state::SessionState;
use super::tool_calls::{EngineCallRecord, OpenRequests, ReportedResult, ToolCall};
use crate::channel::ToolSetup;
use crate::setup::{PoolShared, Shared};
use marshal_config::{AcpSettings, McpServer, McpTransport};
use marshal_dialect as dialect;
use marshal_dialect::mcp;
use marshal_model::limits::OPEN_CALLS;
use marshal_model::{
    ClientRequest, Decision, ENGINE_SERVER, EngineRequest, EngineTool, PermissionRequest,
    PermissionRequestKey, UntrustedText,
};
use marshal_policy::Request;
use marshal_sandbox as sandbox;

/// What a person said who said nothing.
const AGREED: &str = "the person agrees, and said nothing more";

impl PreparedSession {
    /// The tools that the agent gets, if its pool gives it any.
    pub(super) fn tool_setup(&self, shared: &Shared, pool: &PoolShared) -> Option<ToolSetup> {
        let tools = &pool.config.engine_tools;
        if tools.is_empty() {
            return None;
        }
        let (uid, _) = prepare::ids(shared, pool, self.dirs().slot()).uid_and_gid();
        Some(ToolSetup {
            path: prepare::tool_socket(shared, &self.session),
            uid,
            tools: tools.clone(),
        })
    }
}

/// What an agent is handed with its session: the pool's own tool servers, and ours.
pub(super) fn with_engine_server(acp: Arc<AcpSettings>, pool: &PoolShared) -> Arc<AcpSettings> {
    if pool.config.engine_tools.is_empty() {
        return acp;
    }
    let inside = sandbox::marshal_argv_inside(pool.config.launcher).unwrap_or_else(|error| {
        tracing::warn!(%error, "nobody knows how this program is started in an image");
        vec![sandbox::MARSHAL_INSIDE.to_owned()]
    });
    let mut words = inside.into_iter();
    let command = words.next().unwrap_or_default();
    let tail = ["mcp", sandbox::TOOLS_INSIDE].map(str::to_owned);
    let mut acp = AcpSettings::clone(&acp);
    acp.mcp_servers.push(McpServer {
        name: ENGINE_SERVER.to_owned(),
        transport: McpTransport::Program {
            command,
            args: words.chain(tail).collect(),
            env: std::collections::BTreeMap::new(),
        },
    });
    Arc::new(acp)
}

/// What an agent shows of a call: what it gave to its tool, or that within what names the tool.
#[derive(serde::Deserialize)]
struct Input {
    #[serde(rename = "rawInput")]
    raw: Value,
}

/// The call of a tool of ours that is to come, if that is what the agent asks a permission for.
pub(super) fn announced_call(pool: &PoolShared, ask: &PermissionRequest) -> Option<EngineRequest> {
    let tools = &pool.config.engine_tools;
    if tools.is_empty() {
        return None;
    }
    let served = dialect::parse_mcp_tool_call(pool.config.dialect, ask, ENGINE_SERVER)?;
    mcp::parse_tool_call(&served.tool, &served.arguments, tools)
}

/// What a person's word is as the answer to a question of the agent's.
pub(super) fn person_answer(wish: &ClientRequest, ending: &ApprovalEnd) -> Option<String> {
    let ClientRequest::Tool(wish) = wish else {
        return None;
    };
    if wish.tool != EngineTool::AskPerson || ending.decision != Decision::Allow {
        return None;
    }
    let said = ending.answer.as_ref().and_then(|of| of.comment.clone());
    Some(said.map_or_else(|| AGREED.to_owned(), UntrustedText::into_raw))
}

impl SessionState {
    /// Notes that a tool of ours was called: its call was asked for, however the agent shows it.
    pub(super) fn record_engine_call(&mut self, key: &PermissionRequestKey, wish: &ClientRequest) {
        if let ClientRequest::Tool(wish) = wish {
            if self.requests.engine_calls.len() >= OPEN_CALLS {
                self.requests.engine_calls.pop_front();
            }
            self.requests.engine_calls.push_back(EngineCallRecord {
                key: key.clone(),
                wish: EngineRequest::clone(wish),
                is_allowed: false,
            });
        }
    }

    /// It is carried out.
    pub(super) fn mark_engine_call_allowed(&mut self, key: &PermissionRequestKey) {
        if let Some(own) = self
            .requests
            .engine_calls
            .iter_mut()
            .find(|own| own.key == *key)
        {
            own.is_allowed = true;
        }
    }

    /// Whether a call that the agent shows is one that came to us, and was judged. One for one: a
    /// call that did not come here is none of ours, whatever it is called; and one that was denied
    /// is none that was done.
    pub(super) fn is_engine_call(&mut self, call: &ToolCall, shown: ReportedResult) -> bool {
        if let Some(wish) = self.requests.take_announced(&call.id) {
            return self.requests.take_engine_call(|own| *own == wish, shown);
        }
        let Some(input) = call
            .input
            .as_deref()
            .filter(|_| !self.requests.engine_calls.is_empty())
        else {
            return false;
        };
        // What is shown as a command, or as a file that is touched, is judged as that.
        let arguments = match self
            .pool
            .extractor
            .extract_displayed(call.name.raw(), input)
        {
            Request::Mcp {
                server, arguments, ..
            } if server.raw() == ENGINE_SERVER => arguments,
            Request::Unknown { .. } => match serde_json::from_str::<Input>(input.get()) {
                Ok(shown) => shown.raw,
                Err(_) => return false,
            },
            _ => return false,
        };
        let within = arguments.get("arguments");
        let is_it = |wish: &EngineRequest| {
            wish.matches_input(&arguments)
                || within.is_some_and(|within| wish.matches_input(within))
        };
        self.requests.take_engine_call(is_it, shown)
    }
}

impl OpenRequests {
    /// Takes out the call of ours that is the one shown; `false` if there is none.
    fn take_engine_call(
        &mut self,
        is_it: impl Fn(&EngineRequest) -> bool,
        shown: ReportedResult,
    ) -> bool {
        let done = shown == ReportedResult::Done;
        // What failed is rather one that was denied.
        let fits = |own: &EngineCallRecord| own.is_allowed == done && is_it(&own.wish);
        let at = self.engine_calls.iter().position(fits);
        let at = at.or_else(|| {
            self.engine_calls
                .iter()
                .position(|own| !done && is_it(&own.wish))
        });
        at.and_then(|at| self.engine_calls.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn own(serial: u64, is_allowed: bool) -> EngineCallRecord {
        let key = PermissionRequestKey {
            id: serial.to_string(),
            serial,
        };
        EngineCallRecord {
            key,
            wish: EngineRequest {
                tool: EngineTool::PlanStep,
                path: None,
                arguments: json!({"step": "a", "status": "done"}),
            },
            is_allowed,
        }
    }

    #[test]
    fn a_call_that_was_denied_excuses_none_that_was_done() {
        let shown = json!({"step": "a", "status": "done"});
        let is_shown = |wish: &EngineRequest| wish.matches_input(&shown);
        let mut asks = OpenRequests::default();
        asks.engine_calls.push_back(own(1, false));
        assert!(
            !asks.take_engine_call(is_shown, ReportedResult::Done),
            "it was denied"
        );
        assert!(
            asks.take_engine_call(is_shown, ReportedResult::NotDone),
            "it is that one"
        );
        assert!(
            !asks.take_engine_call(is_shown, ReportedResult::NotDone),
            "one for one"
        );
        // Of two that are alike each is the one that it can be.
        asks.engine_calls.push_back(own(2, true));
        asks.engine_calls.push_back(own(3, false));
        assert!(asks.take_engine_call(is_shown, ReportedResult::NotDone));
        assert!(asks.take_engine_call(is_shown, ReportedResult::Done));
        // One that failed though it was allowed.
        asks.engine_calls.push_back(own(4, true));
        assert!(asks.take_engine_call(is_shown, ReportedResult::NotDone));
        assert!(asks.engine_calls.is_empty());
    }
}
