//! Settings of an agent that speaks ACP: its login, mode, model and options, its tool servers, and
//! the form of the answers it gets.
//!
//! Must not know messages, or pools' other keys. Which modes skip permission requests is data
//! (`presets/modes.toml`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde::Deserialize;
use toml::de::DeValue;

use super::environment::{self, is_likely_secret};
use super::error::quote;
use super::table::{Diagnostics, Entry, Place, Section, keywords, one_of};
use super::types::DialectName;
use marshal_model::limits;
use marshal_model::{SettingValue, string_enum};

string_enum!(
    /// The form of an answer to a permission request.
    PermissionReply {
        /// The form of the specification: `{"outcome":{"outcome":"selected","optionId":…}}`.
        Acp = "acp",
        /// An older form that some agents still expect:
        /// `{"outcome":{"kind":"allowed","optionId":…}}`.
        Scarf = "scarf",
    }
);

string_enum!(
    /// How an agent gets the reason of a denial, where its protocol has no field for it.
    DenialFeedback {
        /// In front of the session's next prompt.
        NextPrompt = "next_prompt",
        /// The agent does not get the reason.
        Never = "never",
    }
);

string_enum!(
    /// How an agent reaches a tool server.
    ServerKind {
        /// The agent starts it, inside its own sandbox.
        Stdio = "stdio",
        /// By streamable HTTP.
        Http = "http",
        /// By HTTP with server-sent events.
        Sse = "sse",
    }
);

keywords!(PermissionReply, DenialFeedback, ServerKind);

/// Settings of an agent that speaks ACP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcpSettings {
    /// The id of the login method that is used before a session is opened; `None` for no login.
    pub auth: Option<String>,
    /// Whether the agent is logged out at a graceful stop.
    pub logout: bool,
    /// The mode that every session is set to.
    pub mode: Option<String>,
    /// The model that every session is set to.
    pub model: Option<String>,
    /// Further options that every session is set to, by their ids.
    pub options: BTreeMap<String, OptionValue>,
    /// Whether the configuration accepts a mode that skips permission requests.
    pub mode_skips_requests: bool,
    /// The modes that skip permission requests.
    pub auto_approve_modes: AutoApproveModes,
    /// Tool servers (MCP) that the agent gets with every session.
    pub mcp_servers: Vec<McpServer>,
    /// The form of answers to permission requests.
    pub permission_reply: PermissionReply,
    /// How it gets the reason of a denial.
    pub report_denials: DenialFeedback,
}

impl Default for AcpSettings {
    fn default() -> Self {
        Self {
            auth: None,
            logout: false,
            mode: None,
            model: None,
            options: BTreeMap::new(),
            mode_skips_requests: false,
            auto_approve_modes: AutoApproveModes::for_agent("custom"),
            mcp_servers: Vec::new(),
            permission_reply: PermissionReply::Acp,
            report_denials: DenialFeedback::NextPrompt,
        }
    }
}

/// The value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionValue {
    /// One of those that the agent offers.
    Choice(String),
    /// On or off.
    Switch(bool),
}

impl From<&SettingValue> for OptionValue {
    fn from(value: &SettingValue) -> Self {
        match value {
            SettingValue::Choice(value) => Self::Choice(value.clone()),
            SettingValue::Switch(on) => Self::Switch(*on),
        }
    }
}

/// A tool server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct McpServer {
    /// Its name, as the agent shows it.
    pub name: String,
    /// How it is reached.
    pub transport: McpTransport,
}

/// How a tool server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum McpTransport {
    /// The agent starts this program, inside its own sandbox.
    Program {
        /// The program, as the agent sees it.
        command: String,
        /// Its arguments.
        args: Vec<String>,
        /// Variables added to its environment; never a secret.
        env: BTreeMap<String, String>,
    },
    /// Through a route of the pool.
    Route {
        /// [`ServerKind::Http`] or [`ServerKind::Sse`].
        kind: ServerKind,
        /// The route's name.
        route: String,
        /// The path on it, from `/`.
        path: String,
    },
}

/// The names of modes that skip permission requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AutoApproveModes(Arc<Names>);

#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Names {
    parts: BTreeSet<String>,
    whole: BTreeSet<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Modes {
    parts: Vec<String>,
    names: Vec<String>,
    agent: BTreeMap<String, Vec<String>>,
}

const MODES: &str = include_str!("presets/modes.toml");

impl AutoApproveModes {
    /// The modes of the preset's agent; for any other agent the modes whose names imply it.
    #[must_use]
    pub fn for_agent(agent: &str) -> Self {
        // An unreadable list would let every mode pass, so a test reads it.
        static KNOWN: LazyLock<(Modes, Arc<Names>)> = LazyLock::new(|| {
            let modes: Modes = toml::from_str(MODES).unwrap_or_default();
            let names = Names {
                parts: modes
                    .parts
                    .iter()
                    .map(|part| normalize_name(part))
                    .collect(),
                whole: modes
                    .names
                    .iter()
                    .map(|name| normalize_name(name))
                    .collect(),
            };
            (modes, Arc::new(names))
        });
        let (modes, known) = &*KNOWN;
        let Some(own) = modes.agent.get(agent) else {
            return Self(Arc::clone(known));
        };
        let mut names = Names::clone(known);
        names
            .whole
            .extend(own.iter().map(|name| normalize_name(name)));
        Self(Arc::new(names))
    }

    /// Whether a mode of this id or name skips permission requests.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        let (name, names) = (normalize_name(name), &self.0);
        names.whole.contains(&name) || names.parts.iter().any(|part| name.contains(part.as_str()))
    }
}

/// A normalised name: lower case, letters and digits only.
fn normalize_name(name: &str) -> String {
    let letters = name.chars().filter(|c| c.is_alphanumeric());
    letters.flat_map(char::to_lowercase).collect()
}

/// The JSON-schema pattern of ids that agents give: any text that is one line.
const ID_PATTERN: &str = "^[^\\u0000-\\u001f]{1,256}$";
/// The JSON-schema pattern of a tool server's name.
const NAME_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$";
/// The JSON-schema pattern of a path on a route.
const PATH_PATTERN: &str = "^/[A-Za-z0-9._~/-]{0,255}$";

/// The keys, with the places that a check of the whole pool may report.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) acp: AcpSettings,
    /// Keys that do something only in ACP.
    acp_keys: Vec<Place>,
    /// The key that has an effect only where the modes that skip permission requests are known.
    skips_place: Option<Place>,
    /// The tool servers.
    pub(super) servers: Option<Place>,
    /// The tool servers at a URL, which need a route.
    route_refs: Vec<(Place, String)>,
    logout: Option<Place>,
}

/// Reads the keys of a pool.
pub(super) fn read(pool: &Section<'_>, is_discovered: bool) -> Draft {
    let usual = AcpSettings::default();
    let mut own = Vec::new();
    let auth = pool.get("auth").and_then(|item| read_id(&item));
    own.extend(auth.iter().map(|found| found.1.clone()));
    let logout = pool
        .boolean("logout")
        .filter(|found| found.value)
        .map(|found| found.place);
    own.extend(logout.clone());
    let options = read_options(pool, &mut own);
    let skips = pool
        .boolean("mode_skips_requests")
        .filter(|skips| skips.value);
    if is_discovered && let Some(skips) = &skips {
        let message =
            "a discovered supervisor.toml may not use a mode that skips permission requests";
        let help = Some(
            "`marshal trust` says that you trust the file as it is; or name it with --config"
                .to_owned(),
        );
        pool.diagnostics.report(&skips.place, message, help);
    }
    let reply = pool
        .keyword("permission_reply", &[])
        .filter(|found| found.value != PermissionReply::Acp);
    own.extend(reply.iter().map(|found| found.place.clone()));
    let mut routed = Vec::new();
    let mcp_servers = read_mcp_servers(pool, &mut routed);
    let list = pool
        .get("mcp_servers")
        .map(|item| item.place)
        .filter(|_| !mcp_servers.is_empty());
    let report_denials = pool.keyword("report_denials", &[]);
    Draft {
        acp: AcpSettings {
            auth: auth.map(|(id, _)| id),
            logout: logout.is_some(),
            options,
            mode_skips_requests: skips.is_some(),
            mcp_servers,
            permission_reply: reply.map_or(usual.permission_reply, |found| found.value),
            report_denials: report_denials.map_or(usual.report_denials, |found| found.value),
            ..usual
        },
        acp_keys: own,
        skips_place: skips.map(|skips| skips.place),
        servers: list,
        route_refs: routed,
        logout,
    }
}

impl Draft {
    /// What these keys must agree on with the rest of the pool. `routes` are those of the pool;
    /// `None`: its network has none.
    pub(super) fn check_consistency(
        &self,
        diagnostics: &Diagnostics,
        speaks: DialectName,
        routes: Option<&[String]>,
        goodbye: Duration,
    ) {
        let own = self.acp_keys.iter().filter(|_| speaks != DialectName::Acp);
        let skips = self
            .skips_place
            .iter()
            .filter(|_| !speaks.has_known_modes());
        let servers = self
            .servers
            .iter()
            .filter(|_| !speaks.accepts_mcp_servers());
        let own = own.map(|place| (place, "this is for agents that speak acp"));
        let skips = skips.map(|place| (place, "this is for agents that speak acp or claude"));
        let servers =
            servers.map(|place| (place, "this is for agents that speak acp, claude or codex"));
        for (place, message) in own.chain(skips).chain(servers) {
            diagnostics.report(place, message, Some("set dialect = \"acp\"".to_owned()));
        }
        if let Some(place) = &self.logout
            && self.acp.auth.is_none()
        {
            let message = "logout = true needs auth: without it, the logout would end a login that marshal did not make";
            diagnostics.report(place, message, None);
        }
        if let Some(place) = &self.logout
            && goodbye.is_zero()
        {
            let message = "logout = true needs a goodbye: stop.goodbye is 0s, so the supervisor would not wait for the logout";
            let help = "for example: stop = { goodbye = \"2s\" }";
            diagnostics.report(place, message, Some(help.to_owned()));
        }
        for (place, route) in &self.route_refs {
            let (message, help) = match routes {
                Some(routes) if routes.contains(route) => continue,
                Some(routes) => {
                    let names: Vec<_> = routes.iter().map(String::as_str).collect();
                    let message = format!(
                        "the pool has no route {}: expected {}",
                        quote(route),
                        one_of(&names)
                    );
                    (message, format!("add {} to routes", quote(route)))
                }
                None => {
                    let message = "a tool server at a URL needs a route, and the pool's network has no routes".to_owned();
                    let help = "start it as a program, { name = …, command = … }, or set network = \"routes\"";
                    (message, help.to_owned())
                }
            };
            diagnostics.report(place, message, Some(help));
        }
    }
}

/// A mode that skips permission requests needs `mode_skips_requests = true`.
pub(super) fn check_mode(
    diagnostics: &Diagnostics,
    mode: Option<(&str, &Place)>,
    acp: &AcpSettings,
) {
    if let Some((mode, place)) = mode
        && !acp.mode_skips_requests
        && acp.auto_approve_modes.contains(mode)
    {
        let message = format!("the mode {} skips permission requests", quote(mode));
        let help = "choose a mode that asks, or set mode_skips_requests = true to accept this";
        diagnostics.report(place, message, Some(help.to_owned()));
    }
}

/// An id that an agent gave, and its place.
fn read_id(item: &Entry<'_>) -> Option<(String, Place)> {
    let found = item.text_like(ID_PATTERN)?;
    let fits = (1..=256).contains(&found.value.chars().count())
        && !found.value.contains(|c: char| c < ' ');
    if fits {
        return Some((found.value, found.place));
    }
    let message = format!(
        "expected an id of the agent, one line of at most 256 characters, found {}",
        quote(&found.value)
    );
    item.report(message, None);
    None
}

fn read_options(pool: &Section<'_>, own: &mut Vec<Place>) -> BTreeMap<String, OptionValue> {
    let mut options = BTreeMap::new();
    for (name, item) in pool.section("options").named_entries(ID_PATTERN) {
        if name.is_empty() || name.chars().count() > 256 || name.contains(|c: char| c < ' ') {
            item.report(
                "the id of an option is one line of at most 256 characters",
                None,
            );
        }
        own.push(item.place.clone());
        let value = if matches!(item.value(), DeValue::Boolean(_)) {
            item.boolean_value().map(OptionValue::Switch)
        } else {
            item.text_or_boolean().map(OptionValue::Choice)
        };
        if let Some(value) = value {
            options.insert(name, value);
        }
    }
    options
}

fn read_mcp_servers(pool: &Section<'_>, routed: &mut Vec<(Place, String)>) -> Vec<McpServer> {
    let Some(list) = pool.get("mcp_servers") else {
        return Vec::new();
    };
    let items = list
        .elements("an array of tool servers")
        .unwrap_or_default();
    if items.len() > limits::MCP_SERVERS {
        let most = limits::MCP_SERVERS;
        list.report(format!("a pool has at most {most} tool servers"), None);
    }
    let mut servers: Vec<McpServer> = Vec::new();
    for item in items {
        let Some(server) = read_mcp_server(&item, routed) else {
            continue;
        };
        if servers.iter().any(|other| other.name == server.name) {
            item.report(format!("{} is listed twice", quote(&server.name)), None);
        }
        servers.push(server);
    }
    servers
}

fn read_mcp_server(item: &Entry<'_>, routed: &mut Vec<(Place, String)>) -> Option<McpServer> {
    let section = item.section()?;
    let name = section.get("name").and_then(|name| {
        let found = name.text_like(NAME_PATTERN)?;
        let fits = marshal_model::ids::is_safe_token(&found.value) && found.value.len() <= 64;
        if !fits {
            let shown = quote(&found.value);
            let expected = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}";
            name.report(format!("expected {expected}, found {shown}"), None);
        }
        Some(found.value)
    });
    let kind = section.keyword("type", &[]).map_or(
        ServerKind::Stdio,
        |found: super::table::Located<ServerKind>| found.value,
    );
    let command = section.get("command").and_then(|item| item.text());
    let args = section.texts("args");
    let env = read_env(&section);
    let route = section.get("route").and_then(|item| item.text());
    let path = section.get("path").and_then(|path| {
        let found = path.text_like(PATH_PATTERN)?;
        let fits = found.value.starts_with('/')
            && found.value.len() <= 256
            && !found.value.split('/').any(|part| part == "..")
            && found
                .value
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._~/-".contains(&b));
        if !fits {
            let shown = quote(&found.value);
            path.report(
                format!("expected a path such as \"/mcp\", found {shown}"),
                None,
            );
        }
        Some(found.value)
    });
    section.reject_unknown_keys(&["url", "headers"], &[]);
    if name.is_none() {
        item.report("a tool server needs a name", None);
    }
    let reach = if kind == ServerKind::Stdio {
        if let Some(route) = &route {
            let message = "a tool server that is a program takes no route";
            let help = Some("set type = \"http\" or \"sse\"".to_owned());
            section.diagnostics.report(&route.place, message, help);
        }
        let command = command.or_else(|| {
            item.report(
                "a tool server needs a command",
                Some("for example: { name = \"x\", command = \"/usr/bin/x\" }".to_owned()),
            );
            None
        })?;
        let args = args.map_or_else(Vec::new, |args| args.value);
        McpTransport::Program {
            command: command.value,
            args: args.into_iter().map(|word| word.value).collect(),
            env,
        }
    } else {
        if let Some(command) = &command {
            let message = "a tool server at a URL has a route and a path, not a command";
            section.diagnostics.report(&command.place, message, None);
        }
        let route = route.or_else(|| {
            item.report(
                "a tool server at a URL needs a route of the pool",
                Some("for example: { name = \"x\", type = \"http\", route = \"x\", path = \"/mcp\" }".to_owned()),
            );
            None
        })?;
        routed.push((route.place, route.value.clone()));
        McpTransport::Route {
            kind,
            route: route.value,
            path: path.unwrap_or_else(|| "/".to_owned()),
        }
    };
    Some(McpServer {
        name: name?,
        transport: reach,
    })
}

/// The environment of a tool server: never a secret, because the agent gets it in plain text.
fn read_env(section: &Section<'_>) -> BTreeMap<String, String> {
    let mut env = BTreeMap::new();
    for (name, item) in section
        .section("env")
        .named_entries(environment::NAME_PATTERN)
    {
        if !environment::is_variable_name(&name) {
            let shown = quote(&name);
            item.report(
                format!("expected the name of a variable, found {shown}"),
                None,
            );
        }
        let Some(value) = item.text() else { continue };
        let is_secret = ["env:", "file:"]
            .iter()
            .any(|entry| value.value.starts_with(entry));
        if is_secret || is_likely_secret(&name) {
            let message = format!(
                "{} would give the agent a secret: the environment of a tool server may not contain one",
                quote(&name)
            );
            let help = "use a route where a key is needed: the model proxy adds the key outside the sandbox";
            item.report(message, Some(help.to_owned()));
        }
        env.insert(name, value.value);
    }
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_that_skip_questions_are_known_in_every_spelling() {
        let any = AutoApproveModes::for_agent("custom");
        for skips in [
            "dont_ask",
            "dontAsk",
            "Don't Ask",
            "bypassPermissions",
            "yolo",
            "YOLO mode",
            "full-access",
            "agent-full-access",
            "danger_full_access",
            "accept-edits",
            "accept_edits",
            "acceptEdits",
            "autoEdit",
            "auto",
            "agent",
            "never",
            "auto-approve",
        ] {
            assert!(any.contains(skips), "{skips}");
        }
        for asking in [
            "default",
            "ask",
            "plan",
            "read-only",
            "build",
            "code",
            "architect",
            "",
        ] {
            assert!(!any.contains(asking), "{asking}");
        }
    }
}
