//! The checked configuration: what the rest of the program sees of `supervisor.toml`.
//!
//! Everything here is complete and consistent: defaults are filled in, units are parsed, names are
//! resolved and relative paths are absolute. Must not know TOML, spans or files.

mod container;
mod dialect;
mod launcher;
mod sandbox;
mod secret;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use self::sandbox::{Sandbox, Seccomp};
pub use self::secret::{NamedSecret, Secret, SecretSource};
use super::approval::ApprovalConfig;
use super::budget::{PoolBudget, Prices};
pub use super::cache::{Cache, CacheDirs};
use super::delegate::Delegate;
pub use super::egress::{AllowedHost, Egress, EgressTimeouts, check_host_name, proxy_variables};
use super::error::SourceMap;
use super::file_plane::FilePlane;
pub use super::git_route::{Forge, GitRoute, PullRequests, RefPattern, is_plain_ref};
use super::hint::Hints;
use super::hook::Hook;
use super::http::{HttpConfig, NamedToken};
use super::policy_uses::PolicyUses;
pub use super::registry::{HostRegistry, Registry, RegistryAddress};
use super::role::{ChatConfig, RegisteredWorkspace, Role};
pub use super::route::{
    AllowedRequest, CertificateAuthorities, Route, RouteKind, RoutePort, RouteTimeouts, Upstream,
    UpstreamError, fill_routes, is_path_byte, is_plain_path, unknown_route,
};
use super::settings::{ANY_TIME, Integer, Keyword, Size, Switch, Time, TimeOrNone, settings};
pub use super::ssh::{RemoteMode, RemoteNetwork, RemoteSandbox, Ssh};
use super::store::StoreConfig;
use super::template::Template;
use super::timing::ExitCodes;
use super::workspace_branches::Author;
use super::workspace_repos::WorkspaceRepo;
use super::workspace_setup::WorkspaceSetup;
pub use container::{Container, ContainerEngine};
pub use launcher::Launcher;
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
    /// `[container]`; it applies only to pools with [`Launcher::Container`].
    pub container: Container,
    /// `[route.NAME]`, those of well-known providers included.
    pub routes: BTreeMap<String, Route>,
    /// `[egress]`: the defaults for the egress proxy of every pool.
    pub egress: Egress,
    /// `[cache]`: caches of this host whose directory the file names.
    pub caches: CacheDirs,
    /// `[delegate.NAME]`.
    pub delegates: BTreeMap<String, Delegate>,
    /// `[price.MODEL]`: what models cost.
    pub prices: Prices,
    /// `[policy.NAME]` files; the names of the built-in ones are not in it.
    pub policies: BTreeMap<String, PathBuf>,
    /// The name of the site's policy, which applies below every pool's policy; `None` if there is
    /// none.
    pub site_policy: Option<String>,
    /// How else the policies are used: as layers, and with labelled requests.
    pub policy_uses: PolicyUses,
    /// `[hook.NAME]`: who is notified of events.
    pub hooks: Vec<Hook>,
    /// `[[hint]]`: explanations of known messages, the file's own rows and the built-in ones.
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
    /// Notes for the operator: guarantees that a choice weakens, keys without effect. Safe to show.
    pub notes: Vec<String>,
    /// The place of each key in the file, for faults that are found after parsing.
    pub source_map: SourceMap,
}

settings! {
    /// `[supervisor]`.
    #[derive(Debug, Clone)]
    pub struct Supervisor {
        /// The format of the logs.
        log: LogFormat = LogFormat::Auto, Keyword;
        /// The limit of children at the same time.
        max_children: u16 = 64, Integer(1..=limits::MAX_CHILDREN);
        /// How many denied tasks in a row pause a run; 0: none do.
        pause_after_denied: u32 = 5, Integer(0..=1_000);
        ;
        /// Where the journal, homes and copies live; `None`: `$STATE_DIRECTORY`, else
        /// `$XDG_STATE_HOME/marshal`, else `~/.local/state/marshal`, resolved at the command line.
        state_dir: Option<PathBuf> = None;
        /// The address of the HTTP listener: a loopback address, unless `[http]` has a certificate or
        /// allows plain HTTP.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 7117));
        /// The journal's retention and limits.
        journal: JournalRetention = JournalRetention::default();
    }
}

impl Supervisor {
    /// How many denied tasks in a row pause a run; `None`: none do.
    #[must_use]
    pub fn pause_after_denied(&self) -> Option<u32> {
        Some(self.pause_after_denied).filter(|count| *count > 0)
    }
}

settings! {
    /// `[supervisor.journal]`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct JournalRetention {
        /// How long a session is kept after its end; `None` keeps it forever.
        keep: Option<Duration> = Some(limits::JOURNAL_RETENTION), TimeOrNone(SECOND..=limits::CONFIG_DURATION);
        /// The size of the database in bytes above which the oldest sessions are removed early.
        max_size: u64 = limits::JOURNAL_BYTES, Size(DATABASE_BYTES);
        /// The limit of event bodies of one session, in bytes.
        session_max: u64 = limits::SESSION_JOURNAL_BYTES, Size(DATABASE_BYTES);
        /// Free disk space in bytes below which no new work is accepted.
        min_free: u64 = limits::JOURNAL_FREE_BYTES, Size(0..=1 << 50);
    }
}

const SECOND: Duration = Duration::from_secs(1);

/// A database cannot be smaller than its own overhead.
const DATABASE_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 50;

string_enum!(
    /// The format of the logs.
    LogFormat {
        /// `human` on a terminal, otherwise JSON.
        Auto = "auto",
        /// Plain lines for people.
        Human = "human",
        /// One JSON object a line.
        Json = "json",
    }
);

string_enum!(
    /// What a child reaches.
    Network {
        /// Its own loopback only.
        None = "none",
        /// Its own loopback, with one port for each route.
        Routes = "routes",
        /// Its own loopback, with one port for each route and one for the egress proxy.
        Proxy = "proxy",
        /// The host's network; `sandbox_gaps` lists it.
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
        /// The directory itself, writable.
        Rw = "rw",
        /// An overlay: a writable view of the directory whose changes are stored elsewhere.
        Overlay = "overlay",
        /// Each task works in its own clone, which returns a branch as a bundle.
        Worktree = "worktree",
    }
);

string_enum!(
    /// Which ends restart a slot's child.
    RestartKind {
        /// Every end.
        Permanent = "permanent",
        /// Every unexpected end.
        Transient = "transient",
        /// No end.
        Temporary = "temporary",
    }
);

string_enum!(
    /// What happens to a task whose child died during its turn.
    OnCrash {
        /// It ends `lost`.
        Report = "report",
        /// It ends `lost`, and the slot's session is loaded again in a new child, for the slot's
        /// next task.
        Resume = "resume",
        /// It is sent again in a fresh session, up to `attempts` times in all.
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
    /// What protects the host from an agent.
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
    /// The directory in which an agent's shell starts a command that names none.
    ShellCwd {
        /// Every command starts in the workspace's root.
        Workspace = "workspace",
        /// Where the previous command of the same turn ended; every turn starts in the root.
        Turn = "turn",
        /// Where the previous command ended.
        Sticky = "sticky",
    }
);

string_enum!(
    /// What follows when a tool call ran without a permission request and the policy denies it.
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
    /// Which tool calls an agent requests permission for. Each preset documents its evidence.
    PermissionCoverage {
        /// Every tool call.
        All = "all",
        /// Some tool calls.
        Some = "some",
        /// No tool call.
        Never = "never",
    }
);

string_enum!(
    /// The protocol that an agent speaks.
    DialectName {
        /// Agent Client Protocol, version 1.
        Acp = "acp",
        /// Claude Code's stream-json.
        Claude = "claude",
        /// `codex app-server`.
        Codex = "codex",
        /// A custom dialect, defined by a table of the configuration.
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
    /// The client methods that the supervisor offers to its agents.
    #[must_use]
    pub fn client_offers(&self) -> ClientCapabilities {
        ClientCapabilities {
            read: self.options.client_fs != ClientFs::None,
            write: self.options.client_fs == ClientFs::Write,
            terminal: self.options.client_terminal,
            elicitation: self.options.client_elicitation,
        }
    }

    /// Whether the supervisor does anything for its agents inside their sandbox.
    #[must_use]
    pub fn needs_sandbox_entry(&self) -> bool {
        self.client_offers().needs_sandbox() || !self.engine_tools.is_empty()
    }
}

string_enum!(
    /// Which files an agent may have its client read and write.
    ClientFs {
        /// No files: the methods are not offered.
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

settings! {
    /// The keys of a pool that stand for themselves.
    #[derive(Debug, Clone)]
    pub struct PoolOptions {
        /// How long a session lasts.
        session: SessionScope = SessionScope::Task, Keyword;
        /// How often a task's prompt may be sent.
        attempts: u32 = 1, Integer(1..=limits::ATTEMPTS);
        /// The directory in which its shell starts a command.
        shell_cwd: ShellCwd = ShellCwd::Workspace, Keyword;
        /// What protects the host from the agent.
        guard: Guard = Guard::PolicyAndSandbox, Keyword;
        /// Whether the configuration accepts that the pool's policy lacks `builtin:guard`.
        guard_off: bool = false, Switch;
        /// Whether a changed program of the agent is not started.
        pin: bool = false, Switch;
        /// What follows when an unrequested call would have been denied.
        on_unasked_deny: OnUnaskedDeny = OnUnaskedDeny::Report, Keyword;
        /// Which files the agent may read and write through the supervisor.
        client_fs: ClientFs = ClientFs::None, Keyword;
        /// Whether it may run commands through the supervisor.
        client_terminal: bool = false, Switch;
        /// Whether it may ask a person through the supervisor.
        client_elicitation: bool = false, Switch;
    }
}

/// `[pool.NAME]`.
#[derive(Debug, Clone)]
pub struct Pool {
    /// The keys that stand for themselves.
    pub options: PoolOptions,
    /// The pool's name.
    pub name: PoolName,
    /// The number of slots that receive tasks at the start, from 1.
    pub size: u16,
    /// The number of slots it has, at least `size`: the limit for a resize.
    pub max_size: u16,
    /// The agent: program and arguments. `marshal` as first word is this very binary.
    /// Placeholders (`{session}`, `{workspace}`, `{model}`, `{mode}`) are still in it:
    /// [`Pool::argv`] fills them.
    pub command: Vec<String>,
    /// Arguments added to the command to load an earlier session; `{session}` in it is the
    /// agent's own id of that session. Empty where the protocol loads sessions itself, or cannot.
    pub resume_args: Vec<String>,
    /// The protocol it speaks.
    pub dialect: DialectName,
    /// The definition of a custom dialect; `None` unless the dialect is [`DialectName::Custom`].
    pub custom_dialect: Option<super::CustomDialect>,
    /// The preset's name, or `custom`.
    pub agent: String,
    /// Whether the file names a preset; otherwise the name above is derived from the command.
    pub is_preset: bool,
    /// Whether the file has its own command instead of the preset's.
    pub has_own_command: bool,
    /// Where the preset's program is installed; `None` if the file does not say it.
    pub agent_dir: Option<PathBuf>,
    /// The preset's program as it was found on this host, by whoever looks for files.
    pub program: Option<Program>,
    /// What takes the place of `{model}` in the command; of an ACP agent whose command has none,
    /// what every session is set to.
    pub model: Option<String>,
    /// The same for `{mode}`.
    pub mode: Option<String>,
    /// Settings of an agent that speaks ACP.
    pub acp: Arc<super::acp::AcpSettings>,
    /// How its tool is driven by files; `None` for other agents.
    pub runner: Arc<super::runner::Runner>,
    /// Which tool calls the agent asks for, from its preset or the pool.
    pub permission_requests: PermissionCoverage,
    /// Which fields of a tool call hold command, path and directory.
    pub extractor: Extractor,
    /// How it is started.
    pub launcher: Launcher,
    /// The remote host; `None` unless the launcher is [`Launcher::Ssh`].
    pub ssh: Option<Box<Ssh>>,
    /// Its own image, with [`Launcher::Container`]; `None` means that of `[container]`.
    pub image: Option<String>,
    /// The name of its sandbox profile (a key of [`Config::sandboxes`]). With [`Launcher::None`]
    /// there is no sandbox, and only the profile's limits apply.
    pub sandbox: String,
    /// What it reaches.
    pub network: Network,
    /// Its routes; empty unless the network is [`Network::Routes`] or [`Network::Proxy`].
    pub routes: Vec<RoutePort>,
    /// What it reaches through the egress proxy; `None` unless the network is [`Network::Proxy`].
    pub egress: Option<Arc<Egress>>,
    /// The pauses when a provider limits its requests.
    pub rate_limit: RateLimit,
    /// The name of its policy: a built-in one (`developer`) or a key of [`Config::policies`].
    pub policy: String,
    /// The name of its shadow policy, which is evaluated beside it and decides nothing.
    pub shadow_policy: Option<String>,
    /// The name of its delegate (a key of [`Config::delegates`]), if it has one.
    pub delegate: Option<String>,
    /// Its workspace; with [`Launcher::Ssh`] the one on the remote host
    /// ([`Pool::local_workspace`]).
    pub workspace: Workspace,
    /// Caches of this host that are visible inside, with the directory that the file names; `None`
    /// means the default one of the supervisor's user. Only with [`Launcher::Unshare`].
    pub caches: BTreeMap<Cache, Option<PathBuf>>,
    /// Files that fill a new home: path inside the home -> file on the host.
    pub home_files: BTreeMap<String, PathBuf>,
    /// Files that the preset puts into a new home, where `home_files` has none: path inside the
    /// home -> text.
    pub home_texts: BTreeMap<String, String>,
    /// An argv that must exit 0 after a completed turn; empty: none.
    pub check: Vec<String>,
    /// The child's environment.
    pub env: Env,
    /// When and how a child is restarted.
    pub restart: Restart,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// How tasks and chats share its slots.
    pub shares: SlotShares,
    /// How long running turns may go on after the supervisor began to stop.
    pub drain: Duration,
    /// The stop ladder's waits.
    pub stop: StopTimeouts,
    /// Approvals.
    pub approval: ApprovalConfig,
    /// The pool's budget.
    pub budget: PoolBudget,
    /// The supervisor's own tools that it gets, in their order.
    pub engine_tools: Vec<EngineTool>,
    /// Its file plane, if it has one.
    pub file_plane: Option<FilePlane>,
}

/// A program on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The words that replace the command's first word: the program, or its interpreter and the
    /// program.
    pub argv: Vec<String>,
    /// Paths of the host that it needs, read-only, besides those of the profile.
    pub binds: Vec<PathBuf>,
}

impl Pool {
    /// Its workspace, if that is a directory of this host.
    #[must_use]
    pub fn local_workspace(&self) -> Option<&Path> {
        (!self.launcher.is_remote()).then_some(&*self.workspace.path)
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
    /// Patterns of names that are hidden: see [`DEFAULT_MASK`]. Empty: nothing is hidden.
    pub mask: Vec<String>,
    /// The only visible paths below it; empty: all of it. Only with [`WorkspaceMode::Ro`].
    pub slice: Vec<String>,
    /// The branch, tag or commit that clones start from; `None` means HEAD. Only with
    /// [`WorkspaceMode::Worktree`].
    pub base: Option<String>,
    /// Patterns of files that git does not track and that go along into a copy or clone.
    pub include: Vec<String>,
    /// The command that prepares clones, if there is one. Only with [`WorkspaceMode::Worktree`].
    pub setup: Option<WorkspaceSetup>,
    /// Further directories at places below it. Only in a copy or clone.
    pub repos: Vec<WorkspaceRepo>,
    /// Whether the branch of a task that is done comes into the repository by itself. Only with
    /// [`WorkspaceMode::Worktree`].
    pub branches: bool,
    /// The author of the commits that no agent made; `None`: marshal. Only with
    /// [`WorkspaceMode::Worktree`].
    pub author: Option<Author>,
}

impl WorkspaceMode {
    /// Whether each session has its own directory below the state directory.
    #[must_use]
    pub const fn is_per_session(self) -> bool {
        matches!(self, Self::Copy | Self::Worktree)
    }
}

/// The default mask: the names of secrets that the built-in policies deny to every tool
/// (`builtin:secrets`). Examples of settings hold no secret, and certificates of authorities are
/// public.
pub const DEFAULT_MASK: [&str; 62] = [
    "**/.env",
    "**/.env.*",
    "**/*.pem",
    "**/*.key",
    "**/*.p12",
    "**/*.pfx",
    "**/*.jks",
    "**/id_rsa*",
    "**/id_dsa*",
    "**/id_ecdsa*",
    "**/id_ed25519*",
    "**/.netrc",
    "**/_netrc",
    "**/.pypirc",
    "**/.git-credentials",
    "**/.htpasswd",
    "**/.pgpass",
    "**/.my.cnf",
    "**/.s3cfg",
    "**/.boto",
    "**/.dockercfg",
    "**/.vault-token",
    "**/*.tfstate*",
    "**/.terraformrc",
    "**/*.keystore",
    "**/*.kdbx",
    "**/*.ppk",
    "**/*.p8",
    "**/*.ovpn",
    "**/secring.*",
    "**/kubeconfig*",
    "**/*.kubeconfig",
    "**/credentials.json",
    "**/credentials.tfrc.json",
    "**/application_default_credentials.json",
    "**/service-account*.json",
    "**/service_account*.json",
    "**/*-firebase-adminsdk-*.json",
    "**/client_secret*.json",
    "**/auth.json",
    "**/local.settings.json",
    "**/rclone.conf",
    "**/.sentryclirc",
    "**/.ssh/**",
    "**/.aws/credentials",
    "**/.docker/config.json",
    "**/.azure/accessTokens.json",
    "**/.azure/msal_token_cache*",
    "**/.config/gh/hosts.yml",
    "**/.config/gcloud/**",
    "**/.cargo/credentials",
    "**/.cargo/credentials.toml",
    "**/.gem/credentials",
    "**/.streamlit/secrets.toml",
    "**/.claude/.credentials.json",
    "!**/.env.example*",
    "!**/.env.*.example",
    "!**/.env.sample*",
    "!**/.env.template*",
    "!**/.env.dist",
    "!**/.env.defaults",
    "!**/cacert.pem",
];

/// `env = { pass, set, path_add }`.
#[derive(Debug, Clone, Default)]
pub struct Env {
    /// Names passed from the supervisor's environment, if set there.
    pub pass: Vec<String>,
    /// Values set.
    pub set: BTreeMap<String, String>,
    /// Secrets to set; their values are never in the file.
    pub secrets: BTreeMap<String, Secret>,
    /// Directories put before the child's PATH.
    pub path_add: Vec<PathBuf>,
}

settings! {
    /// `restart = { … }`.
    #[derive(Debug, Clone)]
    pub struct Restart {
        /// Which ends restart.
        kind: RestartKind = RestartKind::Transient, Keyword;
        /// Failures in the window before the slot parks; 0: the first failure parks.
        budget: u32 = 5, Integer(0..=limits::RESTART_BUDGET);
        /// The window.
        window: Duration = 300 * SECOND, Time(ANY_TIME);
        /// The first backoff's upper bound.
        base: Duration = SECOND, Time(ANY_TIME);
        /// The largest backoff's upper bound.
        max: Duration = 60 * SECOND, Time(ANY_TIME);
        /// A child that lived this long resets the backoff.
        reset_after: Duration = 60 * SECOND, Time(ANY_TIME);
        /// What happens to the task.
        on_crash: OnCrash = OnCrash::Report, Keyword;
        /// Exit codes that park the slot instead of restarting it, in order.
        never_codes: Vec<i32> = Vec::new(), ExitCodes;
    }
}

settings! {
    /// `timeouts = { … }`. `None` is `"none"`.
    #[derive(Debug, Clone)]
    pub struct Timeouts {
        /// From spawn to ready.
        handshake: Option<Duration> = Some(60 * SECOND), TimeOrNone(ANY_TIME);
        /// A whole turn.
        turn: Option<Duration> = None, TimeOrNone(ANY_TIME);
        /// The longest time in a turn without output, open tool call or pending request.
        silence: Option<Duration> = Some(600 * SECOND), TimeOrNone(ANY_TIME);
        /// From a cancel to the stop ladder.
        cancel: Duration = 15 * SECOND, Time(ANY_TIME);
        /// From a request of the supervisor, except a prompt, to its reply.
        control: Option<Duration> = Some(60 * SECOND), TimeOrNone(ANY_TIME);
        /// Between turns, from the agent's last output to a request that it must answer.
        keepalive: Option<Duration> = Some(30 * SECOND), TimeOrNone(ANY_TIME);
        /// From the end of a slot's last turn until its idle child is stopped; the next task starts it
        /// again.
        idle: Option<Duration> = None, TimeOrNone(ANY_TIME);
    }
}

settings! {
    /// `stop = { … }`: how long each step of the ladder waits for the child's end.
    #[derive(Debug, Clone, Copy)]
    pub struct StopTimeouts {
        /// After the dialect's goodbye.
        goodbye: Duration = 2 * SECOND, Time(STOP_WAIT);
        /// After its stdin was closed.
        eof: Duration = 6 * SECOND, Time(STOP_WAIT);
        /// After SIGINT.
        int: Duration = 2 * SECOND, Time(STOP_WAIT);
        /// After SIGTERM.
        term: Duration = 5 * SECOND, Time(STOP_WAIT);
    }
}

/// How long one step of a stop may take.
pub(super) const STOP_WAIT: RangeInclusive<Duration> = Duration::ZERO..=limits::STOP_WAIT;

settings! {
    /// `shares = { … }`: how tasks and chats share the slots of a pool while both wait for one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct SlotShares {
        /// The weight of tasks.
        tasks: u16 = 1, Integer(1..=100);
        /// The weight of chats and conversations of editors.
        chats: u16 = 1, Integer(1..=100);
    }
}

settings! {
    /// `rate_limit = { … }`: the pauses of a pool whose provider limits its requests.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RateLimit {
        /// The first pause, where the provider announces none.
        pause: Duration = 15 * SECOND, Time(ANY_TIME);
        /// The longest pause, where the provider announces none.
        max: Duration = 900 * SECOND, Time(ANY_TIME);
        /// How long in a row tasks return to their queue; after that they end `failed`.
        give_up: Duration = 6 * 3600 * SECOND, Time(ANY_TIME);
    }
}
