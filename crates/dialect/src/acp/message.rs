//! ACP's results and parameters, typed as far as they are needed.
//!
//! Must not know in which order they come. Reading is lenient: a member that we do not need, or
//! that has another type than expected, is skipped. A missing required member makes the message
//! unreadable, and so does a duplicate member.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::auth::{self, Login};
use crate::lenient::{BoundedList, Count, parse, parse_id, parse_object, parse_string};
use marshal_model::limits;
use marshal_model::{Cost, PlanEntry, TurnOutcome, UntrustedText, Usage};
use marshal_wire::json::JsonString;

/// The result of `initialize`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InitializeResult<'a> {
    #[serde(borrow)]
    pub(super) protocol_version: Option<&'a RawValue>,
    #[serde(borrow)]
    agent_capabilities: Option<&'a RawValue>,
    #[serde(borrow)]
    agent_info: Option<&'a RawValue>,
    #[serde(borrow)]
    auth_methods: Option<&'a RawValue>,
}

/// The agent's capabilities beside prompts.
#[derive(Debug, Default, Clone)]
pub(super) struct Capabilities {
    pub(super) load: bool,
    pub(super) list: bool,
    pub(super) resume: bool,
    pub(super) close: bool,
    pub(super) logout: bool,
    /// Whether a prompt may contain files.
    pub(super) embedded: bool,
    /// Whether it reaches tool servers by HTTP.
    pub(super) http: bool,
    /// Whether it reaches tool servers by server-sent events.
    pub(super) sse: bool,
    pub(super) logins: Vec<Login>,
}

impl InitializeResult<'_> {
    /// The agent's own version.
    pub(super) fn version(&self) -> Option<UntrustedText> {
        #[derive(Deserialize)]
        struct Info<'a> {
            #[serde(borrow)]
            version: Option<&'a RawValue>,
        }
        parse_string(parse_object::<Info<'_>>(self.agent_info?)?.version)
    }

    /// The agent's capabilities. One that is not stated is absent.
    pub(super) fn capabilities(&self) -> Capabilities {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Agent<'a> {
            #[serde(borrow)]
            load_session: Option<&'a RawValue>,
            #[serde(borrow)]
            session_capabilities: Option<&'a RawValue>,
            #[serde(borrow)]
            prompt_capabilities: Option<&'a RawValue>,
            #[serde(borrow)]
            mcp_capabilities: Option<&'a RawValue>,
            #[serde(borrow)]
            auth: Option<&'a RawValue>,
        }
        #[derive(Default, Deserialize)]
        struct Session<'a> {
            #[serde(borrow)]
            list: Option<&'a RawValue>,
            #[serde(borrow)]
            resume: Option<&'a RawValue>,
            #[serde(borrow)]
            close: Option<&'a RawValue>,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Prompt<'a> {
            #[serde(borrow)]
            embedded_context: Option<&'a RawValue>,
        }
        #[derive(Default, Deserialize)]
        struct Mcp<'a> {
            #[serde(borrow)]
            http: Option<&'a RawValue>,
            #[serde(borrow)]
            sse: Option<&'a RawValue>,
        }
        #[derive(Default, Deserialize)]
        struct Auth<'a> {
            #[serde(borrow)]
            logout: Option<&'a RawValue>,
        }
        let can =
            |raw: Option<&RawValue>| raw.is_some_and(|raw| !matches!(raw.get(), "false" | "null"));
        let is_true = |raw: Option<&RawValue>| raw.is_some_and(|raw| raw.get() == "true");
        let agent: Agent<'_> = self
            .agent_capabilities
            .and_then(parse_object)
            .unwrap_or_default();
        let session: Session<'_> = agent
            .session_capabilities
            .and_then(parse_object)
            .unwrap_or_default();
        let prompt: Prompt<'_> = agent
            .prompt_capabilities
            .and_then(parse_object)
            .unwrap_or_default();
        let mcp: Mcp<'_> = agent
            .mcp_capabilities
            .and_then(parse_object)
            .unwrap_or_default();
        let auth: Auth<'_> = agent.auth.and_then(parse_object).unwrap_or_default();
        Capabilities {
            load: is_true(agent.load_session),
            list: can(session.list),
            resume: can(session.resume),
            close: can(session.close),
            logout: can(auth.logout),
            embedded: is_true(prompt.embedded_context),
            http: is_true(mcp.http),
            sse: is_true(mcp.sse),
            logins: self.auth_methods.map(auth::logins).unwrap_or_default(),
        }
    }
}

/// The id in the result of `session/new`, if it has a usable one.
pub(super) fn session_id(result: &RawValue) -> Option<UntrustedText> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Opened<'a> {
        #[serde(borrow)]
        session_id: Option<&'a RawValue>,
    }
    parse_id(parse_object::<Opened<'_>>(result)?.session_id)
}

/// The result of `session/list`: whether the session is on this page, and the next page's cursor.
pub(super) fn find_in_session_list(
    result: &RawValue,
    wanted: &UntrustedText,
) -> Option<(bool, Option<String>)> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Page<'a> {
        #[serde(borrow)]
        sessions: BoundedList<'a, { limits::SESSIONS_PER_PAGE }>,
        next_cursor: Option<String>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Session<'a> {
        #[serde(borrow)]
        session_id: JsonString<'a>,
    }
    let page: Page<'_> = parse_object(result)?;
    let is_wanted = |item: &&RawValue| {
        parse_object::<Session<'_>>(item).is_some_and(|s| s.session_id.0 == wanted.raw())
    };
    let found = page.sessions.items.iter().any(is_wanted);
    Some((found, page.next_cursor))
}

/// The result of `session/prompt`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PromptResult<'a> {
    #[serde(borrow)]
    stop_reason: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

impl PromptResult<'_> {
    pub(super) fn stop_reason(&self) -> Option<UntrustedText> {
        parse_string(self.stop_reason)
    }

    /// The turn's tokens, where the agent counts them: in the result, or beside it as one agent
    /// does (`_meta.quota.token_count`).
    pub(super) fn usage(&self) -> Usage {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Tokens {
            #[serde(alias = "inputTokens")]
            input_tokens: Count,
            #[serde(alias = "outputTokens")]
            output_tokens: Count,
        }
        #[derive(Deserialize)]
        struct Meta<'a> {
            #[serde(borrow)]
            quota: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        struct Quota<'a> {
            #[serde(borrow)]
            token_count: Option<&'a RawValue>,
        }
        let beside = || {
            let meta: Meta<'_> = parse_object(self.meta?)?;
            parse_object::<Quota<'_>>(meta.quota?)?.token_count
        };
        let tokens = self.usage.or_else(beside);
        let tokens: Tokens = tokens.and_then(parse_object).unwrap_or_default();
        Usage {
            input: tokens.input_tokens.0,
            output: tokens.output_tokens.0,
        }
    }
}

/// The turn's outcome for the agent's stop reason.
pub(super) fn outcome(stop_reason: &str) -> TurnOutcome {
    match stop_reason {
        "cancelled" => TurnOutcome::Cancelled,
        "max_tokens" | "max_turn_requests" => TurnOutcome::Limited,
        "refusal" => TurnOutcome::Refused,
        _ => TurnOutcome::Completed,
    }
}

/// The parameters of `session/update`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct UpdateParams<'a> {
    #[serde(borrow)]
    pub(super) session_id: Option<JsonString<'a>>,
    #[serde(borrow)]
    pub(super) update: &'a RawValue,
}

/// The members of every update, and those of the most frequent ones.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Update<'a> {
    #[serde(borrow)]
    pub(super) session_update: JsonString<'a>,
    #[serde(borrow)]
    pub(super) content: Option<&'a RawValue>,
}

/// The text of a content block; `None` for another kind of block.
pub(super) fn block_text(block: &RawValue) -> Option<String> {
    #[derive(Deserialize)]
    struct Block<'a> {
        #[serde(rename = "type", borrow)]
        kind: JsonString<'a>,
        text: Option<String>,
    }
    let block: Block<'_> = parse_object(block)?;
    (block.kind.0 == "text").then_some(block.text)?
}

/// The steps of a `plan` update, up to a bound.
pub(super) fn plan(update: &RawValue) -> Option<Vec<PlanEntry>> {
    #[derive(Deserialize)]
    struct Plan<'a> {
        #[serde(borrow)]
        entries: BoundedList<'a, { limits::PLAN_ENTRIES }>,
    }
    #[derive(Deserialize)]
    struct Entry<'a> {
        content: String,
        #[serde(borrow)]
        priority: Option<&'a RawValue>,
        #[serde(borrow)]
        status: Option<&'a RawValue>,
    }
    let entry = |item: &RawValue| {
        let entry: Entry<'_> = parse_object(item)?;
        Some(PlanEntry {
            content: entry.content.into(),
            priority: parse_string(entry.priority),
            status: parse_string(entry.status),
        })
    };
    let plan: Plan<'_> = parse_object(update)?;
    Some(plan.entries.items.into_iter().filter_map(entry).collect())
}

/// A `usage_update`: used, size, cost.
pub(super) fn context_used(update: &RawValue) -> Option<(u64, u64, Option<Cost>)> {
    #[derive(Deserialize)]
    struct Fill<'a> {
        used: Count,
        size: Count,
        #[serde(borrow)]
        cost: Option<&'a RawValue>,
    }
    #[derive(Deserialize)]
    struct Amount {
        amount: f64,
        currency: String,
    }
    let fill: Fill<'_> = parse_object(update)?;
    let cost = fill.cost.and_then(parse_object::<Amount>).map(|cost| Cost {
        amount: cost.amount,
        currency: cost.currency.into(),
    });
    Some((fill.used.0, fill.size.0, cost))
}

/// The mode of a `current_mode_update`: `currentModeId`, or `modeId`, as the prose of the
/// specification has it.
pub(super) fn current_mode(update: &RawValue) -> Option<UntrustedText> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Mode<'a> {
        #[serde(borrow)]
        current_mode_id: Option<&'a RawValue>,
        #[serde(borrow)]
        mode_id: Option<&'a RawValue>,
    }
    let mode: Mode<'_> = parse_object(update)?;
    let read = |raw: Option<&RawValue>| raw.map(|raw| parse_string(Some(raw)));
    match (read(mode.current_mode_id), read(mode.mode_id)) {
        (Some(one), Some(other)) if one == other => one,
        // Two values that differ: it is unknown which one the agent means.
        (Some(_), Some(_)) => None,
        (one, other) => one.or(other).flatten(),
    }
}

/// The parameters of `session/request_permission`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PermissionParams<'a> {
    #[serde(borrow)]
    pub(super) session_id: Option<JsonString<'a>>,
    #[serde(borrow)]
    pub(super) tool_call: &'a RawValue,
    #[serde(borrow)]
    options: BoundedList<'a, { limits::PERMISSION_OPTIONS }>,
}

/// The options that an answer may choose: never one that also answers later requests.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct PermissionOptions {
    pub(super) allow: Option<String>,
    pub(super) reject: Option<String>,
    /// What the request is about, for a message about its denial.
    pub(super) about: UntrustedText,
}

impl PermissionParams<'_> {
    /// Chooses by kind (`allow_once`, `reject_once`), and among options without a kind by the ids
    /// `allow` and `deny`. An id that also has another kind is not a choice.
    pub(super) fn options(&self) -> PermissionOptions {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Choice<'a> {
            option_id: String,
            #[serde(borrow)]
            kind: Option<&'a RawValue>,
        }
        let choices = self.options.items.iter().filter_map(|item| {
            let choice: Choice<'_> = parse_object(item)?;
            if choice.option_id.len() > limits::FOREIGN_ID_BYTES {
                return None;
            }
            let kind = match choice.kind {
                // A kind that is not a string is unknown.
                Some(raw) => parse::<String>(raw).unwrap_or_default(),
                None if choice.option_id == "allow" => "allow_once".to_owned(),
                None if choice.option_id == "deny" => "reject_once".to_owned(),
                None => String::new(),
            };
            Some((kind, choice.option_id))
        });
        let choices: Vec<_> = choices.collect();
        let first = |wanted: &str| {
            let (_, id) = choices.iter().find(|(kind, _)| kind == wanted)?;
            let other = choices
                .iter()
                .any(|(kind, same)| same == id && kind != wanted);
            (!other).then(|| id.clone())
        };
        PermissionOptions {
            allow: first("allow_once"),
            reject: first("reject_once"),
            about: UntrustedText::default(),
        }
    }
}

/// The parameters of `$/cancel_request`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CancelParams<'a> {
    #[serde(borrow)]
    pub(super) request_id: &'a RawValue,
}
