//! The tools that we give to the agent, as far as the session has a word in it: which, where, what a
//! person answers, and that a call of one was asked for.
//!
//! Must not carry anything out: its channel does that.

use std::sync::Arc;

use serde_json::Value;

use super::approvals::Ending;
use super::calls::{Asks, Call, Own, Shown};
use super::prepare::{self, Prepared};
use super::state::SessionState;
use crate::config::{Acp, McpServer, Reach};
use crate::dialect;
use crate::fleet::channel::ToolSetup;
use crate::fleet::setup::{PoolShared, Shared};
use crate::limits::OPEN_CALLS;
use crate::mcp;
use crate::model::{
    Ask, AskKey, ClientWish, Decision, ENGINE_SERVER, EngineTool, EngineWish, Foreign,
};
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
    let inside = sandbox::marshal_inside(pool.config.launcher).unwrap_or_else(|error| {
        tracing::warn!(%error, "nobody knows how this program is started in an image");
        vec![sandbox::MARSHAL_INSIDE.to_owned()]
    });
    let mut words = inside.into_iter();
    let command = words.next().unwrap_or_default();
    let tail = ["mcp", sandbox::TOOLS_INSIDE].map(str::to_owned);
    let mut acp = Acp::clone(&acp);
    acp.mcp_servers.push(McpServer {
        name: ENGINE_SERVER.to_owned(),
        reach: Reach::Program {
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
pub(super) fn announced(pool: &PoolShared, ask: &Ask) -> Option<EngineWish> {
    let tools = &pool.config.engine_tools;
    if tools.is_empty() {
        return None;
    }
    let served = dialect::served(pool.config.dialect, ask, ENGINE_SERVER)?;
    mcp::fitting(&served.tool, &served.arguments, tools)
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
    Some(said.map_or_else(|| AGREED.to_owned(), Foreign::into_raw))
}

impl SessionState {
    /// Notes that a tool of ours was called: its call was asked for, however the agent shows it.
    pub(super) fn tool_called(&mut self, key: &AskKey, wish: &ClientWish) {
        if let ClientWish::Tool(wish) = wish {
            if self.asks.own.len() >= OPEN_CALLS {
                self.asks.own.pop_front();
            }
            self.asks.own.push_back(Own {
                key: key.clone(),
                wish: EngineWish::clone(wish),
                is_allowed: false,
            });
        }
    }

    /// It is carried out.
    pub(super) fn tool_allowed(&mut self, key: &AskKey) {
        if let Some(own) = self.asks.own.iter_mut().find(|own| own.key == *key) {
            own.is_allowed = true;
        }
    }

    /// Whether a call that the agent shows is one that came to us, and was judged. One for one: a
    /// call that did not come here is none of ours, whatever it is called; and one that was denied
    /// is none that was done.
    pub(super) fn is_our_tools(&mut self, call: &Call, shown: Shown) -> bool {
        if let Some(wish) = self.asks.announced_as(&call.id) {
            return self.asks.takes_own(|own| *own == wish, shown);
        }
        let Some(input) = call.input.as_deref().filter(|_| !self.asks.own.is_empty()) else {
            return false;
        };
        // What is shown as a command, or as a file that is touched, is judged as that.
        let arguments = match self.pool.extractor.extract_shown(call.name.raw(), input) {
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
        let is_it = |wish: &EngineWish| {
            wish.is_shown_as(&arguments) || within.is_some_and(|within| wish.is_shown_as(within))
        };
        self.asks.takes_own(is_it, shown)
    }
}

impl Asks {
    /// Takes out the call of ours that is the one shown; `false` if there is none.
    fn takes_own(&mut self, is_it: impl Fn(&EngineWish) -> bool, shown: Shown) -> bool {
        let done = shown == Shown::Done;
        // What failed is rather one that was denied.
        let fits = |own: &Own| own.is_allowed == done && is_it(&own.wish);
        let at = self.own.iter().position(fits);
        let at = at.or_else(|| self.own.iter().position(|own| !done && is_it(&own.wish)));
        at.and_then(|at| self.own.remove(at)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn own(serial: u64, is_allowed: bool) -> Own {
        let key = AskKey {
            id: serial.to_string(),
            serial,
        };
        Own {
            key,
            wish: EngineWish {
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
        let is_shown = |wish: &EngineWish| wish.is_shown_as(&shown);
        let mut asks = Asks::default();
        asks.own.push_back(own(1, false));
        assert!(!asks.takes_own(is_shown, Shown::Done), "it was denied");
        assert!(asks.takes_own(is_shown, Shown::NotDone), "it is that one");
        assert!(!asks.takes_own(is_shown, Shown::NotDone), "one for one");
        // Of two that are alike each is the one that it can be.
        asks.own.push_back(own(2, true));
        asks.own.push_back(own(3, false));
        assert!(asks.takes_own(is_shown, Shown::NotDone));
        assert!(asks.takes_own(is_shown, Shown::Done));
        // One that failed though it was allowed.
        asks.own.push_back(own(4, true));
        assert!(asks.takes_own(is_shown, Shown::NotDone));
        assert!(asks.own.is_empty());
    }
}
