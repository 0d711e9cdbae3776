//! The checked configuration: what the rest of the program sees of `supervisor.toml`.
//!
//! Everything here is complete and consistent: defaults filled in, units read, names resolved,
//! relative paths made absolute. Must not know TOML, spans or files.

mod container;
mod dialect;
mod sandbox;
mod secret;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use self::sandbox::{Sandbox, Seccomp};
pub use self::secret::{Secret, SecretSource};
use super::approval::ApprovalConfig;
use super::budget::{PoolBudget, Prices};
pub use super::cache::{Cache, CacheDirs};
use super::delegate::Delegate;
pub use super::egress::{AllowedHost, Egress, EgressTimeouts, check_host_name, proxy_variables};
use super::error::SourceMap;
use super::file_plane::FilePlane;
use super::hint::Hints;
use super::hook::Hook;
use super::http::{HttpConfig, NamedToken};
use super::policy_uses::PolicyUses;
use super::role::{ChatConfig, RegisteredWorkspace, Role};
pub use super::route::{
    AllowedRequest, CertificateAuthorities, Route, RoutePort, RouteTimeouts, Upstream,
    UpstreamError, fill_routes, is_path_byte, is_plain_path, unknown_route,
};
pub use super::ssh::{RemoteMode, RemoteNetwork, RemoteSandbox, Ssh};
use super::store::StoreConfig;
use super::template::Template;
pub use container::{Container, ContainerEngine};
pub use marshal_model::OnTimeout;
use marshal_model::limits;
use marshal_model::{
    ClientCapabilities, EngineTool, PoolName, RoleName, TemplateName, WorkspaceName, string_enum,
};

/// The whole configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file that it came from; `None` for the embedded default.
    pub file: Option<PathBuf>,
    /// `[supervisor]`.
    pub supervisor: Supervisor,
    /// `[http]`.
    pub http: HttpConfig,
    /// `[token.NAME]`, by name.
    pub tokens: BTreeMap<String, NamedToken>,
    /// `[pool.NAME]`, in the order of the file.
    pub pools: Vec<Pool>,
    /// `[sandbox.NAME]`, `standard` and `strict` included.
    pub sandboxes: BTreeMap<String, Sandbox>,
    /// `[container]`; what it says counts for pools with [`Launcher::Container`] only.
    pub container: Container,
    /// `[route.NAME]`, those of well-known providers included.
    pub routes: BTreeMap<String, Route>,
    /// `[egress]`: what a pool's proxy does where the pool says nothing else.
    pub egress: Egress,
    /// `[cache]`: caches of this host whose place the file names.
    pub caches: CacheDirs,
    /// `[delegate.NAME]`.
    pub delegates: BTreeMap<String, Delegate>,
    /// What models cost.
    pub prices: Prices,
    /// `[policy.NAME]` files; the names of the built-in ones are not in it.
    pub policies: BTreeMap<String, PathBuf>,
    /// The one of them that lies below every pool's, if there is one.
    pub site_policy: Option<String>,
    /// What else they are for.
    pub policy_uses: PolicyUses,
    /// `[hook.NAME]`: who is told what happens.
    pub hooks: Vec<Hook>,
    /// `[[hint]]`: what messages mean, the file's own rows and the built-in ones.
    pub hints: Hints,
    /// `[chat]`.
    pub chat: ChatConfig,
    /// `[role.NAME]`.
    pub roles: BTreeMap<RoleName, Role>,
    /// `[workspace.NAME]`.
    pub workspaces: BTreeMap<WorkspaceName, RegisteredWorkspace>,
    /// `[store]`.
    pub store: StoreConfig,
    /// `[template.NAME]`.
    pub templates: BTreeMap<TemplateName, Template>,
    /// What its reader should know: promises that a choice narrows, keys without effect. Safe to show.
    pub notes: Vec<String>,
    /// Where each key stands in the file, for faults that are found later.
    pub source_map: SourceMap,
}

/// `[supervisor]`.
#[derive(Debug, Clone)]
pub struct Supervisor {
    /// Where the journal, homes and copies live; `None`: `$STATE_DIRECTORY`, else
    /// `$XDG_STATE_HOME/marshal`, else `~/.local/state/marshal`, resolved at the command line.
    pub state_dir: Option<PathBuf>,
    /// The address of the HTTP door: a loopback address, unless `[http]` says how others are kept
    /// out of what passes.
    pub listen: std::net::SocketAddr,
    /// How logs look.
    pub log: LogFormat,
    /// The most children at the same time, 1 to 4096.
    pub max_children: u16,
    /// How much of the past is kept.
    pub journal: JournalRetention,
}

/// `[supervisor.journal]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JournalRetention {
    /// How long a session is kept after its end; `None`: for ever.
    pub keep: Option<Duration>,
    /// The database's size, in bytes, beyond which the oldest sessions go before their time.
    pub max_size: u64,
    /// What one session may journal, in bytes of event bodies.
    pub session_max: u64,
    /// Free space, in bytes, below which nothing new is taken in.
    pub min_free: u64,
}

impl Default for JournalRetention {
    fn default() -> Self {
        Self {
            keep: Some(limits::JOURNAL_RETENTION),
            max_size: limits::JOURNAL_BYTES,
            session_max: limits::SESSION_JOURNAL_BYTES,
            min_free: limits::JOURNAL_FREE_BYTES,
        }
    }
}

string_enum!(
    /// How logs look.
    LogFormat {
        /// Human on a terminal, else JSON.
        Auto = "auto",
        /// For people.
        Human = "human",
        /// One JSON object a line.
        Json = "json",
    }
);

string_enum!(
    /// How a child is started.
    Launcher {
        /// In namespaces made by this binary.
        Unshare = "unshare",
        /// In namespaces made by bubblewrap.
        Bwrap = "bwrap",
        /// In a container of podman's or docker's.
        Container = "container",
        /// As a plain process, with nothing around it.
        None = "none",
        /// At a terminal, driven by files, in namespaces made by this binary.
        Pty = "pty",
        /// At another host, by the system's ssh client.
        Ssh = "ssh",
    }
);

string_enum!(
    /// What a child reaches.
    Network {
        /// Its own loopback only.
        None = "none",
        /// Its own loopback, with ports that lead to one upstream each.
        Routes = "routes",
        /// Its own loopback, with ports that lead to one upstream each, if it has routes, and one
        /// for the hosts of an allow-list.
        Proxy = "proxy",
        /// The host's network: a weakness, shown as such.
        Host = "host",
    }
);

string_enum!(
    /// How a child sees its workspace.
    WorkspaceMode {
        /// Each task works in its own copy.
        Copy = "copy",
        /// The directory itself, read-only.
        Ro = "ro",
        /// The directory itself.
        Rw = "rw",
        /// A writable view of the directory; what is written stays beside it.
        Overlay = "overlay",
        /// Each task works in its own clone, and its branch comes back.
        Worktree = "worktree",
    }
);

string_enum!(
    /// What restarts a slot's child.
    RestartKind {
        /// Every end.
        Permanent = "permanent",
        /// Every end that nobody asked for.
        Transient = "transient",
        /// Nothing.
        Temporary = "temporary",
    }
);

string_enum!(
    /// What becomes of a task whose child died in its turn.
    OnCrash {
        /// It ends `lost`.
        Report = "report",
        /// It ends `lost`, and the slot's session is loaded again in a new child, for the slot's
        /// next task.
        Resume = "resume",
        /// It is sent again in a fresh session, as often as `attempts` says.
        Retry = "retry",
    }
);

string_enum!(
    /// How long a session lasts.
    SessionScope {
        /// One task.
        Task = "task",
        /// The slot keeps one session and gives it task after task.
        Slot = "slot",
    }
);

string_enum!(
    /// What stands between an agent and the host.
    Guard {
        /// Only the policy: needs an agent that asks for everything.
        Policy = "policy",
        /// Policy and sandbox.
        PolicyAndSandbox = "policy+sandbox",
        /// Only the sandbox.
        Sandbox = "sandbox",
    }
);

string_enum!(
    /// In which directory an agent's shell begins a command that names none.
    ShellCwd {
        /// Every one in the workspace's root.
        Workspace = "workspace",
        /// Where the one before it in the same turn ended; every turn begins in the root.
        Turn = "turn",
        /// Where the one before it ended.
        Sticky = "sticky",
    }
);

string_enum!(
    /// What a tool call that ran without a request, and that the policy denies, brings about.
    OnUnaskedDeny {
        /// It is recorded.
        Report = "report",
        /// The turn is interrupted.
        Interrupt = "interrupt",
        /// The child is stopped.
        Stop = "stop",
    }
);

string_enum!(
    /// What an agent asks permission for, as its preset says with evidence.
    PermissionCoverage {
        /// Everything.
        All = "all",
        /// Some calls.
        Some = "some",
        /// Nothing.
        Never = "never",
    }
);

string_enum!(
    /// Which protocol an agent speaks.
    DialectName {
        /// Agent Client Protocol, version 1.
        Acp = "acp",
        /// Claude Code's stream-json.
        Claude = "claude",
        /// `codex app-server`.
        Codex = "codex",
        /// What a table of the configuration's says.
        Custom = "custom",
        /// loaf's RPC, protocol 1.
        Loaf = "loaf",
        /// ScaiFlux serve mode, protocol 1.
        Scaiflux = "scaiflux",
        /// SkillPilot's file control plane, version 1.
        Skillpilot = "skillpilot",
    }
);

impl Pool {
    /// What its agents' client offers them.
    #[must_use]
    pub fn client_offers(&self) -> ClientCapabilities {
        ClientCapabilities {
            read: self.client_fs != ClientFs::None,
            write: self.client_fs == ClientFs::Write,
            terminal: self.client_terminal,
        }
    }

    /// Whether anything is done for its agents inside their walls.
    #[must_use]
    pub fn needs_sandbox_entry(&self) -> bool {
        self.client_offers().supports_any() || !self.engine_tools.is_empty()
    }
}

string_enum!(
    /// Which files an agent may have its client read and write.
    ClientFs {
        /// None: the methods are not offered.
        None = "none",
        /// Reading is offered.
        Read = "read",
        /// Reading and writing are.
        Write = "write",
    }
);

string_enum!(
    /// How `/proc` looks inside.
    ProcMode {
        /// Only processes (`subset=pid`).
        Pid = "pid",
        /// The whole procfs of the own pid namespace, with its dangerous files masked.
        Masked = "masked",
    }
);

/// `[pool.NAME]`.
#[derive(Debug, Clone)]
pub struct Pool {
    /// Its name.
    pub name: PoolName,
    /// In how many slots its tasks begin at the start, from 1.
    pub size: u16,
    /// How many slots it has, `size` or more: the most that it can be resized to.
    pub max_size: u16,
    /// The agent: program and arguments. `marshal` as first word is this very binary.
    /// Placeholders (`{session}`, `{workspace}`, `{model}`, `{mode}`) are still in it:
    /// [`Pool::with_loader`] fills them.
    pub command: Vec<String>,
    /// What is added to the command to load an earlier session again; `{session}` in it is the
    /// agent's own id of that session. Empty where the protocol loads sessions itself, or cannot.
    pub resume_args: Vec<String>,
    /// How long a session lasts.
    pub session: SessionScope,
    /// The protocol it speaks.
    pub dialect: DialectName,
    /// Its table, with [`DialectName::Custom`], and only then.
    pub custom_dialect: Option<super::CustomDialect>,
    /// The preset's name, or `custom`.
    pub agent: String,
    /// The file names a preset; else the name above only says what the command is.
    pub is_preset: bool,
    /// The file has a command of its own, not the preset's.
    pub has_own_command: bool,
    /// Where the preset's program is installed, if the file says so.
    pub agent_dir: Option<PathBuf>,
    /// The preset's program as it was found on this host, by whoever looks for files.
    pub program: Option<Program>,
    /// What takes the place of `{model}` in the command; of an ACP agent whose command has none,
    /// what every session is set to.
    pub model: Option<String>,
    /// The same for `{mode}`.
    pub mode: Option<String>,
    /// What is wanted of an agent that speaks ACP.
    pub acp: Arc<super::acp::AcpSettings>,
    /// How its tool is driven, where that is done by files.
    pub runner: Arc<super::runner::Runner>,
    /// What the agent asks for, by its preset or by the pool's own word.
    pub permission_requests: PermissionCoverage,
    /// Which fields of a tool call hold command, path and directory.
    pub extractor: Extractor,
    /// In which directory its shell begins a command.
    pub shell_cwd: ShellCwd,
    /// How it is started.
    pub launcher: Launcher,
    /// Where it runs, with [`Launcher::Ssh`], and only then.
    pub ssh: Option<Box<Ssh>>,
    /// Its own image, with [`Launcher::Container`]; `None`: that of `[container]`.
    pub image: Option<String>,
    /// The name of its sandbox profile (a key of [`Config::sandboxes`]). With [`Launcher::None`]
    /// there are no walls, and only the profile's limits apply.
    pub sandbox: String,
    /// What it reaches.
    pub network: Network,
    /// Its routes; empty but for [`Network::RouteRoles`] and [`Network::EgressProxy`].
    pub routes: Vec<RoutePort>,
    /// What it reaches by the egress proxy, with [`Network::EgressProxy`], and only then.
    pub egress: Option<Arc<Egress>>,
    /// How it waits when a provider limits its requests.
    pub rate_limit: RateLimit,
    /// The name of its policy: a built-in one (`developer`) or a key of [`Config::read_policies`].
    pub policy: String,
    /// The name of one that is tried beside it and decides nothing.
    pub shadow_policy: Option<String>,
    /// The name of its delegate (a key of [`Config::delegates`]), if it has one.
    pub delegate: Option<String>,
    /// Its workspace; with [`Launcher::Ssh`] the one at the far end ([`Pool::local_workspace`]).
    pub workspace: Workspace,
    /// Caches of this host that are seen inside, with the directory that the file names; `None`: the
    /// usual one of the user that runs this. Only with [`Launcher::Unshare`].
    pub caches: BTreeMap<Cache, Option<PathBuf>>,
    /// Files that fill a new home: path inside the home -> file on the host.
    pub home_files: BTreeMap<String, PathBuf>,
    /// Files that the preset puts into a new home, where `read_home_files` has none: path inside the
    /// home -> text.
    pub home_texts: BTreeMap<String, String>,
    /// How many sendings of a task's prompt may be made, from 1.
    pub attempts: u32,
    /// An argv that must exit 0 after a completed turn; empty: none.
    pub check: Vec<String>,
    /// The child's environment.
    pub env: Env,
    /// Restarts.
    pub restart: Restart,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// The stop ladder's waits.
    pub stop: StopTimeouts,
    /// Asks.
    pub approval: ApprovalConfig,
    /// What may be spent.
    pub budget: PoolBudget,
    /// What stands between agent and host.
    pub guard: Guard,
    /// The pool's policy lacks `builtin:guard`, and the configuration says that this is meant.
    pub guard_off: bool,
    /// What a denied unasked call brings about.
    pub on_unasked_deny: OnUnaskedDeny,
    /// Which files the agent may have us read and write for it.
    pub client_fs: ClientFs,
    /// Whether it may have us run commands for it.
    pub client_terminal: bool,
    /// The tools of ours that it gets, in their order.
    pub engine_tools: Vec<EngineTool>,
    /// The directory by which it is worked with files, if it has one.
    pub file_plane: Option<FilePlane>,
}

/// A program that was found on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// What takes the place of the command's first word: the program, or its interpreter and it.
    pub argv: Vec<String>,
    /// What of the host it needs to see, read-only, beside the profile's own.
    pub binds: Vec<PathBuf>,
}

impl Pool {
    /// Its workspace, if that is a directory of this host.
    #[must_use]
    pub fn local_workspace(&self) -> Option<&Path> {
        (self.launcher != Launcher::Ssh).then_some(&*self.workspace.path)
    }
}

/// The table that says which field of a tool call holds what (`policy::extract` reads it).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Extractor {
    /// A built-in table, by its name.
    BuiltIn(String),
    /// The pool's own table, as TOML text (the content of `[pool.NAME.extractor]`).
    Inline(String),
}

/// `workspace = { path, mode }`.
#[derive(Debug, Clone)]
pub struct Workspace {
    /// The directory, absolute.
    pub path: PathBuf,
    /// How the child sees it.
    pub mode: WorkspaceMode,
    /// Patterns of names that are hidden: see [`DEFAULT_MASK`]. Empty: nothing is.
    pub mask: Vec<String>,
    /// What alone is seen of it, paths below it; empty: all of it. Only with [`WorkspaceMode::Ro`].
    pub slice: Vec<String>,
}

impl WorkspaceMode {
    /// Whether each session has a tree of its own below the state directory.
    #[must_use]
    pub const fn is_per_session(self) -> bool {
        matches!(self, Self::Copy | Self::Worktree)
    }
}

/// What a mask hides that is not said otherwise: the names of secrets that the policies built in
/// deny to every tool. Certificates of authorities are public, and programs need them.
pub const DEFAULT_MASK: [&str; 5] = [
    "**/.env",
    "**/*.pem",
    "**/id_rsa*",
    "**/id_ed25519*",
    "!**/cacert.pem",
];

/// `env = { pass, set, path_add }`.
#[derive(Debug, Clone, Default)]
pub struct Env {
    /// Names passed from the supervisor's environment, if set there.
    pub pass: Vec<String>,
    /// Values set.
    pub set: BTreeMap<String, String>,
    /// Values set that stand elsewhere, never in the file.
    pub secrets: BTreeMap<String, Secret>,
    /// Directories put before the child's PATH.
    pub path_add: Vec<PathBuf>,
}

/// `restart = { … }`.
#[derive(Debug, Clone)]
pub struct Restart {
    /// Which ends restart.
    pub kind: RestartKind,
    /// Failures in the window before the slot parks; 0: the first failure parks.
    pub budget: u32,
    /// The window.
    pub window: Duration,
    /// The first backoff's upper bound.
    pub base: Duration,
    /// The largest backoff's upper bound.
    pub max: Duration,
    /// A child that lived this long resets the backoff.
    pub reset_after: Duration,
    /// What becomes of the task.
    pub on_crash: OnCrash,
    /// Exit codes that park the slot instead of restarting it.
    pub never_codes: Vec<i32>,
}

/// `timeouts = { … }`. `None` is `"none"`.
#[derive(Debug, Clone)]
pub struct Timeouts {
    /// From spawn to ready.
    pub handshake: Option<Duration>,
    /// A whole turn.
    pub turn: Option<Duration>,
    /// No byte, no open tool call, no open ask for this long in a turn.
    pub silence: Option<Duration>,
    /// From a cancel to the stop ladder.
    pub cancel: Duration,
    /// From a request of ours to its reply, where it is no prompt.
    pub control: Option<Duration>,
    /// Between turns, from the last word of the agent to a request that it must answer.
    pub keepalive: Option<Duration>,
    /// From the end of a slot's last turn until its child is stopped; the next task brings it back.
    pub idle: Option<Duration>,
}

/// `stop = { … }`: how long each step of the ladder waits for the child's end.
#[derive(Debug, Clone, Copy)]
pub struct StopTimeouts {
    /// After the dialect's goodbye.
    pub goodbye: Duration,
    /// After its stdin was closed.
    pub eof: Duration,
    /// After SIGINT.
    pub int: Duration,
    /// After SIGTERM.
    pub term: Duration,
}

/// `rate_limit = { … }`: the pauses of a pool whose provider limits its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateLimit {
    /// The first pause, where the provider announces none.
    pub pause: Duration,
    /// The longest pause, where the provider announces none.
    pub max: Duration,
    /// For how long, in a row, tasks go back to their queue; then they end `failed`.
    pub give_up: Duration,
}
