//! `marshal init`: a first configuration for the project of this directory.
//!
//! Owns its text. Must not know how an agent is found, or what a sandbox needs: `agents` and
//! `doctor` say so.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::agents::{self, find::SearchPaths};
use super::command::report_load_error;
use super::config_file::{self, Loaded, NAME};
use super::exit::Exit;
use super::streams::Streams;
use super::trust::display_path;
use super::{doctor, policies, project, state_dir, trust_store};
use marshal_config::{Config, Origin, SecretSource};
use marshal_sandbox::workspace::branch;

/// Where `--rehearsal` expects the rehearsal model.
const REHEARSAL: &str = "127.0.0.1:8089";
/// The most agents at once that are suggested, and the memory that each may need.
const AGENTS: u64 = 4;
const AGENT_MEMORY: u64 = 1 << 30;

/// `init …`
#[derive(Debug, clap::Args)]
pub struct InitArgs {
    /// The agent (default: one that is installed, with its key in the environment if there is one)
    #[arg(long, value_name = "NAME", value_parser = agents::known)]
    agent: Option<String>,

    /// Use the rehearsal model instead of the agent's provider: no key, no cost
    #[arg(long)]
    rehearsal: bool,

    /// Replace an existing supervisor.toml
    #[arg(long)]
    force: bool,
}

/// What was found for the configuration.
struct Findings {
    dir: PathBuf,
    agent: String,
    /// The version, if the agent's files say it.
    version: Option<String>,
    /// The other installed agents.
    others: Vec<String>,
    /// Whether the directory has a repository that sessions can clone.
    has_repository: bool,
    size: u64,
    processors: u64,
    memory: u64,
    is_rehearsal: bool,
}

/// `marshal init`.
pub(super) fn run(args: &InitArgs, cwd: &Path, streams: &mut Streams) -> Exit {
    match init(args, cwd, streams) {
        Ok(exit) => exit,
        Err(message) => {
            streams.err.line(&format!("error: {message}"));
            Exit::Usage
        }
    }
}

fn init(args: &InitArgs, cwd: &Path, streams: &mut Streams) -> Result<Exit, String> {
    let dir = project::of_directory(cwd);
    let shown = display_path(&dir);
    let base = project::base(|name| std::env::var_os(name));
    if base.is_some_and(|base| state_dir::real(&base).starts_with(&dir)) {
        return Err(format!(
            "{shown} holds your home, and agents would work on all of it; change to the directory of a project"
        ));
    }
    let file = dir.join(NAME);
    if file.symlink_metadata().is_ok() && !args.force {
        let file = display_path(&file);
        return Err(format!(
            "{file} exists; `marshal config check` checks it, and --force replaces it"
        ));
    }
    let found = look(args, dir);
    let loaded = match write(&found, &file)? {
        Ok(loaded) => loaded,
        Err(error) => return Ok(report_load_error(&error, false, streams)),
    };
    let mut exit = Exit::Done;
    streams
        .err
        .line(&format!("written: {}", display_path(&file)));
    if trust_store::is_writable_by_agents(&loaded) {
        let text =
            "note: it is not trusted, because agents could write the record of that; use --config";
        streams.err.line(text);
    } else if let Err(error) = trust_store::record(&file, &loaded.content) {
        streams
            .err
            .line(&format!("note: it is not trusted: {error}; use --config"));
    }
    report(&found, &loaded.config, streams);
    let missing = state_dir::path(&loaded.config, &loaded.project, |name| {
        std::env::var_os(name)
    })
    .map(|state| doctor::missing(&loaded.config, &state, "standard"))
    .unwrap_or_default();
    if !missing.is_empty() {
        let text = format!(
            "warning: this host lacks what the sandbox needs ({}); `marshal doctor` says what to do",
            missing.join(", ")
        );
        streams.err.line(&text);
        exit = Exit::Failures;
    }
    Ok(exit)
}

/// Looks at the agents and at the host.
fn look(args: &InitArgs, dir: PathBuf) -> Findings {
    let around = SearchPaths::from_process(&dir);
    let mut installed = agents::installed(&around);
    let has_key = |name: &&String| key_of(name, &dir).is_some_and(|(_, is_set)| is_set);
    let names = || installed.iter().map(|(name, _)| name);
    let named = args.agent.as_ref().or_else(|| names().find(has_key));
    let agent = named
        .or_else(|| names().next())
        .cloned()
        .unwrap_or_else(|| "script".to_owned());
    let version = installed.iter().find(|(name, _)| *name == agent);
    let version = version.and_then(|(_, version)| version.clone());
    installed.retain(|(name, _)| *name != agent);
    let has_repository = branch::Repository::find(&dir).is_ok() && has_commit(&dir);
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let memory = free_memory().unwrap_or(AGENT_MEMORY);
    Findings {
        dir,
        agent,
        version,
        others: installed.into_iter().map(|(name, _)| name).collect(),
        has_repository,
        size: (memory / AGENT_MEMORY).min(2 * processors).clamp(1, AGENTS),
        processors,
        memory,
        is_rehearsal: args.rehearsal,
    }
}

/// Whether some branch has a commit.
fn has_commit(dir: &Path) -> bool {
    let git = dir.join(".git");
    let heads = fs::read_dir(git.join("refs/heads"));
    let has_loose = heads.is_ok_and(|mut heads| heads.next().is_some());
    has_loose || git.join("packed-refs").exists() || git.join("reftable").exists()
}

/// The memory that can be had now, in bytes.
fn free_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find(|line| line.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// The variable of the key that an agent's first route needs, and whether it is set.
fn key_of(agent: &str, dir: &Path) -> Option<(String, bool)> {
    let config = Config::parse(&pool_text(agent), &origin(dir)).ok()?;
    let route = config.pools.first()?.routes.first()?;
    let secret = config.routes.get(&route.name)?.secret.as_ref()?;
    match &secret.source {
        SecretSource::Variable(name) => Some((name.clone(), std::env::var_os(name).is_some())),
        _ => None,
    }
}

fn origin(dir: &Path) -> Origin {
    Origin {
        file: Some(dir.join(NAME)),
        dir: dir.to_owned(),
        is_explicit: true,
    }
}

/// The least configuration of an agent.
pub(super) fn pool_text(agent: &str) -> String {
    format!(
        "[pool.{agent}]\nagent     = \"{agent}\"\nsize      = 2\nworkspace = {{ path = \".\", mode = \"copy\" }}\npolicy    = \"autonomous\"\n"
    )
}

/// Writes the file with the first policy that may come into force on this host.
fn write(found: &Findings, file: &Path) -> Result<Result<Loaded, config_file::LoadError>, String> {
    for policy in ["autonomous", "developer"] {
        put(file, &text(found, policy))
            .map_err(|error| format!("cannot write {}: {error}", display_path(file)))?;
        let loaded = config_file::load(Some(file), &found.dir);
        match loaded {
            Ok(loaded) if policies::load_policies(&loaded.config).is_err() => {}
            loaded => return Ok(loaded),
        }
    }
    Ok(config_file::load(Some(file), &found.dir))
}

fn put(file: &Path, text: &str) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let fresh = file.with_extension(format!("toml.{}", std::process::id()));
    let mut options = fs::OpenOptions::new();
    let mut opened = options
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(&fresh)?;
    let written = opened.write_all(text.as_bytes());
    written
        .and_then(|()| fs::rename(&fresh, file))
        .inspect_err(|_| {
            let _ = fs::remove_file(&fresh);
        })
}

/// The text of the file.
fn text(found: &Findings, policy: &str) -> String {
    let Findings { agent, size, .. } = found;
    let (mode, about_mode) = if found.has_repository {
        (
            "worktree",
            "\"worktree\": each task works on a branch of its own, made of the last commit. `marshal diff`\n# shows it, `marshal land` brings it in. \"copy\" takes uncommitted files along.",
        )
    } else {
        (
            "copy",
            "\"copy\": each task works in a copy of this directory. In a git repository, \"worktree\" gives\n# branches instead.",
        )
    };
    let about_policy = if policy == "autonomous" {
        "\"autonomous\" allows what stays in the sandbox. \"developer\" allows everyday commands and asks for\n# the rest. `marshal policy check 'COMMAND'` tries a policy."
    } else {
        "\"developer\" allows everyday commands and asks for the rest. \"autonomous\", which allows what stays\n# in the sandbox, needs more of the sandbox than this host has: see `marshal doctor`."
    };
    let mut text = format!(
        "# The configuration of marshal for this project, made by `marshal init`.\n\
         # It is trusted as it is: after a change, run `marshal trust`. To check it: `marshal config check`.\n\
         # All keys: docs/configuration.md of marshal.\n\n\
         [pool.{agent}]\n\
         agent = \"{agent}\"\n\
         # How many agents work at the same time. This host has {} processors and {} MiB of free memory.\n\
         size = {size}\n\
         # {about_mode}\n\
         workspace = {{ path = \".\", mode = \"{mode}\" }}\n\
         # {about_policy}\n\
         policy = \"{policy}\"\n",
        found.processors,
        found.memory >> 20,
    );
    if found.is_rehearsal {
        let route = route_of(agent, &found.dir);
        let _ = write!(
            text,
            "\n# The rehearsal model answers instead of the provider. Without this table the provider does.\n\
             [route.{route}]\n\
             upstream = \"http://{REHEARSAL}\"\n"
        );
    }
    for other in &found.others {
        let _ = write!(
            text,
            "\n# Also installed. With several pools, a task names one: marshal run --pool {other} \"…\"\n\
             # [pool.{other}]\n# agent = \"{other}\"\n# workspace = {{ path = \".\", mode = \"{mode}\" }}\n# policy = \"{policy}\"\n"
        );
    }
    text
}

/// The first route of an agent.
fn route_of(agent: &str, dir: &Path) -> String {
    let config = Config::parse(&pool_text(agent), &origin(dir)).ok();
    let pool = config.as_ref().and_then(|config| config.pools.first());
    let route = pool.and_then(|pool| pool.routes.first());
    route.map_or_else(|| "openai".to_owned(), |route| route.name.clone())
}

/// Says what was found, and the next command.
fn report(found: &Findings, config: &Config, streams: &mut Streams) {
    let mut line = |what: &str, text: &str| streams.err.line(&format!("{what:<10} {text}"));
    let version = found.version.as_deref().unwrap_or_default();
    let version = marshal_model::untrusted::escape_for_display(version, 40);
    let mut agent = format!("{} {version}", found.agent).trim_end().to_owned();
    if found.agent == "script" {
        agent += " (no agent is installed; `marshal agents` says how to install one)";
    } else if !found.others.is_empty() {
        let _ = write!(agent, "; also installed: {}", found.others.join(", "));
    }
    line("agent", &agent);
    let (mode, policy) = config.pools.first().map_or(("", ""), |pool| {
        (pool.workspace.mode.as_str(), pool.policy.as_str())
    });
    let size = found.size;
    line(
        "host",
        &format!(
            "{} processors, {} MiB of free memory: {size} agents at once",
            found.processors,
            found.memory >> 20
        ),
    );
    line(
        "workspace",
        &format!("{mode} of {}", display_path(&found.dir)),
    );
    line("policy", policy);
    let set = set_of(&found.agent, found.is_rehearsal, &found.dir);
    let task = if found.agent == "script" {
        "list ."
    } else {
        "say what this project does"
    };
    if found.is_rehearsal {
        line(
            "first",
            &format!("marshal script-model --listen {REHEARSAL} &"),
        );
        line("then", "marshal run \"RUN: ls\"");
    } else {
        line("next", &format!("{set}marshal run \"{task}\""));
    }
}

/// The variable that the next command has to set.
fn set_of(agent: &str, is_rehearsal: bool, dir: &Path) -> String {
    match key_of(agent, dir) {
        Some((name, false)) if !is_rehearsal => format!("{name}=... "),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_config::agent_names;

    fn findings(agent: &str) -> Findings {
        Findings {
            dir: "/srv/project".into(),
            agent: agent.to_owned(),
            version: None,
            others: vec!["gemini".to_owned()],
            has_repository: true,
            size: 2,
            processors: 2,
            memory: 3 << 30,
            is_rehearsal: true,
        }
    }

    #[test]
    fn what_is_written_for_each_agent_is_a_good_configuration() {
        for agent in agent_names() {
            for policy in ["autonomous", "developer"] {
                let text = text(&findings(agent), policy);
                let config = Config::parse(&text, &origin(Path::new("/srv/project")))
                    .unwrap_or_else(|errors| panic!("{agent}: {errors}\n{text}"));
                assert_eq!(config.pools.len(), 1);
                assert_eq!(config.pools[0].policy, policy);
            }
        }
    }
}
