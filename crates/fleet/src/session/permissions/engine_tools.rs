//! The engine tools of the agent, from the session's side: which tools, where their socket is, the
//! approver's answer to `ask_person`, and that a call had a request.
//!
//! Must not carry anything out: its channel does that.
//!
//! A permission request that an agent makes before it calls such a tool is allowed as
//! `engine_tools.announced` (`dialect/acp/mcp_tool_call.rs` reads it). It does not count as a
//! request for anything else: the call is evaluated when it arrives on the socket. The approver's
//! comment on `ask_person` is the text of the answer.

use std::sync::Arc;

use serde_json::Value;

use super::approvals::ApprovalEnd;
use super::tool_calls::{EngineCallRecord, OpenRequests, ReportedResult, ToolCall};
use crate::channel::ToolSetup;
use crate::session::workspace::prepare::{self, PreparedSession};
use crate::setup::{PoolShared, Shared};
use marshal_config::{AcpSettings, McpServer, McpTransport};
use marshal_dialect as dialect;
use marshal_dialect::mcp;
use marshal_model::limits::OPEN_CALLS;
use marshal_model::{
    AGREED_WITHOUT_COMMENT, ClientRequest, Decision, ENGINE_SERVER, EngineRequest, EngineTool,
    PermissionRequest, PermissionRequestKey, UntrustedText,
};
use marshal_policy::Request;
use marshal_policy::extract::Extractor;
use marshal_sandbox as sandbox;

impl PreparedSession {
    /// The engine tools that the agent gets; `None` if the pool offers none.
    pub(crate) fn tool_setup(&self, shared: &Shared, pool: &PoolShared) -> Option<ToolSetup> {
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

/// Adds the engine's tool server to the pool's own tool servers.
pub(crate) fn with_engine_server(acp: Arc<AcpSettings>, pool: &PoolShared) -> Arc<AcpSettings> {
    if pool.config.engine_tools.is_empty() {
        return acp;
    }
    let inside = sandbox::marshal_argv_inside(pool.config.launcher).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot tell how to start marshal in the image; the default path is used");
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

/// How some agents show a call: the tool's input is inside `rawInput`.
#[derive(serde::Deserialize)]
struct Input {
    #[serde(rename = "rawInput")]
    raw: Value,
}

/// The engine tool call that a permission request announces, if it announces one.
pub(super) fn announced_call(
    pool: &PoolShared,
    request: &PermissionRequest,
) -> Option<EngineRequest> {
    let tools = &pool.config.engine_tools;
    if tools.is_empty() {
        return None;
    }
    let served = dialect::parse_mcp_tool_call(pool.config.dialect, request, ENGINE_SERVER)?;
    mcp::parse_tool_call(&served.tool, &served.arguments, tools)
}

/// The approver's comment as the answer to `ask_person`.
pub(super) fn person_answer(call: &ClientRequest, ending: &ApprovalEnd) -> Option<String> {
    let ClientRequest::Tool(call) = call else {
        return None;
    };
    if call.tool != EngineTool::AskPerson || ending.decision != Decision::Allow {
        return None;
    }
    let comment = ending.answer.as_ref().and_then(|item| item.comment.clone());
    Some(comment.map_or_else(
        || AGREED_WITHOUT_COMMENT.to_owned(),
        UntrustedText::into_raw,
    ))
}

impl OpenRequests {
    /// Records a call of an engine tool, so that it counts as requested, however the agent shows
    /// it.
    pub(super) fn record_engine_call(
        &mut self,
        key: &PermissionRequestKey,
        engine_request: &ClientRequest,
    ) {
        if let ClientRequest::Tool(engine_request) = engine_request {
            if self.engine_calls.len() >= OPEN_CALLS {
                self.engine_calls.pop_front();
            }
            self.engine_calls.push_back(EngineCallRecord {
                key: key.clone(),
                engine_request: EngineRequest::clone(engine_request),
                is_allowed: false,
            });
        }
    }

    /// Records that a call was allowed.
    pub(super) fn mark_engine_call_allowed(&mut self, key: &PermissionRequestKey) {
        if let Some(own) = self.engine_calls.iter_mut().find(|own| own.key == *key) {
            own.is_allowed = true;
        }
    }

    /// Removes the recorded engine tool call that a tool call shown by the agent corresponds to;
    /// `false` if there is none. Each recorded call matches once: a call that never arrived on the
    /// socket has no match, and a denied call does not match one that was carried out.
    pub(super) fn take_matching_engine_call(
        &mut self,
        extractor: &Extractor,
        call: &ToolCall,
        shown: ReportedResult,
    ) -> bool {
        if let Some(engine_request) = self.take_announced(&call.id) {
            return self.take_engine_call(|own| *own == engine_request, shown);
        }
        let Some(input) = call
            .input
            .as_deref()
            .filter(|_| !self.engine_calls.is_empty())
        else {
            return false;
        };
        // A call that the agent shows as a command or as a file access is evaluated as that.
        let arguments = match extractor.extract_displayed(call.name.raw(), input) {
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
        let is_it = |engine_request: &EngineRequest| {
            engine_request.matches_input(&arguments)
                || within.is_some_and(|within| engine_request.matches_input(within))
        };
        self.take_engine_call(is_it, shown)
    }

    /// Removes the recorded call that matches the one shown; `false` if there is none.
    fn take_engine_call(
        &mut self,
        is_it: impl Fn(&EngineRequest) -> bool,
        shown: ReportedResult,
    ) -> bool {
        let done = shown == ReportedResult::Done;
        // A call that failed rather matches one that was denied.
        let fits = |own: &EngineCallRecord| own.is_allowed == done && is_it(&own.engine_request);
        let at = self.engine_calls.iter().position(fits).or_else(|| {
            self.engine_calls
                .iter()
                .position(|own| !done && is_it(&own.engine_request))
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
            engine_request: EngineRequest {
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
        let is_shown = |engine_request: &EngineRequest| engine_request.matches_input(&shown);
        let mut requests = OpenRequests::default();
        requests.engine_calls.push_back(own(1, false));
        assert!(
            !requests.take_engine_call(is_shown, ReportedResult::Done),
            "it was denied"
        );
        assert!(
            requests.take_engine_call(is_shown, ReportedResult::NotDone),
            "it is that one"
        );
        assert!(
            !requests.take_engine_call(is_shown, ReportedResult::NotDone),
            "one for one"
        );
        // Of two equal calls each matches the one whose outcome fits.
        requests.engine_calls.push_back(own(2, true));
        requests.engine_calls.push_back(own(3, false));
        assert!(requests.take_engine_call(is_shown, ReportedResult::NotDone));
        assert!(requests.take_engine_call(is_shown, ReportedResult::Done));
        // A call that failed although it was allowed.
        requests.engine_calls.push_back(own(4, true));
        assert!(requests.take_engine_call(is_shown, ReportedResult::NotDone));
        assert!(requests.engine_calls.is_empty());
    }
}
