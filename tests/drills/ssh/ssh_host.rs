//! A far end: an sshd, a user of its own, and what that user has.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::drill::{descendants, eventually, is_alive};

/// The user at the far end; nobody's uid on this host.
pub(crate) const FAR_UID: u32 = 61_234;

/// A far end that goes with the test.
pub(crate) struct SshHost {
    dir: tempfile::TempDir,
    sshd: Child,
    pub(crate) port: u16,
}

fn tools() -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/ssh");
    assert!(
        tools.join("sshd").exists(),
        "no {}/sshd: `tests/run ssh` unpacks it there",
        tools.display()
    );
    tools
}

fn keygen(file: &Path) {
    let status = Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-f"])
        .arg(file)
        .status();
    assert!(status.expect("ssh-keygen").success());
}

impl SshHost {
    pub(crate) fn start() -> Self {
        // A port that was free may be somebody's in the next moment: then another one is tried.
        let far = (0..5).find_map(|_| Self::started());
        far.expect("a port that stays free")
    }

    /// `None`: somebody took its port.
    fn started() -> Option<Self> {
        assert!(
            rustix::process::geteuid().is_root(),
            "run this as root: sshd is shown a list of accounts of its own"
        );
        let dir = tempfile::Builder::new()
            .prefix("marshal-far-")
            .tempdir()
            .expect("a directory");
        let open = |path: &Path| {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
        };
        open(dir.path());
        let path = |name: &str| dir.path().join(name);
        for key in ["host_key", "key", "other_key"] {
            keygen(&path(key));
        }
        let home = path("home");
        for below in ["", "work", ".local", ".local/bin", "agent-home"] {
            fs::create_dir(home.join(below)).expect("a directory");
            chown(home.join(below), Some(FAR_UID), Some(FAR_UID)).expect("chown");
        }
        symlink(
            env!("CARGO_BIN_EXE_marshal"),
            home.join(".local/bin/marshal"),
        )
        .expect("a link");
        fs::write(home.join("work/README.md"), "# Far away\n").expect("README.md");
        fs::copy(path("key.pub"), path("authorized_keys")).expect("authorized_keys");
        let port = {
            let free = TcpListener::bind("127.0.0.1:0").expect("a port");
            free.local_addr().expect("an address").port()
        };
        let public = fs::read_to_string(path("host_key.pub")).expect("host_key.pub");
        fs::write(path("known_hosts"), format!("[127.0.0.1]:{port} {public}"))
            .expect("known_hosts");
        let other = fs::read_to_string(path("other_key.pub")).expect("other_key.pub");
        fs::write(path("other_hosts"), format!("[127.0.0.1]:{port} {other}")).expect("other_hosts");
        fs::write(path("no_hosts"), "").expect("no_hosts");
        let lines = format!(
            "root:x:0:0:root:/root:/bin/sh\nsshd:x:61233:65534::/:/usr/sbin/nologin\nfar:*:{FAR_UID}:{FAR_UID}::{}:/bin/sh\n",
            home.display()
        );
        fs::write(path("passwd"), lines).expect("passwd");
        fs::write(
            path("group"),
            format!("root:x:0:\nnogroup:x:65534:\nfar:x:{FAR_UID}:\n"),
        )
        .expect("group");
        let config = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {0}/host_key\nAuthorizedKeysFile {0}/authorized_keys\n\
             UsePAM no\nPasswordAuthentication no\nStrictModes no\nPidFile none\nPrintMotd no\nAllowUsers far\n\
             LogLevel VERBOSE\n",
            dir.path().display()
        );
        fs::write(path("sshd_config"), config).expect("sshd_config");
        let mut far = Self {
            sshd: sshd(dir.path()),
            dir,
            port,
        };
        let mut is_taken = false;
        eventually(Duration::from_secs(60), "sshd listens", || {
            if let Ok(Some(status)) = far.sshd.try_wait() {
                is_taken = far.log().contains("Address already in use");
                assert!(is_taken, "sshd ended with {status}: {}", far.log());
                return true;
            }
            far.log().contains("Server listening")
        });
        (!is_taken).then_some(far)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.path("home/work")
    }

    /// What sshd has said.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("sshd.log")).unwrap_or_default()
    }

    /// How often somebody connected.
    pub(crate) fn connections(&self) -> usize {
        self.log().matches("Connection from 127.0.0.1").count()
    }

    /// A pool of one slot at this far end; `table` are more keys of `ssh`, `keys` more of the pool.
    pub(crate) fn pool(&self, table: &str, keys: &str) -> String {
        format!(
            "[pool.far]\ncommand = [\"marshal\", \"script-agent\", \"--dialect\", \"acp\"]\ndialect = \"acp\"\n\
             launcher = \"ssh\"\n[pool.far.ssh]\nhost = \"127.0.0.1\"\nuser = \"far\"\nport = {}\nworkspace = {:?}\n\
             {table}\n[pool.far.env]\nset = {{ DRILL = \"MARK\" }}\n{keys}\n",
            self.port,
            self.work().display().to_string(),
        )
    }

    /// The two keys that let a pool in.
    pub(crate) fn keys(&self) -> String {
        self.keys_of("key", "known_hosts")
    }

    pub(crate) fn keys_of(&self, identity: &str, hosts: &str) -> String {
        format!(
            "identity_file = {:?}\nknown_hosts = {:?}",
            self.path(identity).display().to_string(),
            self.path(hosts).display().to_string()
        )
    }

    /// The processes of sshd that serve a connection: not what they started.
    pub(crate) fn sessions(&self) -> Vec<u32> {
        let below = descendants(self.sshd.id());
        let is_session = |pid: &u32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.starts_with("sshd: far")
        };
        below.into_iter().filter(is_session).collect()
    }

    /// Sends a signal to all of them.
    pub(crate) fn signal_sessions(&self, name: &str) {
        let sessions = self.sessions();
        assert!(!sessions.is_empty(), "nobody is connected: {}", self.log());
        for pid in sessions {
            signal(pid, name);
        }
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .stderr(Stdio::null())
        .status();
}

/// sshd, in a mount namespace of its own where its accounts stand and `/run` is empty.
fn sshd(dir: &Path) -> Child {
    let tools = tools();
    let log = fs::File::create(dir.join("sshd.log")).expect("sshd.log");
    let script = "mount --bind \"$1/passwd\" /etc/passwd && mount --bind \"$1/group\" /etc/group && \
        mount -t tmpfs -o mode=755 none /run && mkdir -m 755 /run/sshd && \
        exec \"$2/sshd\" -D -e -f \"$1/sshd_config\"";
    Command::new("unshare")
        .args([
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .arg(dir)
        .arg(&tools)
        .env("LD_LIBRARY_PATH", &tools)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .expect("unshare")
}

impl Drop for SshHost {
    fn drop(&mut self) {
        let below = descendants(self.sshd.id());
        let _ = self.sshd.kill();
        let _ = self.sshd.wait();
        for pid in below.into_iter().filter(|pid| is_alive(*pid)) {
            signal(pid, "CONT");
            signal(pid, "KILL");
        }
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "--- sshd\n{}", self.log());
        }
    }
}
