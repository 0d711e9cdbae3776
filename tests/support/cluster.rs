//! A PostgreSQL server for the tests: Debian's program with a directory, a Unix socket and a
//! loopback port of its own. It ends together with the process that started it, however that ends.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The timeout of each step, also on a loaded machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A server's directory, and the running server.
pub(crate) struct Cluster {
    dir: tempfile::TempDir,
    bin: PathBuf,
    port: u16,
    running: Option<Running>,
}

/// The shell that ends the server when its input ends.
struct Running {
    shell: Child,
    input: Option<ChildStdin>,
}

impl Cluster {
    pub(crate) fn new(password: &str) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("mpg")
            .tempdir_in("/tmp")
            .expect("a directory");
        let bin = bin();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("mode");
        fs::write(dir.path().join("password"), password).expect("password");
        for name in ["data", "socket"] {
            fs::create_dir(dir.path().join(name)).expect("a directory");
        }
        if rustix::process::geteuid().is_root() {
            for name in ["data", "socket", "password"] {
                let status = Command::new("chown")
                    .arg("postgres")
                    .arg(dir.path().join(name))
                    .status();
                assert!(status.expect("chown").success());
            }
        }
        let done = as_server(&bin.join("initdb"))
            .args(["--no-sync", "--locale=C", "-E", "UTF8", "-U", "tester"])
            .args(["--auth-local=trust", "--auth-host=scram-sha-256"])
            .arg("--pwfile")
            .arg(dir.path().join("password"))
            .arg("-D")
            .arg(dir.path().join("data"))
            .current_dir("/")
            .output()
            .expect("initdb of Debian's postgresql: run `tests/run postgres`");
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        let mut cluster = Self {
            dir,
            bin,
            port: 0,
            running: None,
        };
        cluster.start();
        cluster
    }

    /// Starts the server and waits until it accepts connections. Retries with another port if that
    /// one is taken.
    pub(crate) fn start(&mut self) {
        for _ in 0..5 {
            if self.port == 0 {
                self.port = free_port();
            }
            if self.try_start() {
                return;
            }
            self.port = 0;
        }
        panic!("no server: {}", self.log());
    }

    fn try_start(&mut self) -> bool {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.dir.path().join("log"))
            .expect("a log");
        // The end of input without a word means that the test's process has ended: nothing may
        // outlive it.
        let script = "\"$@\" </dev/null & pid=$!; \
            { if read -r how; then kill -INT $pid; else \
              kill -QUIT $pid; while kill -0 $pid; do sleep 0.1; done; rm -rf -- \"$MARSHAL_TEST_DIR\"; fi; } <&3 & \
            exec 3<&-; wait $pid";
        let server = as_server(&self.bin.join("postgres"));
        let mut shell = Command::new("/bin/sh")
            .args(["-c", &format!("exec 3<&0; {script}"), "sh"])
            .arg(server.get_program())
            .args(server.get_args())
            .arg("-D")
            .arg(self.dir.path().join("data"))
            .arg("-k")
            .arg(self.dir.path().join("socket"))
            .args(["-h", "127.0.0.1", "-p", &self.port.to_string()])
            .args(["-c", "shared_buffers=16MB", "-c", "max_connections=90"])
            .args(["-c", "fsync=off", "-c", "dynamic_shared_memory_type=mmap"])
            .current_dir("/")
            .env("MARSHAL_TEST_DIR", self.dir.path())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a log"))
            .stderr(log)
            .spawn()
            .expect("sh");
        let mut input = shell.stdin.take();
        let until = Instant::now() + LONG;
        while Instant::now() < until {
            if shell.try_wait().expect("wait").is_some() {
                stop_word(&mut input);
                shell.wait().expect("wait");
                return false;
            }
            let ready = Command::new(self.bin.join("pg_isready"))
                .args(["-q", "-h"])
                .arg(self.dir.path().join("socket"))
                .args(["-p", &self.port.to_string()])
                .status();
            if ready.expect("pg_isready").success() {
                self.running = Some(Running { shell, input });
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        stop_word(&mut input);
        shell.wait().expect("wait");
        panic!("the server takes nobody: {}", self.log());
    }

    /// Ends the server and disconnects its clients.
    pub(crate) fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            stop_word(&mut running.input);
            running.shell.wait().expect("wait");
        }
    }

    fn log(&self) -> String {
        let mut text = String::new();
        if let Ok(mut file) = fs::File::open(self.dir.path().join("log")) {
            let _ = file.read_to_string(&mut text);
        }
        text
    }

    /// A connection string for the Unix socket; tables are in the schema of this name.
    pub(crate) fn socket(&self, schema: &str) -> String {
        format!(
            "host={} port={} user=tester dbname=postgres options='-c search_path={schema}'",
            self.dir.path().join("socket").display(),
            self.port
        )
    }

    /// A connection string for the loopback port.
    pub(crate) fn loopback(&self, password: &str) -> String {
        Self::through(self.port, password)
    }

    /// The same, for a port that forwards to the server's.
    pub(crate) fn through(port: u16, password: &str) -> String {
        format!("postgres://tester:{password}@127.0.0.1:{port}/postgres")
    }

    /// The server's loopback port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Executes SQL as the server's owner.
    pub(crate) fn sql(&self, sql: &str) -> String {
        let done = Command::new(self.bin.join("psql"))
            .args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql])
            .arg(self.socket("public"))
            .output()
            .expect("psql");
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    /// Gives the server a certificate and enables TLS.
    pub(crate) fn with_tls(&mut self, certificate: &str, key: &str) {
        for (name, text) in [("server.crt", certificate), ("server.key", key)] {
            let path = self.dir.path().join("data").join(name);
            fs::write(&path, text).expect("written");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("mode");
            if rustix::process::geteuid().is_root() {
                let status = Command::new("chown").arg("postgres").arg(&path).status();
                assert!(status.expect("chown").success());
            }
        }
        self.sql("ALTER SYSTEM SET ssl = on");
        self.stop();
        self.start();
    }

    /// The name of a new schema.
    pub(crate) fn schema(&self) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("s{}", COUNT.fetch_add(1, Ordering::Relaxed));
        self.sql(&format!("CREATE SCHEMA {name}"));
        name
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The server that most tests share. Its shell ends it with this process, and removes nothing else.
pub(crate) fn shared() -> &'static Cluster {
    static SHARED: OnceLock<Cluster> = OnceLock::new();
    SHARED.get_or_init(|| Cluster::new("open-sesame"))
}

/// Makes the shell stop its server in the ordinary way.
fn stop_word(input: &mut Option<ChildStdin>) {
    if let Some(mut input) = input.take() {
        let _ = input.write_all(b"stop\n");
    }
}

/// PostgreSQL refuses to run as root.
fn as_server(program: &Path) -> Command {
    if !rustix::process::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]);
    command.arg(program);
    command
}

/// The directory of the server's programs on Debian.
fn bin() -> PathBuf {
    let versions =
        fs::read_dir("/usr/lib/postgresql").expect("Debian's postgresql: `tests/run postgres`");
    let found = versions.map(|entry| entry.expect("an entry").path().join("bin"));
    found
        .filter(|bin| bin.join("initdb").exists())
        .max()
        .expect("Debian's postgresql: `tests/run postgres`")
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}
