//! `marshal login`: a person logs an agent in, once for all sessions of a pool.
//!
//! The agent runs in its sandbox with a home of its own and the host's network, because a login
//! reaches the provider. It is asked for its logins (`authMethods`), and either performs one by
//! itself (`authenticate`) or is started again at a terminal with the arguments that it names. The
//! files that it left are kept for the sessions of the pool. Must not know what is in them.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::unix::pipe;
use tokio::time::timeout;

use super::config_file::Loaded;
use super::exec::RawTerminal;
use super::exit::Exit;
use super::sandbox_command;
use super::signals::Signals;
use super::streams::Streams;
use super::uid_block;
use marshal_config::{Config, DialectName, Network, PlaceholderValues, Pool, StopTimeouts};
use marshal_launch::{LaunchPlan, SandboxSpec, SpawnError, Spawner};
use marshal_model::PoolName;
use marshal_model::limits::{EDITOR_LINE_BYTES, LOGIN_REPLY_TIMEOUT, LOGIN_TIMEOUT};
use marshal_model::untrusted::escape_for_display;
use marshal_sandbox::uids::{LockedBlock, UidError};
use marshal_sandbox::workspace::login::{self, LoginError};
use marshal_sandbox::workspace::{Root, TreeError};
use marshal_sandbox::{self as sandbox, HostIds, PlanError, SandboxRequest, Tree};
use marshal_wire::shim::MountAccess;

/// `login …`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The pool whose agent is logged in
    #[arg(value_parser = |text: &str| PoolName::new(text))]
    pool: PoolName,
    /// The login, by its id; not needed if the agent offers only one
    #[arg(value_name = "LOGIN")]
    login: Option<String>,
    /// Remove the files of the pool's login instead
    #[arg(long, conflicts_with = "login")]
    forget: bool,
}

#[derive(Debug, thiserror::Error)]
enum LoginFailure {
    #[error("the configuration has no pool {0}")]
    NoPool(PoolName),
    #[error("{0}")]
    NotPossible(String),
    #[error("the agent offers no login{0}")]
    NoLogin(String),
    #[error("this login needs a terminal: run the command at one")]
    NoTerminal,
    #[error("the agent cannot be started: {0}")]
    Spawn(#[from] SpawnError),
    #[error("the agent {0}")]
    Agent(String),
    #[error("{0}")]
    System(#[from] io::Error),
    #[error(transparent)]
    Uids(#[from] UidError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Tree(#[from] TreeError),
    #[error("{0}: the pool's earlier login, if there was one, is unchanged")]
    Files(#[from] LoginError),
}

impl LoginFailure {
    const fn exit(&self) -> Exit {
        match self {
            Self::NoPool(_) | Self::NotPossible(_) | Self::NoLogin(_) | Self::NoTerminal => {
                Exit::Usage
            }
            Self::Spawn(_) | Self::Uids(_) | Self::Plan(_) => Exit::CannotStart,
            _ => Exit::Failures,
        }
    }
}

pub(super) async fn run(args: &Args, loaded: &Loaded, state: &Path, streams: &mut Streams) -> Exit {
    match log_in(args, loaded, state, streams).await {
        Ok(text) => {
            streams.err.line(&text);
            Exit::Done
        }
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            error.exit()
        }
    }
}

async fn log_in(
    args: &Args,
    loaded: &Loaded,
    state: &Path,
    streams: &mut Streams,
) -> Result<String, LoginFailure> {
    let (name, config) = (&args.pool, &loaded.config);
    let pool = config
        .pool(name.as_str())
        .ok_or_else(|| LoginFailure::NoPool(name.clone()))?;
    if args.forget {
        return Ok(if login::forget(state, name)? {
            format!("the files of pool {name}'s login were removed")
        } else {
            format!("pool {name} has no login")
        });
    }
    check(pool).map_err(LoginFailure::NotPossible)?;
    if !loaded.is_explicit {
        let why = "a login gives the agent the network of this host, which a configuration that was only found may not: name it with --config, or trust it with `marshal trust`";
        return Err(LoginFailure::NotPossible(why.to_owned()));
    }
    let agent = Agent::new(config, pool, state)?;
    let logins = agent.logins().await?;
    let wanted = choose(&logins, args.login.as_deref()).map_err(LoginFailure::NoLogin)?;
    let shown = escape_for_display(wanted.name.as_deref().unwrap_or(&wanted.id), 80);
    streams.err.line(&format!("login of pool {name}: {shown}"));
    if wanted.kind == "terminal" {
        agent.at_terminal(wanted).await?;
    } else {
        agent.authenticate(&wanted.id, streams).await?;
    }
    let kept = login::keep(state, name, &agent.home.0)?;
    let files = kept
        .iter()
        .map(|path| escape_for_display(path, 100))
        .collect::<Vec<_>>()
        .join(", ");
    Ok(format!(
        "logged in: new sessions of pool {name} get {files} (in {}; `marshal login {name} --forget` removes them)",
        super::trust::display_path(&login::directory(state, name))
    ))
}

/// Whether the agent of a pool can be logged in here.
fn check(pool: &Pool) -> Result<(), String> {
    if pool.dialect != DialectName::Acp {
        return Err(format!(
            "pool {} speaks {}, which has no logins: run the agent's own login outside, and name its files in home_files",
            pool.name, pool.dialect
        ));
    }
    if !(pool.launcher.has_sandbox() && pool.launcher.uses_host_programs()) {
        return Err(format!(
            "pool {} has launcher = \"{}\": only an agent in a sandbox of this host, started by its programs, can be logged in here",
            pool.name, pool.launcher
        ));
    }
    Ok(())
}

/// A login that an agent offers.
#[derive(Debug, Deserialize)]
struct Login {
    id: String,
    name: Option<String>,
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

fn choose<'l>(logins: &'l [Login], wanted: Option<&str>) -> Result<&'l Login, String> {
    let found = match (wanted, logins) {
        (Some(wanted), _) => logins.iter().find(|login| login.id == wanted),
        (None, [only]) => Some(only),
        (None, _) => None,
    };
    found.ok_or_else(|| {
        let shown = wanted.map(|wanted| format!(" {}", escape_for_display(wanted, 80)));
        let ids = logins
            .iter()
            .map(|login| escape_for_display(&login.id, 80))
            .collect::<Vec<_>>()
            .join(", ");
        let offered = match logins {
            [] => String::new(),
            _ => format!("; name one of: {ids}"),
        };
        format!("{}{offered}", shown.unwrap_or_default())
    })
}

/// The home of the login, removed in the end.
struct LoginHome(PathBuf);

impl Drop for LoginHome {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How the agent is started for its login.
struct Agent<'a> {
    config: &'a Config,
    pool: &'a Pool,
    home: LoginHome,
    ids: HostIds,
    spawner: Spawner,
    _uids: Option<LockedBlock>,
}

/// A conversation with an agent that was started.
struct Talk {
    input: pipe::Sender,
    lines: tokio::io::Lines<BufReader<pipe::Receiver>>,
    keeper: marshal_launch::KeeperHandle,
    ended: tokio::sync::oneshot::Receiver<marshal_launch::ChildExit>,
}

impl<'a> Agent<'a> {
    fn new(config: &'a Config, pool: &'a Pool, state: &Path) -> Result<Self, LoginFailure> {
        let (ids, uids) = uid_block::acquire()?;
        let home = state
            .join("logins")
            .join(format!(".home-{}", uuid::Uuid::now_v7()));
        let home = LoginHome(home);
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&home.0)?;
        if let HostIds::Root { slot_uid } = ids {
            chown(&home.0, Some(slot_uid), Some(slot_uid))?;
        }
        Ok(Self {
            config,
            pool,
            home,
            ids,
            spawner: Spawner::start(crate::BUILD)?,
            _uids: uids,
        })
    }

    fn argv(&self) -> Vec<String> {
        let fill = PlaceholderValues {
            session: "login",
            workspace: sandbox::HOME_INSIDE,
            model: None,
        };
        let mut argv = self.pool.argv(fill);
        if let Some(word) = argv.first_mut()
            && word == marshal_config::OWN_PROGRAM
        {
            sandbox::MARSHAL_INSIDE.clone_into(word);
        }
        argv
    }

    fn plan(
        &self,
        argv: Vec<String>,
        more: &BTreeMap<String, String>,
    ) -> Result<LaunchPlan, LoginFailure> {
        let profile = &self.config.sandboxes[&self.pool.sandbox];
        let root = Root::open_resolved(&self.home.0)?;
        let meta = root.meta()?;
        let binds = self.pool.program.iter().flat_map(|program| &program.binds);
        let is_shown = |bind: &&PathBuf| profile.ro_bind.iter().any(|dir| bind.starts_with(dir));
        let binds = binds.filter(|bind| !is_shown(bind));
        let shown = binds.map(|bind| (bind.clone(), bind.to_string_lossy().into_owned()));
        let plan = sandbox::plan(&SandboxRequest {
            profile,
            network: Network::Host,
            listen: Vec::new(),
            ids: self.ids,
            hostname: self.pool.name.as_str(),
            home: Some(Tree {
                path: self.home.0.clone(),
                owner: (meta.uid, meta.gid),
                access: MountAccess::Rw,
                identity: None,
            }),
            workspace: None,
            overlay: None,
            extra_ro: shown.collect(),
            extra_mounts: sandbox::ExtraMounts::none(),
            has_sandbox_entry: false,
            has_terminals: true,
        })?;
        let fixed = [
            ("HOME", sandbox::HOME_INSIDE),
            ("PATH", sandbox_command::PATH_INSIDE),
            ("USER", "agent"),
            ("LOGNAME", "agent"),
            ("SHELL", "/bin/sh"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
        let mut env = BTreeMap::from(fixed);
        env.extend(self.pool.env.set.clone());
        env.extend(more.clone());
        Ok(LaunchPlan {
            argv,
            env: env.into_iter().collect(),
            cwd: sandbox::HOME_INSIDE.to_owned(),
            limits: sandbox::limits_of(profile),
            sandbox: SandboxSpec::Shim(Box::new(plan)),
            preamble: Vec::new(),
        })
    }

    /// Starts the agent and initializes its protocol. Its errors are this program's.
    async fn talk(&self) -> Result<(Talk, Value), LoginFailure> {
        let plan = self.plan(self.argv(), &BTreeMap::new())?;
        let launched = self.spawner.spawn(plan).await?;
        let none = Duration::ZERO;
        let waits = StopTimeouts {
            goodbye: none,
            eof: none,
            int: none,
            term: none,
        };
        let (keeper, ended) = marshal_launch::keep(launched.process, waits);
        let mut errors = BufReader::new(launched.stderr).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = errors.next_line().await {
                let _ = writeln!(io::stderr(), "{}", escape_for_display(&line, 1000));
            }
        });
        let mut talk = Talk {
            input: launched.stdin,
            lines: BufReader::new(launched.stdout).lines(),
            keeper,
            ended,
        };
        let params = json!({
            "protocolVersion": 1,
            "clientCapabilities": {
                "fs": {"readTextFile": false, "writeTextFile": false},
                "terminal": false,
                "auth": {"terminal": true},
            },
            "clientInfo": {"name": "marshal", "version": env!("CARGO_PKG_VERSION")},
        });
        let reply = talk
            .request(1, "initialize", &params, LOGIN_REPLY_TIMEOUT)
            .await?;
        if reply["protocolVersion"] != 1 {
            let why = "does not speak version 1 of its protocol";
            return Err(LoginFailure::Agent(why.to_owned()));
        }
        Ok((talk, reply))
    }

    /// The logins that the agent offers.
    async fn logins(&self) -> Result<Vec<Login>, LoginFailure> {
        let (talk, reply) = self.talk().await?;
        talk.end().await;
        let methods = reply["authMethods"].as_array().cloned().unwrap_or_default();
        let read = |method| serde_json::from_value::<Login>(method).ok();
        Ok(methods.into_iter().filter_map(read).collect())
    }

    /// The agent logs in by itself.
    async fn authenticate(&self, id: &str, streams: &mut Streams) -> Result<(), LoginFailure> {
        let (mut talk, _) = self.talk().await?;
        streams
            .err
            .line("waiting for the agent; it may name a page to open");
        let params = json!({"methodId": id});
        let reply = talk
            .request(2, "authenticate", &params, LOGIN_TIMEOUT)
            .await;
        talk.end().await;
        reply.map(|_| ())
    }

    /// The agent's own program for the login, at this terminal.
    async fn at_terminal(&self, login: &Login) -> Result<(), LoginFailure> {
        if !(io::stdin().is_terminal() && io::stdout().is_terminal()) {
            return Err(LoginFailure::NoTerminal);
        }
        let size = rustix::termios::tcgetwinsize(io::stdin()).map_err(io::Error::from)?;
        let mut argv: Vec<String> = vec![sandbox::MARSHAL_INSIDE.to_owned(), "terminal".to_owned()];
        argv.push(format!("--columns={}", size.ws_col.max(1)));
        argv.push(format!("--rows={}", size.ws_row.max(1)));
        argv.push("--".to_owned());
        argv.extend(self.argv());
        argv.extend(login.args.iter().cloned());
        let mut env = login.env.clone();
        if let Ok(term) = std::env::var("TERM") {
            env.entry("TERM".to_owned()).or_insert(term);
        }
        let launched = self.spawner.spawn(self.plan(argv, &env)?).await?;
        let mut signals = Signals::install()?;
        let raw = RawTerminal::set()?;
        let ended = sandbox_command::pass_through(launched, &mut signals).await;
        drop(raw);
        let code = ended?
            .and_then(|ended| ended.status)
            .map(marshal_model::ExitStatus::shell_code);
        match code {
            Some(0) => Ok(()),
            Some(code) => Err(LoginFailure::Agent(format!(
                "ended its login with code {code}"
            ))),
            None => Err(LoginFailure::Agent("was lost".to_owned())),
        }
    }
}

impl Talk {
    async fn request(
        &mut self,
        id: u64,
        method: &str,
        params: &Value,
        most: Duration,
    ) -> Result<Value, LoginFailure> {
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.input
            .write_all(format!("{request}\n").as_bytes())
            .await?;
        let reply = timeout(most, self.reply(id)).await.unwrap_or_else(|_| {
            let why = format!("did not answer {method} within {} s", most.as_secs());
            Err(LoginFailure::Agent(why))
        })?;
        match reply.get("error") {
            Some(error) => {
                let message = error["message"].as_str().unwrap_or("no reason");
                let message = escape_for_display(message, 300);
                Err(LoginFailure::Agent(format!("refused {method}: {message}")))
            }
            None => Ok(reply["result"].clone()),
        }
    }

    async fn reply(&mut self, id: u64) -> Result<Value, LoginFailure> {
        let mut bytes = 0;
        while let Some(line) = self.lines.next_line().await? {
            bytes += line.len();
            if bytes > EDITOR_LINE_BYTES {
                return Err(LoginFailure::Agent("writes too much".to_owned()));
            }
            let message: Value = serde_json::from_str(&line).unwrap_or_default();
            if message["id"] == id && message.get("method").is_none() {
                return Ok(message);
            }
        }
        Err(LoginFailure::Agent("ended before it answered".to_owned()))
    }

    /// Ends the agent, and waits until none of its processes is left.
    async fn end(self) {
        drop(self.input);
        self.keeper.kill();
        let _ = self.ended.await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_login_needs_no_name_and_of_several_one_is_named() {
        let logins =
            |methods: Value| serde_json::from_value::<Vec<Login>>(methods).expect("logins");
        let both = logins(json!([
            {"id": "key", "name": "Key"},
            {"id": "setup", "type": "terminal", "args": ["--setup"], "env": {"A": "b"}},
        ]));
        assert_eq!(choose(&both, Some("setup")).expect("one").args, ["--setup"]);
        assert_eq!(
            choose(&both[1..], None).expect("the only one").kind,
            "terminal"
        );
        let refused = |logins, wanted| choose(logins, wanted).map(|_| ()).expect_err("none");
        assert_eq!(refused(&both, None), "; name one of: key, setup");
        assert_eq!(refused(&both, Some("x")), " x; name one of: key, setup");
        assert_eq!(refused(&[], None), "");
    }
}
