//! Where attempts are made: what is attacked, the prober, and the ways to run it.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::children::{self, USER, is_root};
use crate::programs::install;

/// The prober's sources, so that a copy of this test binary has them too.
const SOURCES: [(&str, &str); 8] = [
    ("prober.h", include_str!("prober/prober.h")),
    ("main.c", include_str!("prober/main.c")),
    ("decoys.c", include_str!("prober/decoys.c")),
    ("files.c", include_str!("prober/files.c")),
    ("mounts.c", include_str!("prober/mounts.c")),
    ("procs.c", include_str!("prober/procs.c")),
    ("kernel.c", include_str!("prober/kernel.c")),
    ("terminal.c", include_str!("prober/terminal.c")),
];

/// Who supervises, or who the control is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    Root,
    User,
}

/// One way to build a sandbox.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) who: Who,
    pub(super) profile: &'static str,
    /// `--launcher`, where it is not marshal's own.
    pub(super) launcher: Option<&'static str>,
}

/// An attempt, as the prober lists it.
pub(super) struct Attempt {
    pub(super) name: String,
    pub(super) control: String,
    pub(super) what: String,
}

/// What came of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Outcome {
    Through(String),
    Blocked(String),
    Broken(String),
}

pub(super) type Outcomes = BTreeMap<String, Outcome>;

/// The path of the compiled prober, where there is no compiler.
const PROBER: &str = "MARSHAL_PROBER_UNDER_TEST";

/// The compiled prober; compiled once for a content.
pub(crate) fn prober() -> &'static Path {
    static COMPILED: OnceLock<PathBuf> = OnceLock::new();
    COMPILED.get_or_init(|| {
        if let Some(path) = std::env::var_os(PROBER) {
            return path.into();
        }
        let mut hash = DefaultHasher::new();
        SOURCES.hash(&mut hash);
        // An ordinary user cannot reach the build's directory.
        let dir = if is_root() {
            PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        } else {
            std::env::temp_dir()
        };
        let path = dir.join(format!("prober-{:016x}", hash.finish()));
        if !path.exists() {
            let build = tempfile::tempdir_in(&dir).unwrap();
            for (name, text) in SOURCES {
                fs::write(build.path().join(name), text).unwrap();
            }
            let mut cc = Command::new("cc");
            cc.args(["-static", "-O1", "-o", "prober"]);
            cc.args(
                SOURCES
                    .iter()
                    .map(|(name, _)| name)
                    .filter(|name| **name != "prober.h"),
            );
            let printed = cc.current_dir(build.path()).output().unwrap();
            assert!(
                printed.status.success(),
                "{}",
                String::from_utf8_lossy(&printed.stderr)
            );
            fs::rename(build.path().join("prober"), &path).unwrap();
        }
        path
    })
}

/// All attempts.
pub(super) fn attempts() -> Vec<Attempt> {
    let printed = Command::new(prober()).arg("list").output().unwrap();
    let text = String::from_utf8(printed.stdout).unwrap();
    let attempt = |line: &str| {
        let mut fields = line.split('\t').map(str::to_owned);
        Some(Attempt {
            name: fields.next()?,
            control: fields.next()?,
            what: fields.next()?,
        })
    };
    text.lines().map(|line| attempt(line).unwrap()).collect()
}

/// Reads the prober's lines.
pub(super) fn read(text: &str) -> Outcomes {
    let row = |line: &str| {
        let mut fields = line.trim_end().split('\t');
        let (name, result) = (fields.next()?, fields.next()?);
        let detail = fields.next().unwrap_or_default().to_owned();
        let outcome = match result {
            "through" => Outcome::Through(detail),
            "blocked" => Outcome::Blocked(detail),
            "broken" => Outcome::Broken(detail),
            _ => return None,
        };
        Some((name.to_owned(), outcome))
    };
    text.lines().filter_map(row).collect()
}

/// The mode of a workspace, shown itself and read-only, with a socket in it at which a program of the
/// host listens.
const SERVED: &str = "served";

/// A place with somebody else's workspace, home and state, all with a secret in them.
pub(super) struct Arena {
    who: Who,
    dir: tempfile::TempDir,
    secret: String,
    /// Of programs of the host, in directories that are shown.
    services: Vec<UnixListener>,
}

impl Arena {
    pub(super) fn new(who: Who) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("escapes")
            .tempdir_in("/tmp")
            .unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut arena = Self {
            who,
            dir,
            secret: format!("secret-{}", uuid::Uuid::new_v4().simple()),
            services: Vec::new(),
        };
        for name in [
            "other",
            "other_home",
            "state/homes/other",
            "work",
            "frozen",
            "served",
            "scratch",
            "bin",
        ] {
            fs::create_dir_all(arena.path(name)).unwrap();
        }
        for name in ["other", "other_home", "state/homes/other"] {
            fs::write(arena.path(name).join("secret"), &arena.secret).unwrap();
        }
        fs::write(arena.path("state/decoy.db"), "").unwrap();
        arena.configure(&arena.path("work"));
        arena.workspace("work");
        for name in ["frozen", "served", "scratch"] {
            arena.workspace(name);
            arena.repository(name);
        }
        for name in ["served/service.sock", "scratch/service.sock"] {
            let path = arena.path(name);
            arena.services.push(UnixListener::bind(&path).unwrap());
            fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        }
        for name in [
            "other",
            "other_home",
            "state",
            "state/homes",
            "state/homes/other",
        ] {
            fs::set_permissions(arena.path(name), fs::Permissions::from_mode(0o700)).unwrap();
        }
        // An ordinary user may not be able to reach the build's directory.
        for binary in [
            children::marshal(),
            children::marshal().with_file_name("marshal-shim"),
        ] {
            if let Some(name) = binary.file_name().filter(|_| binary.exists()) {
                let copy = arena.path("bin").join(name);
                install(&copy, fs::File::open(&binary).unwrap());
            }
        }
        if is_root() && who == Who::User {
            give_all(arena.dir.path());
        }
        arena
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A directory as an agent finds it, with the prober in it.
    fn workspace(&self, name: &str) {
        let dir = self.path(name);
        for file in ["file", "other"] {
            fs::write(dir.join(file), "as it was\n").unwrap();
        }
        install(&dir.join("prober"), fs::File::open(prober()).unwrap());
    }

    /// What looks like a repository.
    fn repository(&self, name: &str) {
        let git = self.path(name).join(".git");
        for below in ["hooks", "info"] {
            fs::create_dir_all(git.join(below)).unwrap();
        }
        fs::write(git.join("config"), "as it was\n").unwrap();
    }

    /// Bounds that are quickly reached, and a pool that works there.
    pub(super) fn configure(&self, workspace: &Path) {
        let mut profile = "tmp = { size = \"16M\", inodes = 1000 }\n\
                       limits = { nofile = 256, fsize = \"8M\", pids = 150, memory = \"256M\" }\n"
            .to_owned();
        if children::is_guest() {
            profile.push_str("on_missing = \"degrade\"\nallow_degrade = [\"landlock\"]\n");
        }
        let state = self.path("state").display().to_string();
        let workspace = workspace.display().to_string();
        let store = crate::engines::podman();
        let extra: Vec<String> = store
            .iter()
            .filter(|word| word.starts_with("--") && !word.starts_with("--runtime"))
            .map(|word| format!("{word:?}"))
            .collect();
        let extra = extra.join(", ");
        let text = format!(
            "[supervisor]\nstate_dir = {state:?}\n\
             [pool.demo]\ncommand = [\"marshal\", \"script-agent\", \"--dialect\", \"scaiflux\"]\n\
             dialect = \"scaiflux\"\npolicy = \"developer\"\n\
             workspace = {{ path = {workspace:?}, mode = \"copy\" }}\n\
             [container]\nengine = \"podman\"\nruntime = \"runc\"\n\
             image = \"localhost/marshal-test:1\"\nextra = [{extra}]\n\
             [sandbox.standard]\n{profile}\
             [sandbox.strict]\n{profile}\
             [sandbox.standard-masked]\nproc = \"masked\"\n{profile}\
             [sandbox.strict-masked]\nproc = \"masked\"\n{profile}"
        );
        fs::write(self.path("supervisor.toml"), text).unwrap();
    }

    /// A supervisor, or a program that becomes one, of whoever this is.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = if is_root() && self.who == Who::User {
            self.plain_command(program)
        } else {
            children::supervisor_command(program)
        };
        command
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name == "XDG_RUNTIME_DIR"))
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", self.path("other_home"))
            .current_dir(self.path("scratch"));
        command
    }

    /// Another program of whoever this is.
    fn plain_command(&self, program: &Path) -> Command {
        if !is_root() || self.who == Who::Root {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command
            .args([format!("--reuid={USER}"), format!("--regid={USER}")])
            .arg("--clear-groups")
            .arg(program);
        command
    }

    /// `marshal sandbox exec` with this sandbox, up to the command.
    pub(super) fn sandbox_args(&self, column: &Column, mode: &str) -> Vec<String> {
        let mut words = vec![self.path("bin/marshal").display().to_string()];
        let config = self.path("supervisor.toml").display().to_string();
        let (work, mode) = match mode {
            "ro" => ("frozen", "ro"),
            SERVED => ("served", "ro"),
            mode => ("work", mode),
        };
        let work = self.path(work).display().to_string();
        words.extend(["--config", &config, "sandbox", "exec"].map(str::to_owned));
        words.extend(["--profile", column.profile, "--workspace", &work].map(str::to_owned));
        words.extend(["--mode", mode].map(str::to_owned));
        if let Some(launcher) = column.launcher {
            words.extend(["--launcher", launcher].map(str::to_owned));
        }
        words.push("--".to_owned());
        words
    }

    /// What the prober is told beside what its decoys say.
    pub(super) fn prober_args(&self, scratch: &str) -> Vec<String> {
        let path = |name: &str| self.path(name).display().to_string();
        vec![
            format!("secret={}", self.secret),
            format!("other={}", path("other")),
            format!("other_home={}", path("other_home")),
            format!("state={}", path("state")),
            format!("scratch={scratch}"),
        ]
    }

    /// All attempts inside the sandbox: most in a copy, some on a read-only workspace, some with
    /// all of procfs.
    pub(super) fn attack_all(&self, column: &Column) -> Outcomes {
        let masked = format!("{}-masked", column.profile);
        let masked = Column {
            name: column.name,
            who: column.who,
            profile: masked.leak(),
            launcher: column.launcher,
        };
        let mut outcomes = self.attack(column, "copy", &[]);
        outcomes.extend(self.attack(column, "ro", &["only=ro_"]));
        outcomes.extend(self.attack(&masked, "ro", &["only=masked_"]));
        outcomes.extend(self.attack(column, "ro", &["only=memory_bomb"]));
        outcomes.extend(self.attack(column, SERVED, &["only=service_"]));
        outcomes.extend(super::terminal::attack(self, column));
        outcomes
    }

    fn attack(&self, column: &Column, mode: &str, more: &[&str]) -> Outcomes {
        let decoys = Decoys::start(self, prober_at(self), "");
        let mut words = self.sandbox_args(column, mode);
        // The input ends at once, and a slow machine takes long for all attempts.
        let before_command = words.len() - 1;
        let patience = ["--eof-wait", "10m"].map(str::to_owned);
        words.splice(before_command..before_command, patience);
        words.push("/workspace/prober".to_owned());
        words.extend(self.prober_args("/workspace"));
        words.extend(decoys.told.clone());
        words.extend(more.iter().map(|&word| word.to_owned()));
        // With a descriptor that nobody closed.
        let reported = self
            .command(Path::new("/bin/sh"))
            .args(["-c", "exec 7<\"$1\"; shift; exec \"$@\"", "sh"])
            .arg(self.path("other/secret"))
            .args(&words)
            .stdin(Stdio::piped())
            .output()
            .unwrap();
        let mut outcomes = read(&String::from_utf8_lossy(&reported.stdout));
        if more.contains(&"only=memory_bomb") && reported.status.code() == Some(128 + 9) {
            // The kernel may choose any process of the group, and the prober is one.
            let word = "the agent is killed".to_owned();
            outcomes.insert("memory_bomb".to_owned(), Outcome::Blocked(word));
            return outcomes;
        }
        let refused = String::from_utf8_lossy(&reported.stderr);
        if mode == SERVED
            && reported.status.code() == Some(125)
            && refused.contains("cannot hide files")
        {
            let word = "nothing starts".to_owned();
            outcomes.insert("service_socket".to_owned(), Outcome::Blocked(word));
            return outcomes;
        }
        assert!(
            reported.status.success() && !outcomes.is_empty(),
            "{}: {} after {:?}: {}",
            column.name,
            reported.status,
            String::from_utf8_lossy(&reported.stdout).lines().last(),
            String::from_utf8_lossy(&reported.stderr)
        );
        outcomes
    }

    /// All attempts without a sandbox, in namespaces that are thrown away; for root only.
    pub(super) fn control(&self) -> Outcomes {
        let script = "exec 7<\"$1\"; shift; prober=$1; shift; fifo=$1; shift; \
            \"$prober\" decoys far=\"$FAR\" \"$@\" <\"$fifo\" >\"$fifo.said\" & \
            exec 3>\"$fifo\"; while ! grep -q victim= \"$fifo.said\"; do sleep 0.05; done; \
            for only in '' ro_ masked_ memory_bomb service_; do \
            \"$prober\" control=1 only=$only \"$@\" $(cat \"$fifo.said\") 3>&-; done";
        let fifo = self.path("scratch/fifo");
        rustix::fs::mkfifoat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::Mode::from_raw_mode(0o666),
        )
        .unwrap();
        let mut words = vec![
            "-mpfiun".to_owned(),
            "-C".to_owned(),
            "--mount-proc".to_owned(),
        ];
        if self.who == Who::User {
            chown(&fifo, Some(USER), Some(USER)).unwrap();
            words.extend([
                "setpriv".to_owned(),
                format!("--reuid={USER}"),
                format!("--regid={USER}"),
                "--clear-groups".to_owned(),
            ]);
        }
        words.extend(["sh", "-c", script, "sh"].map(str::to_owned));
        let effects = Command::new("unshare")
            .args(words)
            .arg(self.path("other/secret"))
            .arg(prober_at(self))
            .arg(&fifo)
            .args(self.prober_args(&self.path("scratch").display().to_string()))
            .arg(format!("directory={}", self.path("state").display()))
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin:/bin")
            .env("FAR", if self.who == Who::Root { "1" } else { "" })
            .current_dir(self.path("scratch"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let mut outcomes = read(&String::from_utf8_lossy(&effects.stdout));
        assert!(
            !outcomes.is_empty(),
            "{}",
            String::from_utf8_lossy(&effects.stderr)
        );
        outcomes.extend(super::terminal::control(self));
        outcomes
    }
}

fn prober_at(arena: &Arena) -> &'static Path {
    // The place of the build may be closed to a user; the arena's copy is not.
    arena.path("scratch/prober").leak()
}

fn give_all(dir: &Path) {
    chown(dir, Some(USER), Some(USER)).unwrap();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            give_all(&path);
        } else {
            chown(&path, Some(USER), Some(USER)).unwrap();
        }
    }
}

/// What runs on the host to be attacked; ends when it is dropped.
pub(super) struct Decoys {
    child: Child,
    /// Where they are, for the prober.
    pub(super) told: Vec<String>,
}

impl Decoys {
    fn start(arena: &Arena, prober: &Path, far: &str) -> Self {
        let mut command = arena.plain_command(prober);
        let mut child = command
            .args([
                "decoys",
                &format!("far={far}"),
                &format!("secret={}", arena.secret),
            ])
            .arg(format!("directory={}", arena.path("state").display()))
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("victim="), "the decoys said {line:?}");
        Self {
            told: line.split_ascii_whitespace().map(str::to_owned).collect(),
            child,
        }
    }
}

impl Drop for Decoys {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}
