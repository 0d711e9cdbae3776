//! A route that is served in this process, a provider behind it, and a client as crude as an
//! attacker's.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use marshal_config::{CertificateAuthorities, Config, Origin, Route};
use marshal_model::{PoolName, SlotId};
use marshal_proxy::egress_proxy::EgressRecord;
use marshal_proxy::model_proxy::{ModelProxy, RateLimitWatch, Upstream};
use marshal_telemetry::{BuildInfo, Exporter};
use tokio::runtime::Runtime;

use crate::provider::Provider;

/// The key that must be nowhere but at the provider.
pub(crate) const KEY: &str = "sk-test-0123456789abcdef-the-real-one";

/// Everything that any code of this process logged, at the finest level.
static LOGS: OnceLock<Arc<Mutex<Vec<u8>>>> = OnceLock::new();
static EXPORTER: OnceLock<Exporter> = OnceLock::new();

struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What was logged so far.
pub(crate) fn logs() -> String {
    let logs = LOGS.get().expect("installed").lock().expect("no panic");
    String::from_utf8_lossy(&logs).into_owned()
}

/// The page of metrics.
pub(crate) fn page() -> String {
    EXPORTER.get().expect("installed").render(
        marshal_telemetry::PageFormat::Prometheus,
        &marshal_telemetry::Samples::default(),
    )
}

fn install() {
    LOGS.get_or_init(|| {
        let logs: Arc<Mutex<Vec<u8>>> = Arc::default();
        let to = Arc::clone(&logs);
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || Sink(Arc::clone(&to)))
            .init();
        logs
    });
    EXPORTER.get_or_init(|| {
        let build = BuildInfo {
            version: "0",
            revision: "0",
            rustc: "0",
        };
        Exporter::install(build).expect("no other recorder")
    });
}

/// A route that is served.
pub(crate) struct Bench {
    pub(crate) provider: Provider,
    pub(crate) address: SocketAddr,
    pub(crate) watch: Arc<RateLimitWatch>,
    pub(crate) pool: String,
    /// Hosts that requests to a registry would have led to.
    pub(crate) denied: Arc<Mutex<Vec<EgressRecord>>>,
    relays: Option<ModelProxy>,
    _runtime: Runtime,
}

impl Bench {
    /// `pool` is the test's own, for its metrics; `keys` are lines of `[route.own]`.
    pub(crate) fn new(pool: &str, keys: &str, provider: Provider) -> Self {
        let url = format!("http://{}", provider.address);
        Self::to(pool, &url, keys, None, provider)
    }

    pub(crate) fn to(
        pool: &str,
        url: &str,
        keys: &str,
        ca: Option<&str>,
        provider: Provider,
    ) -> Self {
        Self::with_route(pool, &route(url, keys, ca), provider)
    }

    /// A registry of this kind, with a key; `keys` are further lines of `[route.own]`.
    pub(crate) fn registry(pool: &str, registry: &str, keys: &str, provider: Provider) -> Self {
        let url = format!("http://{}", provider.address);
        let text = format!(
            "kind = \"registry\"\nregistry = \"{registry}\"\nupstream = \"{url}\"\nsecret = \"env:KEY\"\n{keys}"
        );
        Self::with_route(pool, &read_route(&text, None), provider)
    }

    fn with_route(pool: &str, route: &Route, provider: Provider) -> Self {
        install();
        let upstream = Arc::new(Upstream::new(route).expect("a good route"));
        let slot = SlotId {
            pool: PoolName::new(pool).expect("a name"),
            index: 0,
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let watch = Arc::default();
        let denied: Arc<Mutex<Vec<EgressRecord>>> = Arc::default();
        let to = Arc::clone(&denied);
        let tell = Box::new(move |record| to.lock().expect("no panic").push(record));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let relays = {
            let _inside = runtime.enter();
            {
                let purse: Arc<dyn marshal_proxy::model_proxy::UsageMeter> =
                    Arc::new(marshal_proxy::model_proxy::Unmetered);
                ModelProxy::start(
                    vec![listener],
                    &[upstream],
                    &slot,
                    &watch,
                    &purse,
                    tell,
                    None,
                )
            }
        };
        Self {
            provider,
            address,
            watch,
            pool: pool.to_owned(),
            denied,
            relays: Some(relays),
            _runtime: runtime,
        }
    }

    /// Ends the relays, as the child's end does.
    pub(crate) fn end(&mut self) {
        self.relays = None;
    }

    /// A connection that gives up after 60 s.
    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .expect("a timeout");
        stream
    }

    /// Sends bytes as they are, and reads to the end.
    pub(crate) fn send(&self, bytes: impl AsRef<[u8]>) -> Reply {
        let mut stream = self.connect();
        // A refusal may come before all is sent.
        let _ = stream.write_all(bytes.as_ref());
        Reply::read(&mut stream)
    }

    /// A POST of JSON.
    pub(crate) fn post(&self, path: &str, headers: &str, body: &str) -> Reply {
        self.send(post(path, headers, body))
    }

    /// A series of this test's route.
    pub(crate) fn metric(&self, name: &str, label: &str) -> f64 {
        let series = if label.is_empty() {
            format!("{name}{{pool=\"{}\",route=\"own\"}} ", self.pool)
        } else {
            format!("{name}{{pool=\"{}\",route=\"own\",{label}}} ", self.pool)
        };
        let page = page();
        let found = page.lines().find_map(|line| line.strip_prefix(&series));
        found.map_or(0.0, |value| value.parse().expect("a number"))
    }

    /// Asserts that this request was refused with this status and reason, that the answer says why,
    /// and that the provider heard nothing.
    pub(crate) fn refuses(&self, request: impl AsRef<[u8]>, status: u16, reason: &str) {
        let shown = String::from_utf8_lossy(request.as_ref()).into_owned();
        let shown: String = shown.chars().take(300).collect();
        let before = self.provider.got().len();
        let label = format!("reason=\"{reason}\"");
        let counted = self.metric("marshal_route_refused_total", &label);
        let reply = self.send(request);
        assert_eq!(reply.status, status, "{shown}\n{reply:?}");
        let value: serde_json::Value =
            serde_json::from_str(&reply.body).unwrap_or_else(|_| panic!("{shown}\n{reply:?}"));
        // Clients of registries expect another form.
        let message = if let Some(message) = value["error"].as_str() {
            assert_eq!(value["reason"], reason, "{shown}\n{reply:?}");
            message
        } else {
            assert_eq!(
                value["error"]["type"],
                format!("marshal_{reason}"),
                "{shown}\n{reply:?}"
            );
            value["error"]["message"].as_str().expect("a message")
        };
        assert!(message.len() > 20, "{message}");
        assert_eq!(self.provider.got().len(), before, "{shown}");
        eventually(&shown, || {
            self.metric("marshal_route_refused_total", &label) > counted
        });
    }
}

fn route(url: &str, keys: &str, ca: Option<&str>) -> Route {
    let text = format!(
        "upstream = \"{url}\"\nheader = \"x-api-key\"\nsecret = \"env:KEY\"\nallow = [\"POST /v1/messages\", \"GET /v1/models/*\"]\nquery = [\"beta\"]\n{keys}"
    );
    read_route(&text, ca)
}

/// The route of a table with these lines, with the key.
fn read_route(lines: &str, ca: Option<&str>) -> Route {
    let text = format!("[pool.demo]\nagent = \"script\"\n[route.own]\n{lines}\n");
    let origin = Origin {
        file: Some("/etc/x/supervisor.toml".into()),
        dir: "/etc/x".into(),
        is_explicit: true,
    };
    let config = Config::parse(&text, &origin).expect("a good file");
    let mut route = config.routes["own"].clone();
    route.secret = route.secret.map(|secret| secret.with_value(KEY));
    route.ca = ca.map(|pem| CertificateAuthorities {
        path: "/etc/x/ca.pem".into(),
        pem: Some(pem.as_bytes().into()),
    });
    route
}

pub(crate) fn post(path: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nHost: model\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
}

/// An answer, chunks joined.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
    /// It was not cut off.
    pub(crate) is_whole: bool,
}

impl Reply {
    pub(crate) fn read(stream: &mut TcpStream) -> Self {
        let mut bytes = Vec::new();
        let mut chunk = vec![0; 65536];
        loop {
            match stream.read(&mut chunk) {
                Ok(read @ 1..) => bytes.extend_from_slice(&chunk[..read]),
                // A read with a time is broken into when the child of another thread ends while that one
                // starts the next.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                _ => break,
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, rest) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let lower = head.to_ascii_lowercase();
        let (body, is_whole) = if lower.contains("transfer-encoding: chunked") {
            dechunk(rest)
        } else {
            let length = lower
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            let length = length.and_then(|length| length.trim().parse().ok());
            (rest.to_owned(), length == Some(rest.len()))
        };
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        Self {
            status: status.unwrap_or(0),
            head: head.to_owned(),
            body,
            is_whole,
        }
    }
}

fn dechunk(mut rest: &str) -> (String, bool) {
    let mut out = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let Ok(size) = usize::from_str_radix(size, 16) else {
            break;
        };
        if size == 0 {
            return (out, true);
        }
        let Some(piece) = after.get(..size) else {
            break;
        };
        out.push_str(piece);
        rest = after.get(size + 2..).unwrap_or("");
    }
    (out, false)
}

/// Waits until `check` holds.
pub(crate) fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !check() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
