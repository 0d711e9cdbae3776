//! `[hook.NAME]`: who is told what happens, by an address or a command.
//!
//! Owns that an address and a command stand in a file that was named. Must not know how anybody is
//! told.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use super::environment::{self, NAME_PATTERN as VARIABLE_PATTERN, SECRET_PATTERN};
use super::error::{one_of, quoted};
use super::paths;
use super::pool::Draft;
use super::route::{Authorities, is_loopback, split_port};
use super::sandbox::{self, NAME_PATTERN};
use super::table::{Found, Item, Ledger, Place, Section};
use super::types::Secret;
use crate::limits;
use crate::model::{PoolName, ToldKind};

/// One hook.
#[derive(Debug, Clone)]
pub struct Hook {
    /// Its name.
    pub name: String,
    /// Who is told.
    pub to: HookTo,
    /// What it hears; never empty.
    pub events: Vec<ToldKind>,
    /// Of which pools; empty: of all.
    pub pools: Vec<PoolName>,
}

/// Who is told.
#[derive(Debug, Clone)]
pub enum HookTo {
    /// An address that messages are posted to.
    Address(HookAddress),
    /// A command that gets them on its stdin.
    Command(HookCommand),
}

/// Where messages are posted.
#[derive(Debug, Clone)]
pub struct HookAddress {
    /// The address.
    pub url: HookUrl,
    /// What messages are signed with.
    pub secret: Secret,
    /// Certificate authorities instead of the built-in ones.
    pub ca: Option<Authorities>,
}

/// What gets messages on its stdin.
#[derive(Debug, Clone)]
pub struct HookCommand {
    /// Program, an absolute path, and its arguments.
    pub argv: Vec<String>,
    /// Its environment, all of it but its secrets.
    pub env: BTreeMap<String, String>,
    /// Variables whose values stand elsewhere.
    pub secrets: BTreeMap<String, Secret>,
    /// How long it may take, until it is killed.
    pub timeout: Duration,
}

/// An address: `http` or `https`, a host, a port if given, a path and a query.
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
            .or_else(|| text.strip_prefix("http://"));
        let rest = rest.ok_or("an address begins with https:// or http://")?;
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

    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether others on the way could read what is sent: plain HTTP to another host.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let Some(rest) = self.0.strip_prefix("http://") else {
            return false;
        };
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        !split_port(authority).is_some_and(|(host, _)| is_loopback(host))
    }
}

/// A part of some addresses is a secret.
impl fmt::Debug for HookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookUrl")
    }
}

/// What the schema says of an address: as near as a pattern comes.
const URL_PATTERN: &str = "^https?://[^/?#@]+(/[^#]*)?$";
/// What the schema says of a pool's name.
const POOL_PATTERN: &str = "^[a-z0-9][a-z0-9-]{0,31}$";
/// What it says of an event.
const EVENT_PATTERN: &str = "^(ask|parked|run_ended|budget_spent)$";

/// How long a command may take where the file does not say.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Reads the table `hook`. `found`: the file was found, not named.
pub(super) fn read_all(
    section: &Section<'_>,
    found: bool,
    dir: &Path,
    drafts: &[Draft],
) -> Vec<Hook> {
    let named = section.named(NAME_PATTERN);
    if let Some((_, item)) = named.first().filter(|_| found) {
        let message = "a supervisor.toml that was found may not use hooks";
        let help = "name the file with --config if you trust it";
        section
            .ledger
            .fault(&item.place, message, Some(help.to_owned()));
    }
    if let Some((_, item)) = named.get(limits::HOOKS) {
        let message = format!("there are more than {} hooks", limits::HOOKS);
        section.ledger.fault(&item.place, message, None);
    }
    let read = |(name, item): &(String, Item<'_>)| read(name, item, dir, drafts);
    named.iter().filter_map(read).collect()
}

fn read(name: &str, item: &Item<'_>, dir: &Path, drafts: &[Draft]) -> Option<Hook> {
    let section = item.section()?;
    let ledger = section.ledger;
    if !sandbox::is_name(name) {
        let message = format!(
            "the hook name {} must match {}",
            quoted(name),
            sandbox::NAME
        );
        ledger.fault(&item.place, message, None);
    }
    let has = |key: &'static str| section.item(key).is_some();
    let (has_url, has_command) = (has("url"), has("command"));
    if has_url == has_command {
        let message = if has_url {
            "a hook has a url or a command, not both"
        } else {
            "the hook needs a url or a command"
        };
        let help = "for example: url = \"https://hooks.example.com/marshal\" with secret = \"env:HOOK_SECRET\", or command = [\"/usr/local/bin/tell\"]";
        ledger.fault(&section.place, message, Some(help.to_owned()));
    }
    let address = address(&section, dir, has_url);
    let command = command(&section, dir);
    for (key, is_of_url) in [
        ("secret", true),
        ("ca", true),
        ("env", false),
        ("timeout", false),
    ] {
        let is_wrong = has_url != has_command && has_url != is_of_url;
        if let Some(item) = section.item(key).filter(|_| is_wrong) {
            let message = if is_of_url {
                "the key is for a hook with a url"
            } else {
                "the key is for a hook with a command; an address has 5 seconds"
            };
            item.fault(message, None);
        }
    }
    let events = events(&section);
    let pools = pools(&section, drafts);
    section.close(
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
        .map(HookTo::Address)
        .or(command.map(HookTo::Command));
    Some(Hook {
        name: name.to_owned(),
        to: to?,
        events,
        pools,
    })
}

/// The address, if the hook has one.
fn address(section: &Section<'_>, dir: &Path, has_url: bool) -> Option<HookAddress> {
    let ledger = section.ledger;
    let url = section.item("url");
    let url = url.and_then(|item| item.text_like(URL_PATTERN));
    let url = url.and_then(|found| match HookUrl::parse(&found.value) {
        Ok(url) => Some(url),
        Err(fault) => {
            ledger.fault(&found.place, fault, None);
            None
        }
    });
    let secret = section.item("secret");
    if secret.is_none() && has_url {
        let message = "the hook needs a secret: by it a receiver knows that a message is ours";
        let help = "for example: secret = \"env:HOOK_SECRET\", or \"file:hook.secret\"";
        ledger.fault(&section.place, message, Some(help.to_owned()));
    }
    let secret = secret.and_then(|item| item.text_like(SECRET_PATTERN));
    let secret = secret.and_then(|value| {
        let source = environment::only_secret(section, &value, dir);
        if source.is_none() {
            let message =
                "expected \"env:NAME\" or \"file:PATH\": a secret never stands in the file";
            ledger.fault(&value.place, message, None);
        }
        source.map(Secret::new)
    });
    let ca = section.item("ca");
    let ca = ca.and_then(|item| item.text_like(paths::PATTERN));
    let ca = ca.map(|found| {
        if let Some(fault) = paths::fault(&found.value) {
            ledger.fault(&found.place, fault, None);
        }
        Authorities {
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

/// The command, if the hook has one.
fn command(section: &Section<'_>, dir: &Path) -> Option<HookCommand> {
    let ledger = section.ledger;
    let argv = section.texts("command");
    if let Some(argv) = &argv {
        check_argv(ledger, argv);
    }
    let longest = Duration::from_millis(100)..=limits::HOOK_COMMAND;
    let timeout = section.duration("timeout", longest);
    let mut command = HookCommand {
        argv: Vec::new(),
        env: BTreeMap::new(),
        secrets: BTreeMap::new(),
        timeout: timeout.map_or(TIMEOUT, |found| found.value),
    };
    for (name, item) in section.section("env").named(VARIABLE_PATTERN) {
        if !environment::is_name(&name) || name.starts_with("MARSHAL_") {
            let message = format!(
                "expected the name of a variable, [A-Za-z_][A-Za-z0-9_]{{0,127}}, that does not begin with MARSHAL_, found {}",
                quoted(&name)
            );
            ledger.fault(&item.place, message, None);
        }
        let Some(value) = item.text() else { continue };
        match environment::only_secret(section, &value, dir) {
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

fn check_argv(ledger: &Ledger, argv: &Found<Vec<Found<String>>>) {
    let program = argv.value.first().map_or("", |word| word.value.as_str());
    let path = Path::new(program);
    if !path.is_absolute() || paths::fault(program).is_some() {
        let message = format!(
            "expected a program by its absolute path, found {}: a hook has no PATH",
            quoted(program)
        );
        let help = "for example: command = [\"/usr/local/bin/tell\", \"--quiet\"]";
        ledger.fault(&argv.place, message, Some(help.to_owned()));
    }
    if argv.value.len() > limits::HOOK_ARGUMENTS {
        let message = format!("a command has at most {} words", limits::HOOK_ARGUMENTS);
        ledger.fault(&argv.place, message, None);
    }
}

fn events(section: &Section<'_>) -> Vec<ToldKind> {
    let Some(found) = section.texts_like("events", EVENT_PATTERN) else {
        return ToldKind::ALL.to_vec();
    };
    nothing_to_hear(section, found.value.is_empty(), &found.place);
    let mut events: Vec<ToldKind> = Vec::new();
    for word in found.value {
        match ToldKind::from_word(&word.value) {
            Some(event) if events.contains(&event) => {}
            Some(event) => events.push(event),
            None => {
                let words: Vec<_> = ToldKind::ALL.iter().map(|kind| kind.word()).collect();
                let message = format!("expected {}, found {}", one_of(&words), quoted(&word.value));
                section.ledger.fault(&word.place, message, None);
            }
        }
    }
    events.sort();
    events
}

fn nothing_to_hear(section: &Section<'_>, is_empty: bool, place: &Place) {
    if is_empty {
        let message = "the list is empty: the hook would hear nothing";
        let help = "leave it out for everything".to_owned();
        section.ledger.fault(place, message, Some(help));
    }
}

fn pools(section: &Section<'_>, drafts: &[Draft]) -> Vec<PoolName> {
    let Some(found) = section.texts_like("pools", POOL_PATTERN) else {
        return Vec::new();
    };
    nothing_to_hear(section, found.value.is_empty(), &found.place);
    let mut pools = Vec::new();
    for name in found.value {
        let known = drafts.iter().map(|draft| &draft.pool.name);
        match known.into_iter().find(|pool| pool.as_str() == name.value) {
            Some(pool) if !pools.contains(pool) => pools.push(pool.clone()),
            Some(_) => {}
            None => {
                let message = format!("there is no pool {}", quoted(&name.value));
                section.ledger.fault(&name.place, message, None);
            }
        }
    }
    pools
}

/// What a reader of the file should know.
pub(super) fn notes(hooks: &[Hook]) -> impl Iterator<Item = String> {
    let open = hooks.iter().filter(|hook| match &hook.to {
        HookTo::Address(to) => to.url.is_open(),
        HookTo::Command(_) => false,
    });
    open.map(|hook| {
        format!(
            "hook {}: plain http to another host: anybody on the way can read what is told",
            hook.name
        )
    })
}

impl Hook {
    /// Its secrets, each with its key.
    pub fn secrets(&mut self) -> Vec<(String, &mut Secret)> {
        let name = &self.name;
        match &mut self.to {
            HookTo::Address(to) => vec![(format!("hook.{name}.secret"), &mut to.secret)],
            HookTo::Command(command) => {
                let secrets = command.secrets.iter_mut();
                secrets
                    .map(|(variable, secret)| (format!("hook.{name}.env.{variable}"), secret))
                    .collect()
            }
        }
    }
}
