//! `agents`: the built-in agents, and which of them this host has.
//!
//! Must not know how an agent is started: `find` locates it, the fleet starts it.

pub(super) mod find;
mod version;

use std::path::Path;

use self::find::{FoundProgram, Missing, SearchPaths};
use super::exit::Exit;
use super::init;
use super::streams::Streams;
use super::trust::display_path;
use marshal_config::{Config, Pool, Preset, agent_names, agent_preset};
use marshal_engine::api::v1::AgentView;
use marshal_model::untrusted::escape_for_display;

/// Columns shown of a text that a package provides.
const WIDTH: usize = 60;

/// `agents …`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The subcommand
    #[command(subcommand)]
    pub command: Option<Command>,
}

/// `agents …`
#[derive(Debug, Clone, PartialEq, Eq, clap::Subcommand)]
pub enum Command {
    /// Show details of one agent
    Show {
        /// Name of the agent
        #[arg(value_parser = known)]
        name: String,
    },
}

pub(super) fn known(name: &str) -> Result<String, String> {
    match agent_preset(name) {
        Some(_) => Ok(name.to_owned()),
        None => Err(format!(
            "the built-in agents are {}",
            agent_names().join(", ")
        )),
    }
}

/// Finds the program of each pool, and writes it into the configuration. Returns the faults as key, message and help.
pub(super) fn find_programs(
    config: &mut Config,
    around: &SearchPaths,
) -> Vec<(String, String, Option<String>)> {
    let mut faults = Vec::new();
    for pool in &mut config.pools {
        // With ssh the remote host has the programs, with a container the image has them.
        if !pool.launcher.uses_host_programs() || pool.is_own_program() {
            continue;
        }
        let preset = agent_preset(&pool.agent).filter(|_| pool.is_preset && !pool.has_own_command);
        let found = match preset.map(|preset| preset.find.as_ref()) {
            Some(None) => continue,
            Some(Some(find)) => {
                let install = &find.install;
                let key = match pool.agent_dir {
                    Some(_) => "agent_dir",
                    None => "agent",
                };
                let help = format!(
                    "install it ({install}), or set agent_dir to the directory that has it"
                );
                find::find(find, pool.agent_dir.as_deref(), around)
                    .map(Some)
                    .map_err(|missing| (key, missing, help))
            }
            None => find_own(pool, around),
        };
        match found {
            Ok(found) => {
                let file = found.as_ref().map(|found| found.file.clone());
                let variants = preset.map_or(&[][..], |preset| &preset.variants);
                if let Some(variant) = variants.iter().find(|variant| {
                    let file = file.as_deref().map(Path::to_string_lossy);
                    let inside = format!("/{}/", variant.package);
                    file.is_some_and(|file| file.contains(&inside))
                }) {
                    variant.apply(&mut pool.home_texts);
                }
                pool.program = found.map(|found| found.program);
            }
            Err((key, missing, help)) => {
                let key = format!("pool.{}.{key}", pool.name);
                faults.push((key, missing.to_string(), Some(help)));
            }
        }
    }
    faults
}

/// The program of a pool with a command of its own.
fn find_own(
    pool: &Pool,
    around: &SearchPaths,
) -> Result<Option<FoundProgram>, (&'static str, Missing, String)> {
    let word = pool.command.first().map_or("", String::as_str);
    let profile = &pool.sandbox;
    // Only the agent's own search path says what a name means then.
    let has_path = pool.env.set.contains_key("PATH");
    if has_path && !word.contains('/') {
        return Ok(None);
    }
    let found = find::find_command(word, around);
    // Without a sandbox the name is enough.
    let found = found.map(|found| found.filter(|_| pool.launcher.has_sandbox()));
    found.map_err(|missing| {
        let help = match &missing {
            Missing::Nowhere { .. } => {
                "install it, or write the whole path of the program".to_owned()
            }
            Missing::Outside(_) => {
                "name the file with --config, or trust it with `marshal trust`".to_owned()
            }
            _ => format!(
                "what a program needs beside itself can be named in ro_bind of [sandbox.{profile}]"
            ),
        };
        ("command", missing, help)
    })
}

/// The agents that are installed on this host, each with the version in its files.
pub(super) fn installed(around: &SearchPaths) -> Vec<(String, Option<String>)> {
    let presets = agent_names().into_iter().filter_map(agent_preset);
    let all = presets.map(|preset| AgentStatus::from_files(preset, around));
    let here = all.filter(|status| matches!(status.found, Some(Ok(_))));
    here.map(|status| (status.preset.name.to_owned(), status.version))
        .collect()
}

/// Runs the command. Packages are also looked up in `directory`.
pub(super) async fn run(args: Args, json: bool, directory: &Path, mut streams: Streams) -> Exit {
    let around = SearchPaths::from_process(directory);
    match args.command {
        Some(Command::Show { name }) => show_agent(&name, &around, json, &mut streams).await,
        None => list(&around, json, &mut streams).await,
    }
}

/// What this host has of one agent.
struct AgentStatus {
    preset: &'static Preset,
    found: Option<Result<FoundProgram, Missing>>,
    version: Option<String>,
}

impl AgentStatus {
    async fn probe(preset: &'static Preset, around: &SearchPaths) -> Self {
        let mut status = Self::from_files(preset, around);
        if let (None, Some(Ok(found))) = (&status.version, &status.found) {
            status.version = version::query_version(&found.program.argv).await;
        }
        status
    }

    /// The same from the agent's files alone: runs no program.
    fn from_files(preset: &'static Preset, around: &SearchPaths) -> Self {
        let find = preset.find.as_ref();
        let found = find.map(|find| find::find(find, None, around));
        let version = match &found {
            Some(Ok(found)) => found.version.clone(),
            _ => None,
        };
        Self {
            preset,
            found,
            version,
        }
    }

    fn state(&self) -> &'static str {
        match &self.found {
            None if self.preset.name == "script" => "built in",
            None => "not looked for",
            Some(Ok(_)) => "installed",
            Some(Err(_)) => "missing",
        }
    }

    fn tested(&self) -> &str {
        self.preset.find.as_ref().map_or("-", |find| &find.tested)
    }

    /// The program's file, how to install it, or why it cannot be used.
    fn remark(&self) -> String {
        match (&self.found, &self.preset.find) {
            (Some(Err(Missing::Nowhere { .. })), Some(find)) => find.install.clone(),
            (Some(Err(missing)), _) => missing.to_string(),
            (Some(Ok(found)), _) => display_path(&found.file),
            (None, _) => String::new(),
        }
    }

    fn json(&self) -> serde_json::Value {
        let preset = self.preset;
        let binds = match &self.found {
            Some(Ok(found)) => Some(&found.program.binds),
            _ => None,
        };
        serde_json::json!({
            "agent": preset.name,
            "title": preset.title,
            "state": self.state(),
            "version": self.version,
            "tested": preset.find.as_ref().map(|find| &find.tested),
            "file": self.found.as_ref().and_then(|found| found.as_ref().ok()).map(|found| &found.file),
            "sees": binds,
            "missing": self.found.as_ref().and_then(|found| found.as_ref().err()).map(ToString::to_string),
            "install": preset.find.as_ref().map(|find| &find.install),
            "dialect": preset.pool_text_or_default("dialect"),
            "permission_requests": preset.pool_text_or_default("permission_requests"),
            "evidence": preset.evidence,
            "waits": preset.agent_waits(),
            "proc": preset.proc,
            "proxies": preset.proxies,
            "mode": preset.pool_text("mode"),
            "auth": preset.pool_text("auth"),
            "memory": preset.memory,
        })
    }
}

/// The status of every agent, as `marshal --json agents` shows it, but from files alone: a client
/// that may only read must not make the supervisor run programs.
pub(super) fn statuses(directory: &Path) -> Vec<AgentView> {
    let around = SearchPaths::from_process(directory);
    let presets = agent_names().into_iter().filter_map(agent_preset);
    let all = presets.map(|preset| AgentStatus::from_files(preset, &around).json());
    all.filter_map(|status| serde_json::from_value(status).ok())
        .collect()
}

async fn list(around: &SearchPaths, json: bool, streams: &mut Streams) -> Exit {
    let mut rows = vec![["agent", "state", "version", "tested", "requests", ""].map(str::to_owned)];
    for preset in agent_names().into_iter().filter_map(agent_preset) {
        let status = AgentStatus::probe(preset, around).await;
        if json {
            streams.out.json(&status.json().to_string());
            continue;
        }
        rows.push([
            preset.name.to_owned(),
            status.state().to_owned(),
            status
                .version
                .as_deref()
                .map_or("-".to_owned(), |text| escape_for_display(text, 20)),
            status.tested().to_owned(),
            preset.pool_text_or_default("permission_requests"),
            escape_for_display(&status.remark(), 200),
        ]);
    }
    if json {
        return Exit::Done;
    }
    let widths: [usize; 5] = std::array::from_fn(|column| {
        let lengths = rows.iter().map(|row| row[column].chars().count());
        lengths.max().unwrap_or(0)
    });
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(widths) {
            line.push_str(cell);
            let gap = width.saturating_sub(cell.chars().count()) + 2;
            line.push_str(&" ".repeat(gap));
        }
        line.push_str(&row[5]);
        streams.out.line(line.trim_end());
    }
    Exit::Done
}

async fn show_agent(name: &str, around: &SearchPaths, json: bool, streams: &mut Streams) -> Exit {
    let Some(preset) = agent_preset(name) else {
        return Exit::Usage;
    };
    let status = AgentStatus::probe(preset, around).await;
    if json {
        streams.out.json(&status.json().to_string());
        return Exit::Done;
    }
    let out = &mut streams.out;
    let mut show = |what: &str, text: &str| out.line(&format!("{what:<10} {text}"));
    show("agent", &format!("{name}: {}", preset.title));
    show("state", &format!("{} {}", status.state(), status.remark()));
    if let Some(version) = &status.version {
        let tested = status.tested();
        show(
            "version",
            &format!(
                "{}, tested with {tested}",
                escape_for_display(version, WIDTH)
            ),
        );
    }
    if let Some(Ok(found)) = &status.found {
        for bind in &found.program.binds {
            show("sees", &format!("{}, read-only", display_path(bind)));
        }
    }
    show("speaks", &preset.pool_text_or_default("dialect"));
    show(
        "requests",
        &format!(
            "{}: {}",
            preset.pool_text_or_default("permission_requests"),
            preset.evidence
        ),
    );
    let waits = preset.agent_waits();
    let waits = waits.as_deref().unwrap_or("forever");
    show("waits", &format!("{waits} for an answer"));
    if let Some(mode) = preset.pool_text("mode") {
        show("mode", &format!("{mode}, set in every session"));
    }
    if let Some(auth) = preset.pool_text("auth") {
        show("logs in", &format!("by {auth}, if the pool has a route"));
    }
    show("proc", &preset.proc);
    show("proxies", &preset.proxies);
    if let Some(memory) = &preset.memory {
        show("memory", &format!("about {memory}"));
    }
    for file in preset.home_paths() {
        show("home", &format!("gets {file}"));
    }
    out.line(&format!(
        "\nA configuration, which `marshal init --agent {name}` writes with comments:\n"
    ));
    out.text(&init::pool_text(name));
    Exit::Done
}
