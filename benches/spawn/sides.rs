//! The ways to start a `cat`: bare, `bwrap`, and marshal's sandbox with either of its binaries.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use marshal_config::{Config, DEFAULT, Network, Origin, StopTimeouts};
use marshal_launch::{LaunchPlan, LaunchedChild, ProcessLimits, SandboxSpec, Spawner, keep};
use marshal_sandbox::{self as sandbox, HostIds, SandboxRequest, ShimPlan, Tree};
use marshal_wire::shim::MountAccess;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::Failure;

/// The uid of agents if the bench runs as root; no user of the host has it.
const SLOT_UID: u32 = 2_000_100;
const LINE: &[u8] = b"a line\n";
const CAT: &str = "/usr/bin/cat";
/// The timeout of a start.
const START: Duration = Duration::from_secs(30);

/// A directory on disk, and the programs that are started in it.
pub(crate) struct House {
    dir: tempfile::TempDir,
    marshal: PathBuf,
    plan: LaunchPlan,
}

/// A way to start `cat`.
pub(crate) enum Side {
    /// A program of the host, and its arguments.
    Command(&'static str, Vec<String>),
    /// The sandbox of the profile.
    Marshal(&'static str, Spawner, Box<LaunchPlan>),
}

enum Running {
    Command(Child),
    Marshal(Box<LaunchedChild>),
}

/// The ids of agents.
pub(crate) fn own_ids() -> HostIds {
    let uid = rustix::process::geteuid();
    if uid.is_root() {
        HostIds::Root { slot_uid: SLOT_UID }
    } else {
        let (uid, gid) = (uid.as_raw(), rustix::process::getegid().as_raw());
        HostIds::Own { uid, gid }
    }
}

impl House {
    pub(crate) fn new(marshal: &Path, profile: &str) -> Result<Self, Failure> {
        let dir = tempfile::Builder::new()
            .prefix("spawn")
            .tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
        let ids = own_ids();
        let config = Config::parse(DEFAULT, &Origin::built_in(dir.path().to_owned()))?;
        let profile = config
            .sandboxes
            .get(profile)
            .ok_or_else(|| format!("no profile {profile:?}"))?;
        let tree = |name: &str| -> Result<Tree, Failure> {
            let path = dir.path().join(name);
            fs::create_dir(&path)?;
            let owner = ids.uid_and_gid();
            chown(&path, Some(owner.0), Some(owner.1))?;
            Ok(Tree {
                path,
                owner,
                access: MountAccess::Rw,
                identity: None,
            })
        };
        let sandbox_spec: ShimPlan = sandbox::plan(&SandboxRequest {
            network: Network::None,
            home: Some(tree("home")?),
            workspace: Some(tree("workspace")?),
            hostname: "bench",
            ..sandbox::probe_request(profile, ids)
        })?;
        let limits: ProcessLimits = sandbox::limits_of(profile);
        Ok(Self {
            plan: LaunchPlan {
                argv: vec![CAT.to_owned()],
                env: vec![("PATH".to_owned(), "/usr/bin:/bin".to_owned())],
                cwd: sandbox::WORKSPACE_INSIDE.to_owned(),
                limits,
                sandbox: SandboxSpec::Shim(Box::new(sandbox_spec)),
                preamble: Vec::new(),
            },
            marshal: marshal.to_owned(),
            dir,
        })
    }

    /// All sides; `bwrap` only if it is installed.
    pub(crate) fn sides(&self) -> Result<Vec<Side>, Failure> {
        let mut sides = vec![Side::Command("bare", vec![CAT.to_owned()])];
        if Path::new("/usr/bin/bwrap").exists() {
            sides.push(Side::Command("bwrap", self.bwrap()));
        }
        let spawner = Spawner::with_executable(self.marshal.clone(), marshal::BUILD)?;
        let plan = || Box::new(self.plan.clone());
        sides.push(Side::Marshal("marshal", spawner, plan()));
        // A directory without the small binary.
        let alone = self.dir.path().join("alone");
        fs::create_dir(&alone)?;
        let program = alone.join("marshal");
        fs::copy(&self.marshal, &program)?;
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
        let spawner = Spawner::with_executable(program, marshal::BUILD)?;
        sides.push(Side::Marshal("marshal-without-shim", spawner, plan()));
        Ok(sides)
    }

    /// The same view, as far as `bwrap` supports it: no uid of its own, no limit of inodes, a whole
    /// `/proc`.
    fn bwrap(&self) -> Vec<String> {
        let path = |name: &str| self.dir.path().join(name).display().to_string();
        let mut words: Vec<String> = [
            "/usr/bin/bwrap",
            "--unshare-all",
            "--unshare-user",
            "--disable-userns",
            "--uid",
            "1000",
            "--gid",
            "1000",
            "--new-session",
            "--die-with-parent",
            "--cap-drop",
            "ALL",
            "--clearenv",
            "--setenv",
            "PATH",
            "/usr/bin:/bin",
            "--hostname",
            "bench",
            "--ro-bind",
            "/usr",
            "/usr",
        ]
        .map(str::to_owned)
        .to_vec();
        for (to, link) in [
            ("usr/bin", "/bin"),
            ("usr/sbin", "/sbin"),
            ("usr/lib", "/lib"),
            ("usr/lib64", "/lib64"),
        ] {
            words.extend(["--symlink", to, link].map(str::to_owned));
        }
        for name in [
            "ssl",
            "alternatives",
            "ld.so.cache",
            "nsswitch.conf",
            "localtime",
        ] {
            let file = format!("/etc/{name}");
            words.extend(["--ro-bind-try".to_owned(), file.clone(), file]);
        }
        words.extend(["--proc", "/proc", "--dev", "/dev"].map(str::to_owned));
        words.extend(["--size", "268435456", "--tmpfs", "/tmp"].map(str::to_owned));
        for (name, inside) in [
            ("home", sandbox::HOME_INSIDE),
            ("workspace", sandbox::WORKSPACE_INSIDE),
        ] {
            words.extend(["--bind".to_owned(), path(name), inside.to_owned()]);
        }
        let marshal = self.marshal.display().to_string();
        words.extend([
            "--ro-bind".to_owned(),
            marshal,
            sandbox::MARSHAL_INSIDE.to_owned(),
        ]);
        words
            .extend(["--chdir", sandbox::WORKSPACE_INSIDE, "--remount-ro", "/"].map(str::to_owned));
        words.push(CAT.to_owned());
        words
    }
}

impl Side {
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Command(name, _) | Self::Marshal(name, ..) => name,
        }
    }

    async fn start(&self) -> Result<Running, Failure> {
        match self {
            Self::Command(_, words) => {
                let (program, arguments) = words.split_first().ok_or("no program")?;
                let child = Command::new(program)
                    .args(arguments)
                    .env_clear()
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    .spawn()?;
                Ok(Running::Command(child))
            }
            Self::Marshal(_, spawner, plan) => {
                let launched = spawner.spawn((**plan).clone()).await?;
                Ok(Running::Marshal(Box::new(launched)))
            }
        }
    }

    /// One round: the time until the first byte returns, and until everything has ended.
    pub(crate) async fn once(&self) -> Result<(Duration, Duration), Failure> {
        let begin = Instant::now();
        let mut running = self.start().await?;
        running.echo().await?;
        let first_byte = begin.elapsed();
        running.end().await?;
        Ok((first_byte, begin.elapsed()))
    }

    /// The number of helpers above each of this many children, and their proportional memory, which
    /// only root can read.
    pub(crate) async fn helpers(&self, children: u32) -> Result<(f64, f64), Failure> {
        let mut all = Vec::new();
        for _ in 0..children {
            let mut running = self.start().await?;
            running.echo().await?;
            all.push(running);
        }
        let (mut helpers, mut pss) = (0, 0);
        for running in &all {
            // Above the agent, which is the last one in the chain.
            let mut line = vec![running.pid()];
            while let Some(child) = line.last().and_then(|pid| child_of(*pid)) {
                line.push(child);
            }
            line.pop();
            helpers += line.len();
            pss += line.iter().filter_map(|pid| pss_bytes(*pid)).sum::<u64>();
        }
        for running in all {
            running.end().await?;
        }
        let each = f64::from(children);
        Ok((helpers as f64 / each, pss as f64 / each))
    }
}

impl Running {
    fn pid(&self) -> u32 {
        match self {
            Self::Command(child) => child.id().unwrap_or(0),
            Self::Marshal(launched) => launched.pid,
        }
    }

    /// Writes a line and reads its first byte back.
    async fn echo(&mut self) -> Result<(), Failure> {
        let mut byte = [0];
        let both = async {
            match self {
                Self::Command(child) => {
                    child
                        .stdin
                        .as_mut()
                        .ok_or("no stdin")?
                        .write_all(LINE)
                        .await?;
                    child
                        .stdout
                        .as_mut()
                        .ok_or("no stdout")?
                        .read_exact(&mut byte)
                        .await?;
                }
                Self::Marshal(launched) => {
                    launched.stdin.write_all(LINE).await?;
                    launched.stdout.read_exact(&mut byte).await?;
                }
            }
            Ok::<(), Failure>(())
        };
        tokio::time::timeout(START, both).await?
    }

    async fn end(self) -> Result<(), Failure> {
        match self {
            Self::Command(mut child) => {
                drop(child.stdin.take());
                child.wait().await?;
            }
            Self::Marshal(launched) => {
                drop(launched.stdin);
                let waits = StopTimeouts {
                    goodbye: Duration::ZERO,
                    eof: START,
                    int: START,
                    term: START,
                };
                let (_keeper, ended) = keep(launched.process, waits);
                ended.await?;
            }
        }
        Ok(())
    }
}

fn child_of(pid: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_ascii_whitespace().next()?.parse().ok()
}

fn pss_bytes(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
