//! The tools that we give to the agent, as far as the session has a word in it: which, where, what a
//! person answers, and that a call of one was asked for.
//!
//! Must not carry anything out: its channel does that.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::approvals::Ending;
use super::calls::Call;
use super::prepare::{self, Prepared};
use super::state::SessionState;
use crate::config::{Acp, McpServer, Reach};
use crate::fleet::channel::ToolSetup;
use crate::fleet::setup::{PoolShared, Shared};
use crate::model::{ClientWish, Decision, ENGINE_SERVER, EngineTool};
use crate::policy::Request;
use crate::sandbox;

/// What a person said who said nothing.
const AGREED: &str = "the person agrees, and said nothing more";

impl Prepared {
    /// The tools that the agent gets, if its pool gives it any.
    pub(super) fn tool_setup(&self, shared: &Shared, pool: &PoolShared) -> Option<ToolSetup> {
        let tools = &pool.config.engine_tools;
        if tools.is_empty() {
            return None;
        }
        let (uid, _) = prepare::ids(shared, pool, self.space().slot()).outside();
        Some(ToolSetup {
            path: prepare::tool_socket(shared, &self.session),
            uid,
            tools: tools.clone(),
        })
    }
}

/// What an agent is handed with its session: the pool's own tool servers, and ours.
pub(super) fn with_ours(acp: Arc<Acp>, pool: &PoolShared) -> Arc<Acp> {
    if pool.config.engine_tools.is_empty() {
        return acp;
    }
    let mut acp = Acp::clone(&acp);
    acp.mcp_servers.push(McpServer {
        name: ENGINE_SERVER.to_owned(),
        reach: Reach::Program {
            command: sandbox::MARSHAL_INSIDE.to_owned(),
            args: vec!["mcp".to_owned(), sandbox::TOOLS_INSIDE.to_owned()],
            env: std::collections::BTreeMap::new(),
        },
    });
    Arc::new(acp)
}

/// The tool that a call's title names, where the protocol has no other name for it.
fn titled(input: &RawValue) -> Option<EngineTool> {
    #[derive(serde::Deserialize)]
    struct Shown {
        title: String,
    }
    let shown: Shown = serde_json::from_str(input.get()).ok()?;
    let mut words = shown.title.split(|c: char| !c.is_ascii_alphanumeric());
    let is_ours = words.any(|word| word == ENGINE_SERVER);
    let tools = EngineTool::ALL.iter().copied();
    is_ours
        .then(|| tools.into_iter().find(|of| shown.title.contains(of.word())))
        .flatten()
}

/// What a person's word is as the answer to a question of the agent's.
pub(super) fn said(wish: &ClientWish, ending: &Ending) -> Option<String> {
    let ClientWish::Tool(wish) = wish else {
        return None;
    };
    if wish.tool != EngineTool::AskPerson || ending.decision != Decision::Allow {
        return None;
    }
    let said = ending.answer.as_ref().and_then(|of| of.said.clone());
    Some(said.map_or_else(|| AGREED.to_owned(), |said| said.into_raw()))
}

impl SessionState {
    /// Notes that a tool of ours was called: its call was asked for, however the agent shows it.
    pub(super) fn tool_called(&mut self, wish: &ClientWish) {
        if let ClientWish::Tool(wish) = wish {
            let calls = self.asks.own.entry(wish.tool).or_default();
            *calls = calls.saturating_add(1);
        }
    }

    /// Whether a call that the agent shows is one that came to us, and was judged.
    pub(super) fn is_our_tools(&mut self, call: &Call) -> bool {
        if self.asks.own.is_empty() {
            return false;
        }
        let input = call.input.as_deref();
        let shown = input.map(|input| self.pool.extractor.extract_shown(call.name.raw(), input));
        let tool = match &shown {
            Some(Request::Mcp { server, name, .. }) if server.raw() == ENGINE_SERVER => {
                EngineTool::from_word(name.raw())
            }
            // What is shown as a command or a file is judged as that, whatever its title is.
            Some(Request::Unknown { .. }) => input.and_then(titled),
            _ => None,
        };
        // One for one: a call that did not come here is none of ours, whatever it is called.
        let Some(calls) = tool.and_then(|tool| self.asks.own.get_mut(&tool)) else {
            return false;
        };
        let is_ours = *calls > 0;
        *calls = calls.saturating_sub(1);
        is_ours
    }
}
