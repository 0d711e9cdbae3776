//! `[hook.NAME]`: notifications about events, to a URL or a command.
//!
//! Owns that only a named file has hooks. Must not know how a message is delivered.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::environment::{self, NAME_PATTERN as VARIABLE_PATTERN, SECRET_PATTERN};
use super::error::{one_of, quote};
use super::paths;
use super::pool::PoolDraft;
use super::route::{CertificateAuthorities, is_loopback, split_port};
use super::sandbox::{self, NAME_PATTERN};
use super::table::{Diagnostics, Entry, Located, Place, Section};
use super::types::Secret;
use marshal_model::limits;
use marshal_model::{NotificationKind, PoolName};

/// One hook.
#[derive(Debug, Clone)]
pub struct Hook {
    /// The hook's name.
    pub name: String,
    /// The URL or the command that gets the messages.
    pub target: HookTarget,
    /// The events that it gets; never empty.
    pub events: Vec<NotificationKind>,
    /// The pools whose events it gets; empty: all pools.
    pub pools: Vec<PoolName>,
}

/// The receiver of a hook's messages.
#[derive(Debug, Clone)]
pub enum HookTarget {
    /// A URL that messages are posted to.
    Address(HookAddress),
    /// A command that gets them on its stdin.
    Command(HookCommand),
}

/// A URL and how messages are posted to it.
#[derive(Debug, Clone)]
pub struct HookAddress {
    /// The URL.
    pub url: HookUrl,
    /// The key that signs messages.
    pub secret: Secret,
    /// Certificate authorities instead of the built-in ones.
    pub ca: Option<CertificateAuthorities>,
}

/// A command that gets messages on its stdin.
#[derive(Debug, Clone)]
pub struct HookCommand {
    /// Program, an absolute path, and its arguments.
    pub argv: Vec<String>,
    /// Its whole environment, except its secrets.
    pub env: BTreeMap<String, String>,
    /// Variables whose values are secrets, which are never in the file.
    pub secrets: BTreeMap<String, Secret>,
    /// How long it may run before it is killed.
    pub timeout: Duration,
}

/// A URL: `http` or `https`, a host, an optional port, a path and a query.
#[derive(Clone, PartialEq, Eq)]
pub struct HookUrl(String);

impl HookUrl {
    /// Reads one.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let rest = text
            .strip_prefix("https://")
            .or_else(|| text.strip_prefix("http://"))
            .ok_or("an address begins with https:// or http://")?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let port = split_port(authority).map(|(_, port)| port);
        let port =
            port.ok_or("expected a host name or address, with a port or without, and no user")?;
        if port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port == 0)) {
            return Err("no server listens on port 0");
        }
        let is_plain = |b: u8| {
            matches!(b, b'!'..=b'~')
                && !matches!(
                    b,
                    b'#' | b'"' | b'<' | b'>' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}'
                )
        };
        if path.starts_with('?') || !path.bytes().all(is_plain) {
            return Err(
                "expected a path, and a query if there is one, in printable ASCII, without \"#\"",
            );
        }
        Ok(Self(text.to_owned()))
    }

    /// The URL as the file has it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether others on the network path could read the messages: plain HTTP to another host.
    #[must_use]
    pub fn is_unencrypted(&self) -> bool {
        let Some(rest) = self.0.strip_prefix("http://") else {
            return false;
        };
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        !split_port(authority).is_some_and(|(host, _)| is_loopback(host))
    }
}

/// Redacted, because a part of some URLs is a secret.
impl fmt::Debug for HookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookUrl")
    }
}

/// The schema's pattern of a URL; a pattern cannot express all checks.
const URL_PATTERN: &str = "^https?://[^/?#@]+(/[^#]*)?$";
/// The JSON-schema pattern of a pool's name.
const POOL_PATTERN: &str = "^[a-z0-9][a-z0-9-]{0,31}$";
/// The schema's pattern of an event.
const EVENT_PATTERN: &str = "^(approval|parked|run_ended|run_paused|budget_spent)$";

/// The default of `timeout` of a command.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the table `hook`. `is_discovered`: the file was discovered, not named.
pub(super) fn read_all(
    section: &Section<'_>,
    is_discovered: bool,
    dir: &Path,
    drafts: &[PoolDraft],
) -> Vec<Hook> {
    let named = section.named_entries(NAME_PATTERN);
    if let Some((_, item)) = named.first().filter(|_| is_discovered) {
        let message = "a discovered supervisor.toml may not use hooks";
        let help =
            "`marshal trust` says that you trust the file as it is; or name it with --config";
        section
            .diagnostics
            .report(&item.place, message, Some(help.to_owned()));
    }
    if let Some((_, item)) = named.get(limits::HOOKS) {
        let message = format!("there are more than {} hooks", limits::HOOKS);
        section.diagnostics.report(&item.place, message, None);
    }
    let read = |(name, item): &(String, Entry<'_>)| read(name, item, dir, drafts);
    named.iter().filter_map(read).collect()
}

fn read(name: &str, item: &Entry<'_>, dir: &Path, drafts: &[PoolDraft]) -> Option<Hook> {
    let section = item.section()?;
    let diagnostics = section.diagnostics;
    if !sandbox::is_valid_name(name) {
        let message = format!(
            "the hook name {} must match {}",
            quote(name),
            sandbox::NAME_FORM
        );
        diagnostics.report(&item.place, message, None);
    }
    let has = |key: &'static str| section.get(key).is_some();
    let (has_url, has_command) = (has("url"), has("command"));
    if has_url == has_command {
        let message = if has_url {
            "a hook has a url or a command, not both"
        } else {
            "the hook needs a url or a command"
        };
        let help = "for example: url = \"https://hooks.example.com/marshal\" with secret = \"env:HOOK_SECRET\", or command = [\"/usr/local/bin/tell\"]";
        diagnostics.report(&section.place, message, Some(help.to_owned()));
    }
    let address = read_address(&section, dir, has_url);
    let command = read_command(&section, dir);
    for (key, is_of_url) in [
        ("secret", true),
        ("ca", true),
        ("env", false),
        ("timeout", false),
    ] {
        let is_wrong = has_url != has_command && has_url != is_of_url;
        if let Some(item) = section.get(key).filter(|_| is_wrong) {
            let message = match key {
                _ if is_of_url => "the key is for a hook with a url",
                "timeout" => {
                    "the key is for a hook with a command; a message to a url has a fixed timeout of 5 seconds"
                }
                _ => "the key is for a hook with a command",
            };
            item.report(message, None);
        }
    }
    let events = read_events(&section);
    let pools = read_pools(&section, drafts);
    section.reject_unknown_keys(
        &[],
        &[
            ("address", "url"),
            ("argv", "command"),
            ("pool", "pools"),
            ("event", "events"),
            ("on", "events"),
        ],
    );
    let to = address
        .map(HookTarget::Address)
        .or(command.map(HookTarget::Command));
    Some(Hook {
        name: name.to_owned(),
        target: to?,
        events,
        pools,
    })
}

/// Reads the URL, if the hook has one.
fn read_address(section: &Section<'_>, dir: &Path, has_url: bool) -> Option<HookAddress> {
    let diagnostics = section.diagnostics;
    let url = section
        .get("url")
        .and_then(|item| item.text_like(URL_PATTERN));
    let url = url.and_then(|found| match HookUrl::parse(&found.value) {
        Ok(url) => Some(url),
        Err(fault) => {
            diagnostics.report(&found.place, fault, None);
            None
        }
    });
    let secret = section.get("secret");
    if secret.is_none() && has_url {
        let message =
            "the hook needs a secret: the receiver uses it to verify that marshal sent a message";
        let help = "for example: secret = \"env:HOOK_SECRET\", or \"file:hook.secret\"";
        diagnostics.report(&section.place, message, Some(help.to_owned()));
    }
    let secret = secret.and_then(|item| item.text_like(SECRET_PATTERN));
    let secret = secret.and_then(|value| {
        let source = environment::require_secret_source(section, &value, dir);
        if source.is_none() {
            let message =
                "expected \"env:NAME\", \"file:PATH\" or \"credential:NAME\": the file never contains the secret itself";
            diagnostics.report(&value.place, message, None);
        }
        source.map(Secret::new)
    });
    let ca = section
        .get("ca")
        .and_then(|item| item.text_like(paths::PATTERN))
        .map(|found| {
            if let Some(fault) = paths::path_error(&found.value) {
                diagnostics.report(&found.place, fault, None);
            }
            CertificateAuthorities {
                path: paths::absolute(dir, &found.value),
                pem: None,
            }
        });
    Some(HookAddress {
        url: url?,
        secret: secret?,
        ca,
    })
}

/// Reads the command, if the hook has one.
fn read_command(section: &Section<'_>, dir: &Path) -> Option<HookCommand> {
    let diagnostics = section.diagnostics;
    let argv = section.texts("command");
    if let Some(argv) = &argv {
        check_argv(diagnostics, argv);
    }
    let longest = Duration::from_millis(100)..=limits::HOOK_COMMAND_TIMEOUT;
    let timeout = section.duration("timeout", longest);
    let mut command = HookCommand {
        argv: Vec::new(),
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        timeout: timeout.map_or(TIMEOUT, |found| found.value),
    };
    for (name, item) in section.section("env").named_entries(VARIABLE_PATTERN) {
        if !environment::is_variable_name(&name) || name.starts_with("MARSHAL_") {
            let message = format!(
                "expected the name of a variable, [A-Za-z_][A-Za-z0-9_]{{0,127}}, that does not begin with MARSHAL_, found {}",
                quote(&name)
            );
            diagnostics.report(&item.place, message, None);
        }
        let Some(value) = item.text() else { continue };
        match environment::require_secret_source(section, &value, dir) {
            Some(source) => {
                command.secrets.insert(name, Secret::new(source));
            }
            None => {
                command.env.insert(name, value.value);
            }
        }
    }
    let argv = argv?.value.into_iter();
    command.argv = argv.map(|word| word.value).collect();
    Some(command)
}

fn check_argv(diagnostics: &Diagnostics, argv: &Located<Vec<Located<String>>>) {
    let program = argv.value.first().map_or("", |word| word.value.as_str());
    let path = Path::new(program);
    if !path.is_absolute() || paths::path_error(program).is_some() {
        let message = format!(
            "expected a program by its absolute path, found {}: a hook has no PATH",
            quote(program)
        );
        let help = "for example: command = [\"/usr/local/bin/tell\", \"--quiet\"]";
        diagnostics.report(&argv.place, message, Some(help.to_owned()));
    }
    if argv.value.len() > limits::HOOK_ARGUMENTS {
        let message = format!("a command has at most {} words", limits::HOOK_ARGUMENTS);
        diagnostics.report(&argv.place, message, None);
    }
}

fn read_events(section: &Section<'_>) -> Vec<NotificationKind> {
    let Some(found) = section.texts_like("events", EVENT_PATTERN) else {
        return NotificationKind::ALL.to_vec();
    };
    reject_empty_list(section, found.value.is_empty(), &found.place);
    let mut events: Vec<NotificationKind> = Vec::new();
    for word in found.value {
        match NotificationKind::parse(&word.value) {
            Some(event) if events.contains(&event) => {}
            Some(event) => events.push(event),
            None => {
                let words: Vec<_> = NotificationKind::ALL
                    .iter()
                    .map(|kind| kind.as_str())
                    .collect();
                let message = format!("expected {}, found {}", one_of(&words), quote(&word.value));
                section.diagnostics.report(&word.place, message, None);
            }
        }
    }
    events.sort();
    events
}

fn reject_empty_list(section: &Section<'_>, is_empty: bool, place: &Place) {
    if is_empty {
        let message = "the list is empty: the hook would receive nothing";
        let help = "leave the key out to receive everything".to_owned();
        section.diagnostics.report(place, message, Some(help));
    }
}

fn read_pools(section: &Section<'_>, drafts: &[PoolDraft]) -> Vec<PoolName> {
    let Some(found) = section.texts_like("pools", POOL_PATTERN) else {
        return Vec::new();
    };
    reject_empty_list(section, found.value.is_empty(), &found.place);
    let mut pools = Vec::new();
    for name in found.value {
        let known = drafts.iter().map(|draft| &draft.pool.name);
        match known.into_iter().find(|pool| pool.as_str() == name.value) {
            Some(pool) if !pools.contains(pool) => pools.push(pool.clone()),
            Some(_) => {}
            None => {
                let message = format!("there is no pool {}", quote(&name.value));
                section.diagnostics.report(&name.place, message, None);
            }
        }
    }
    pools
}

/// Notes for the operator.
pub(super) fn collect_notes(hooks: &[Hook]) -> impl Iterator<Item = String> {
    let open = hooks.iter().filter(|hook| match &hook.target {
        HookTarget::Address(to) => to.url.is_unencrypted(),
        HookTarget::Command(_) => false,
    });
    open.map(|hook| {
        format!(
            "hook {}: plain http to another host: anybody on the network path can read its messages",
            hook.name
        )
    })
}

impl Hook {
    /// Its secrets, each with its key.
    pub fn secrets_mut(&mut self) -> Vec<(String, &mut Secret)> {
        let name = &self.name;
        match &mut self.target {
            HookTarget::Address(to) => vec![(format!("hook.{name}.secret"), &mut to.secret)],
            HookTarget::Command(command) => {
                let secrets = command.secrets.iter_mut();
                secrets
                    .map(|(variable, secret)| (format!("hook.{name}.env.{variable}"), secret))
                    .collect()
            }
        }
    }
}
