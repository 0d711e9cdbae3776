//! A world for a test: a network namespace for the supervisor, and another one for everything else,
//! in which every address answers. So nothing has to be allowed that is not allowed elsewhere, and
//! what gets through is seen where it arrives.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use marshal_config::{Config, Origin};
use marshal_model::{EgressResult, PoolName, SlotId};
use marshal_proxy::egress_proxy::{EgressProxy, EgressRecord, Listener, SystemResolver};
use marshal_telemetry::{BuildInfo, Exporter};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Set in the process that is inside of the supervisor's namespace.
const INSIDE: &str = "MARSHAL_TEST_WORLD";

static EXPORTER: OnceLock<Exporter> = OnceLock::new();

/// Runs the test of this name again, alone, in a network and mount namespace of its own; `true`
/// there.
pub(crate) fn enter(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    assert!(
        rustix::process::geteuid().is_root(),
        "these tests make network namespaces: run them as root"
    );
    let this = std::env::current_exe().expect("this program");
    let ran = Command::new("unshare")
        .args(["--net", "--mount", "--propagation", "private"])
        .arg(this)
        .args([
            "--exact",
            &format!("egress::{test}"),
            "--nocapture",
            "--test-threads=1",
        ])
        .env(INSIDE, "1")
        .output()
        .expect("unshare");
    let printed = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{printed}");
    assert!(printed.contains("1 passed"), "it ran nothing: {printed}");
    false
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).status();
    assert!(status.expect("ip").success(), "ip {words}");
}

/// The world outside, and this host's own services.
pub(crate) struct World {
    dir: TempDir,
    internet: Child,
    /// Connections that came to this host's own port 443.
    here: Arc<AtomicUsize>,
    runtime: Runtime,
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.internet.kill();
        let _ = self.internet.wait();
    }
}

impl World {
    /// `zone`: for each name the answers in their order.
    pub(crate) fn new(zone: &Value) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("marshal-egress-")
            .tempdir()
            .expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(dir.path(), readable).expect("readable");
        fs::write(at("zone.json"), zone.to_string()).expect("the zone");
        fs::write(at("log"), "").expect("the log");
        certificates(&dir);
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/parts/egress/internet.py"
        );
        let mut internet = Command::new("unshare")
            .args(["--net", "/usr/bin/python3", script])
            .arg(dir.path())
            .stdin(Stdio::piped())
            .spawn()
            .expect("the internet");
        // It has its namespace when its name is the script's.
        let comm = format!("/proc/{}/comm", internet.id());
        eventually("the internet is there", || {
            fs::read_to_string(&comm).is_ok_and(|name| name.starts_with("python3"))
        });
        ip("link set lo up");
        let pid = internet.id();
        ip(&format!("link add va type veth peer name vb netns {pid}"));
        ip("link set va up");
        ip("addr add 5.5.5.1/24 dev va");
        ip("-6 addr add 2a00:5::1/64 dev va nodad");
        let mut stdin = internet.stdin.take().expect("a pipe");
        stdin.write_all(b"go\n").expect("told");
        let own = own_services();
        fs::write(
            at("resolv.conf"),
            "nameserver 9.9.9.9\nsearch evil.example\noptions timeout:10 attempts:1\n",
        )
        .expect("resolv.conf");
        let mounted = Command::new("mount")
            .arg("--bind")
            .args([at("resolv.conf"), PathBuf::from("/etc/resolv.conf")])
            .status();
        assert!(mounted.expect("mount").success());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        EXPORTER.get_or_init(|| {
            let build = BuildInfo {
                version: "0",
                revision: "0",
                rustc: "0",
            };
            Exporter::install(build).expect("no other recorder")
        });
        let world = Self {
            dir,
            internet,
            here: own,
            runtime,
        };
        eventually("the internet is ready", || !world.log("ready").is_empty());
        ip("route add default via 5.5.5.2");
        ip("-6 route add default via 2a00:5::2");
        world
    }

    /// What was noted of this kind.
    pub(crate) fn log(&self, kind: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path("log")).expect("the log");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        lines.filter(|line| line["kind"] == kind).collect()
    }

    /// Where connections came to, in their order.
    pub(crate) fn reached(&self) -> Vec<String> {
        let reached = self.log("tcp").into_iter();
        reached
            .map(|line| line["to"].as_str().expect("an address").to_owned())
            .collect()
    }

    /// Connections that came to this host itself.
    pub(crate) fn reached_here(&self) -> usize {
        self.here.load(Ordering::SeqCst)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Connects without the proxy: what works where there is no wall.
    #[expect(clippy::unused_self, reason = "without a world there is nobody")]
    pub(crate) fn straight(&self, address: &str) -> bool {
        let address = SocketAddr::new(address.parse().expect("an address"), 443);
        TcpStream::connect_timeout(&address, Duration::from_secs(20)).is_ok()
    }

    /// A proxy with these keys of `egress`, behind a socket of the loopback.
    pub(crate) fn bench(&self, keys: &str) -> Bench {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (proxy, records) = self.serve(keys, move || Listener::tcp(listener));
        Bench {
            address,
            records,
            proxy,
            ca: fs::read(self.path("ca.pem")).expect("ca.pem"),
        }
    }

    /// Serves any listener.
    pub(crate) fn serve(
        &self,
        keys: &str,
        listener: impl FnOnce() -> std::io::Result<Listener>,
    ) -> (EgressProxy, Arc<Mutex<Vec<EgressRecord>>>) {
        let text = format!(
            "[pool.demo]\nagent = \"script\"\nnetwork = \"proxy\"\n[pool.demo.egress]\n{keys}\n"
        );
        let origin = Origin::built_in("/".into());
        let config = Config::parse(&text, &origin).expect("a good file");
        let rules = config.pools[0].egress.clone().expect("a proxy");
        let slot = SlotId {
            pool: PoolName::new("demo").expect("a name"),
            index: 0,
        };
        let records: Arc<Mutex<Vec<EgressRecord>>> = Arc::default();
        let to = Arc::clone(&records);
        let _inside = self.runtime.enter();
        let listener = listener().expect("a listener");
        let sender = Box::new(move |record| to.lock().expect("no panic").push(record));
        let proxy = EgressProxy::start(listener, rules, &slot, Arc::new(SystemResolver), sender);
        (proxy, records)
    }
}

/// This host's own port 443, at all its addresses.
fn own_services() -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let all: [SocketAddr; 2] = [
        (Ipv6Addr::UNSPECIFIED, 443).into(),
        (Ipv4Addr::UNSPECIFIED, 443).into(),
    ];
    for address in all {
        let Ok(listener) = TcpListener::bind(address) else {
            // On most hosts the first one takes both kinds.
            continue;
        };
        let count = Arc::clone(&count);
        std::thread::spawn(move || {
            for _ in listener.incoming() {
                count.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    count
}

fn certificates(dir: &TempDir) {
    let mut params = CertificateParams::new(Vec::new()).expect("parameters");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(DnType::CommonName, "the authority of a test");
    let key = KeyPair::generate().expect("a key");
    let ca = params.self_signed(&key).expect("an authority");
    let issuer = Issuer::new(params, key);
    let names = ["good.example.com", "*.example.com", "*.wild.example.com"];
    let leaf = CertificateParams::new(names.map(str::to_owned).to_vec()).expect("names");
    let leaf_key = KeyPair::generate().expect("a key");
    let signed = leaf.signed_by(&leaf_key, &issuer).expect("signed");
    for (name, text) in [
        ("ca.pem", ca.pem()),
        ("cert.pem", signed.pem()),
        ("key.pem", leaf_key.serialize_pem()),
    ] {
        fs::write(dir.path().join(name), text).expect(name);
    }
}

/// A proxy that is served in this process.
pub(crate) struct Bench {
    pub(crate) address: SocketAddr,
    pub(crate) records: Arc<Mutex<Vec<EgressRecord>>>,
    pub(crate) proxy: EgressProxy,
    ca: Vec<u8>,
}

/// An answer to a CONNECT.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) text: String,
}

impl Bench {
    /// A connection that gives up after 60 s.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        let patience = Some(Duration::from_secs(60));
        stream.set_read_timeout(patience).expect("a timeout");
        stream
    }

    /// Sends bytes as they are; gives the answer's head.
    pub(crate) fn send(&self, bytes: impl AsRef<[u8]>) -> (TcpStream, Reply) {
        let mut stream = self.connect();
        // A refusal may come before all is sent.
        let _ = stream.write_all(bytes.as_ref());
        let reply = read_reply(&mut stream);
        (stream, reply)
    }

    /// Asks for a host.
    pub(crate) fn ask(&self, target: &str) -> (TcpStream, Reply) {
        self.send(format!(
            "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n"
        ))
    }

    /// TLS to a host by the proxy, asking for a name in it.
    pub(crate) fn tls(&self, target: &str, name: &str) -> StreamOwned<ClientConnection, TcpStream> {
        let (stream, reply) = self.ask(target);
        assert_eq!(reply.status, 200, "{target}: {reply:?}");
        StreamOwned::new(client(&self.ca, name), stream)
    }

    /// Gets a page by the proxy.
    pub(crate) fn get(&self, host: &str) -> std::io::Result<String> {
        let mut tls = self.tls(&format!("{host}:443"), host);
        tls.write_all(b"GET / HTTP/1.1\r\n\r\n")?;
        let mut text = String::new();
        let read = tls.read_to_string(&mut text);
        read.or_else(|error| if text.is_empty() { Err(error) } else { Ok(0) })?;
        Ok(text)
    }

    /// How often a result was counted.
    #[expect(clippy::unused_self, reason = "a process has one proxy at a time")]
    pub(crate) fn connection_count(&self, result: EgressResult) -> u64 {
        let series = format!(
            "marshal_egress_connections_total{{pool=\"demo\",result=\"{}\"}} ",
            result.as_str()
        );
        number(&series)
    }

    /// Asserts that a request is refused, with a sentence, for this reason, and reaches nobody.
    pub(crate) fn refuses(
        &self,
        world: &World,
        request: impl AsRef<[u8]>,
        status: u16,
        result: EgressResult,
    ) {
        let shown = String::from_utf8_lossy(request.as_ref()).into_owned();
        let shown: String = shown.chars().take(200).collect();
        let before = (world.reached(), world.reached_here());
        let counted = self.connection_count(result);
        let (_, reply) = self.send(request);
        assert_eq!(reply.status, status, "{shown:?} {reply:?}");
        assert!(reply.text.contains(" marshal: "), "{shown:?} {reply:?}");
        eventually(&shown, || self.connection_count(result) == counted + 1);
        assert_eq!((world.reached(), world.reached_here()), before, "{shown:?}");
    }
}

/// A client of TLS that trusts the test's authority.
pub(crate) fn client(ca: &[u8], name: &str) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    let ca = CertificateDer::from_pem_slice(ca).expect("PEM");
    roots.add(ca).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).expect("a name");
    ClientConnection::new(Arc::new(config), name).expect("a client")
}

/// The bytes of a ClientHello for a name.
pub(crate) fn hello(bench: &Bench, name: &str) -> Vec<u8> {
    let mut client = client(&bench.ca, name);
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).expect("bytes");
    bytes
}

/// A number of the page of metrics.
pub(crate) fn number(series: &str) -> u64 {
    let page = EXPORTER.get().expect("installed").render(
        marshal_telemetry::PageFormat::Prometheus,
        &marshal_telemetry::Samples::default(),
    );
    let found = page.lines().find_map(|line| line.strip_prefix(series));
    found.map_or(0, |value| value.parse().expect("a number"))
}

pub(crate) fn read_reply(stream: &mut (impl Read + ?Sized)) -> Reply {
    let mut text = Vec::new();
    let mut byte = [0];
    while !text.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
        text.push(byte[0]);
    }
    let text = String::from_utf8_lossy(&text).into_owned();
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    Reply {
        status: status.unwrap_or(0),
        text,
    }
}

/// Waits until `check` holds.
pub(crate) fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !check() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The zone that most tests need.
pub(crate) fn zone() -> Value {
    json!({
        "good.example.com": [["8.8.4.4"]],
        "six.example.com": [["2606:4700::1111"]],
        "both.example.com": [["1.0.0.1", "2606:4700::1"]],
        "other.example.com": [["8.8.8.8"]],
        "a.wild.example.com": [["1.1.1.1"]],
        "retry.example.com": [["9.9.9.10"]],
        // What the search list would make of a name that is not there.
        "missing.example.com.evil.example": [["8.8.8.8"]],
    })
}

/// Reads what is left, to its end or its fault.
pub(crate) fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    bytes
}
