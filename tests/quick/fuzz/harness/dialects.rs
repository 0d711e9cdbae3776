//! The dialects under test: how each is opened, and which of its messages are prompts and allows.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use marshal_config::{AcpSettings, CodexSettings, DenialFeedback, DialectDefinition};
use marshal_dialect::{OpenParams, acp, claude, codex, custom, loaf, scaiflux, skillpilot};
use marshal_model::ClientCapabilities;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::Target;
use super::conversation::Machine;

/// What a fresh session is called, as in the recorded conversations.
const FRESH: &str = "00000000-0000-7000-8000-000000000000";
const SCAIFLUX: &str = include_str!("../../../../examples/dialects/scaiflux.toml");
const PI: &str = include_str!("../../../../examples/dialects/pi.toml");

/// A dialect before its channel is open.
pub(crate) fn build(target: Target) -> Box<dyn Machine> {
    match target {
        Target::Acp => Box::new(acp::Acp::default()),
        Target::Loaf => Box::new(loaf::Loaf::default()),
        Target::Claude => Box::new(claude::Claude::default()),
        Target::Codex => Box::new(codex::Codex::default()),
        Target::Custom => Box::new(custom::Custom::default()),
        Target::Skillpilot => Box::new(skillpilot::Skillpilot::default()),
        _ => Box::new(scaiflux::Scaiflux::default()),
    }
}

/// Lines of one opening are no longer than this, if its bit says so: a line that is too long must
/// not need megabytes.
pub(crate) const SHORT_LINE: usize = 2048;

pub(crate) const fn has_short_lines(bits: u8) -> bool {
    bits & 32 > 0
}

/// One of the openings of a target: a bit for each thing that a pool may want.
pub(crate) fn opening(target: Target, bits: u8) -> OpenParams {
    let has = |bit: u8| bits & bit > 0;
    let acp = AcpSettings {
        mode: has(2).then(|| "plan".to_owned()),
        model: has(4).then(|| "m".to_owned()),
        auth: (has(2) && has(4)).then(|| "a".to_owned()),
        mode_skips_requests: has(8),
        logout: has(8),
        report_denials: if has(128) {
            AcpSettings::default().report_denials
        } else {
            DenialFeedback::Never
        },
        ..AcpSettings::default()
    };
    let resume = if target == Target::Claude { FRESH } else { "s" };
    OpenParams {
        workspace: "/workspace".to_owned(),
        resume: has(1).then(|| resume.into()),
        acp: Arc::new(acp),
        codex: CodexSettings {
            reports_denials: has(128),
            ..CodexSettings::default()
        },
        control_timeout: has(16).then_some(Duration::from_secs(60)),
        keepalive_interval: has(16).then_some(Duration::from_secs(20)),
        dialect_definition: (target == Target::Custom).then(|| table(has(64))),
        client_capabilities: ClientCapabilities {
            read: has(64),
            write: has(64),
            terminal: has(64),
            elicitation: has(64),
        },
        fresh_id: FRESH.to_owned(),
        ..OpenParams::default()
    }
}

fn table(is_pi: bool) -> Arc<DialectDefinition> {
    let text = if is_pi { PI } else { SCAIFLUX };
    let table = DialectDefinition::parse(text.as_bytes(), Path::new("table.toml"));
    Arc::new(table.expect("an example that can be read"))
}

/// What an agent offered to be chosen, so that a choice can be told from another.
#[derive(Debug, Default)]
pub(crate) struct Offered {
    kinds: BTreeMap<String, BTreeSet<String>>,
    /// A request could not be read here: what it offered is not known.
    unread: bool,
}

impl Offered {
    /// Takes note of a line of an ACP agent.
    pub(crate) fn line(&mut self, line: &[u8]) {
        if !line
            .windows(8)
            .any(|word| word == b"optionId" || word == b"\\u006fpt")
        {
            return;
        }
        let Ok(message) = serde_json::from_slice::<Value>(line) else {
            self.unread = true;
            return;
        };
        for option in message["params"]["options"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let id = option["optionId"].as_str().unwrap_or_default().to_owned();
            let kind = option["kind"].as_str().unwrap_or(&id).to_owned();
            self.kinds.entry(id).or_default().insert(kind);
        }
    }

    /// Whether this choice was offered as one that allows, and never as one that does not.
    fn allows(&self, id: &str) -> bool {
        match self.kinds.get(id) {
            Some(kinds) => !kinds
                .iter()
                .any(|kind| kind.starts_with("reject") || kind == "deny"),
            None => !self.unread,
        }
    }
}

/// A message with an id.
#[derive(Deserialize)]
struct Identified<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
}

/// The request that this message of ours allows.
pub(crate) fn allowed(
    target: Target,
    message: &Value,
    line: &str,
    offered: &Offered,
) -> Option<String> {
    let text = |value: &Value| {
        let text = value.as_str().map(str::to_owned);
        text.unwrap_or_else(|| value.to_string())
    };
    // As it stands there, which is what an agent compares.
    let id = || {
        let message: Result<Identified<'_>, _> = serde_json::from_str(line);
        message.map_or_else(|_| String::new(), |message| message.id.get().to_owned())
    };
    match target {
        Target::Scaiflux | Target::Custom => (message["type"] == "permission_response"
            && message["decision"] != "deny")
            .then(|| text(&message["request_id"])),
        Target::Acp => {
            let outcome = &message["result"]["outcome"];
            let chosen = outcome["optionId"].as_str()?;
            offered.allows(chosen).then(id)
        }
        Target::Claude => {
            let answer = &message["response"]["response"];
            let hook = &answer["hookSpecificOutput"]["permissionDecision"];
            let allows = answer["behavior"] == "allow" || hook == "allow";
            allows.then(|| text(&message["response"]["request_id"]))
        }
        Target::Codex => {
            let result = &message["result"];
            let decides = !result["decision"].is_null()
                && result["decision"]["denied"].is_null()
                && !["decline", "cancel", "abort"]
                    .iter()
                    .any(|no| result["decision"] == *no);
            let grants = result["permissions"]
                .as_object()
                .is_some_and(|all| !all.is_empty());
            let accepts = result["action"] == "accept";
            (decides || grants || accepts).then(id)
        }
        _ => None,
    }
}

/// Whether this message of ours begins a turn.
pub(crate) fn prompts(target: Target, reported: &Value) -> bool {
    match target {
        Target::Scaiflux | Target::Custom => reported["type"] == "prompt",
        Target::Acp => reported["method"] == "session/prompt",
        Target::Loaf => reported["method"] == "session.send",
        Target::Claude => reported["type"] == "user",
        Target::Codex => reported["method"] == "turn/start",
        Target::Skillpilot => reported["path"]
            .as_str()
            .is_some_and(|path| path.starts_with("queue/")),
        _ => false,
    }
}
