//! The cost of a chat's subscribers: the same turn without subscribers and with many, alternating,
//! over real connections to a daemon of its own.
//!
//! Prints one JSON line a turn and one with the ratios. It only reports; no result makes it fail.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The timeout of each step; when it expires, the run fails.
const PATIENCE: Duration = Duration::from_secs(300);
/// The number of connections that are opened at the same time.
const OPENING: usize = 32;

/// Measures a busy chat without subscribers and with many
#[derive(Debug, Parser)]
#[command(name = "chats")]
struct Line {
    /// Number of subscribers
    #[arg(long, default_value_t = 2000)]
    subscribers: usize,
    /// Number of turns of each side
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Bursts in a turn
    #[arg(long, default_value_t = 100)]
    bursts: usize,
    /// Messages in a burst
    #[arg(long, default_value_t = 10)]
    lines: usize,
    /// Milliseconds between two bursts
    #[arg(long, default_value_t = 100)]
    pause_ms: u64,
    /// Set by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

/// A daemon, which ends when this is dropped.
struct Daemon {
    child: Child,
    address: String,
    token: String,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    async fn start(dir: &Path) -> Result<Self, Failure> {
        fs::create_dir(dir.join("project"))?;
        let state = dir.join("state");
        let text = format!(
            "[supervisor]\nstate_dir = {:?}\nlisten = \"127.0.0.1:0\"\n\
             [role.dev]\npool = \"demo\"\n[workspace.main]\npath = \"project\"\n\
             [pool.demo]\ncommand = [\"marshal\", \"script-agent\", \"--dialect\", \"acp\"]\n\
             dialect = \"acp\"\nlauncher = \"none\"\n\
             workspace = {{ path = \"project\", mode = \"copy\" }}\n",
            state.display().to_string()
        );
        let config = dir.join("supervisor.toml");
        fs::write(&config, text)?;
        let reported = dir.join("stderr.log");
        let child = Command::new(env!("CARGO_BIN_EXE_marshal"))
            .arg("--config")
            .arg(&config)
            .arg("up")
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&reported)?)
            .spawn()?;
        let mut daemon = Self {
            child,
            address: String::new(),
            token: String::new(),
        };
        let began = Instant::now();
        while daemon.token.is_empty() {
            if began.elapsed() > PATIENCE {
                return Err(fs::read_to_string(&reported)?.into());
            }
            sleep(Duration::from_millis(20)).await;
            let text = fs::read_to_string(&reported)?;
            let Some((_, rest)) = text.split_once("http://") else {
                continue;
            };
            let fits = |c: char| c.is_ascii_digit() || c == '.' || c == ':';
            let end = rest.find(|c| !fits(c)).unwrap_or(rest.len());
            rest[..end]
                .trim_end_matches('.')
                .clone_into(&mut daemon.address);
            let token = fs::read_to_string(state.join("http.token")).unwrap_or_default();
            token.trim().clone_into(&mut daemon.token);
        }
        Ok(daemon)
    }

    fn head(&self, method: &str, path: &str) -> String {
        format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\nAuthorization: Bearer {}\r\n",
            self.address, self.token
        )
    }

    async fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Value, Failure> {
        let body = body.to_string();
        let mut stream = TcpStream::connect(&self.address).await?;
        let head = self.head(method, path);
        let length = body.len();
        let request = format!(
            "{head}Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        timeout(PATIENCE, stream.read_to_string(&mut answer)).await??;
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        serde_json::from_str(body).map_err(|_| format!("{method} {path}: {answer}").into())
    }

    /// A subscribed connection, after its response head. Retries when the server asks for that.
    async fn follow(&self, chat: &str, after: u64) -> Result<TcpStream, Failure> {
        let began = Instant::now();
        loop {
            let mut stream = TcpStream::connect(&self.address).await?;
            let head = self.head("GET", &format!("{chat}/events?after={after}"));
            stream.write_all(format!("{head}\r\n").as_bytes()).await?;
            let mut answer = Vec::new();
            let mut byte = [0];
            while !answer.ends_with(b"\r\n\r\n") && stream.read(&mut byte).await? > 0 {
                answer.push(byte[0]);
            }
            let answer = String::from_utf8_lossy(&answer);
            if answer.contains(" 200 ") {
                return Ok(stream);
            }
            if began.elapsed() > PATIENCE {
                return Err(answer.into_owned().into());
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// The value of a line of the process's status, in KiB.
    fn status(&self, name: &str) -> Result<u64, Failure> {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let mut words = line.ok_or("no such line")?.split_whitespace();
        Ok(words.find_map(|word| word.parse().ok()).unwrap_or(0))
    }

    /// The CPU time so far, in ticks.
    fn ticks(&self) -> Result<u64, Failure> {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let rest = text.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let times = rest.split(' ').skip(11).take(2);
        Ok(times.filter_map(|word| word.parse::<u64>().ok()).sum())
    }

    /// The turn of a chat with that id, once it has ended.
    async fn wait_for_turn_end(&self, chat: &str, turn: &Value) -> Result<Value, Failure> {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let page = self
                .ask("GET", &format!("{chat}/turns"), &Value::Null)
                .await?;
            let items = page["items"].as_array().cloned().unwrap_or_default();
            let mut items = items.into_iter();
            let found = items.find(|of| of["turn_id"] == *turn && of["state"] == "ended");
            if let Some(found) = found {
                return Ok(found);
            }
            sleep(Duration::from_millis(50)).await;
        }
        Err("a turn did not end".into())
    }
}

/// Reads to the end of a turn. Returns the number of bytes.
async fn read_turn(mut stream: TcpStream) -> Result<u64, Failure> {
    const END: &[u8] = b"event: done";
    let mut bytes = 0;
    let mut piece = vec![0; 8 << 10];
    let mut stored = 0;
    loop {
        let count = stream.read(&mut piece[stored..]).await?;
        if count == 0 {
            return Err("a stream ended before the turn".into());
        }
        bytes += count as u64;
        let all = stored + count;
        if piece[..all].windows(END.len()).any(|of| of == END) {
            return Ok(bytes);
        }
        stored = all.min(END.len());
        piece.copy_within(all - stored..all, 0);
    }
}

/// One turn with this many subscribers.
async fn turn(daemon: &Arc<Daemon>, line: &Line, subscribers: usize) -> Result<Value, Failure> {
    let chats = "/api/v1/workspaces/main/chats";
    let made = daemon
        .ask("POST", chats, &json!({"goal": "say ready"}))
        .await?;
    let chat = format!("{chats}/{}", made["chat_id"].as_str().ok_or("no id")?);
    daemon.wait_for_turn_end(&chat, &made["turn_id"]).await?;
    // From the durable end on: a cursor beyond it would be rejected.
    let end = {
        let mut stream = daemon.follow(&chat, u64::MAX >> 1).await?;
        let mut text = String::new();
        let mut piece = [0; 512];
        while !text.contains("\n\ndata") && !text.contains("rewound") {
            let count = stream.read(&mut piece).await?;
            text.push_str(&String::from_utf8_lossy(&piece[..count]));
        }
        let id = text.split("id: ").nth(1).and_then(|id| id.lines().next());
        let seq = id.and_then(|id| id.split_once('-')).map(|(_, seq)| seq);
        seq.and_then(|seq| seq.parse().ok()).ok_or("no end")?
    };
    let before = daemon.status("VmRSS:")?;
    let mut opening = JoinSet::new();
    let mut streams = Vec::with_capacity(subscribers);
    for _ in 0..subscribers {
        if opening.len() >= OPENING {
            streams.extend(opening.join_next().await.transpose()?.transpose()?);
        }
        let (daemon, chat) = (Arc::clone(daemon), chat.clone());
        opening.spawn(async move { daemon.follow(&chat, end).await });
    }
    while let Some(opened) = opening.join_next().await {
        streams.push(opened??);
    }
    let mut readers = JoinSet::new();
    for stream in streams {
        readers.spawn(read_turn(stream));
    }
    let idle = daemon.status("VmRSS:")?;
    let ticks = daemon.ticks()?;
    let piece = format!("flood {}\nsleep {}ms\n", line.lines, line.pause_ms);
    let content = json!({"content": piece.repeat(line.bursts)});
    let reported = daemon.ask("POST", &chat, &content).await?;
    let ended = daemon
        .wait_for_turn_end(&chat, &reported["turn_id"])
        .await?;
    let over = Instant::now();
    let mut bytes = 0;
    while let Some(read) = timeout(PATIENCE, readers.join_next()).await? {
        bytes += read??;
    }
    let at = |of: &str| -> Result<i64, Failure> {
        let time: jiff::Timestamp = ended[of].as_str().ok_or("no time")?.parse()?;
        Ok(time.as_millisecond())
    };
    Ok(json!({
        "subscribers": subscribers,
        "turn_ms": at("ended_at")? - at("begun_at")?,
        "behind_ms": u64::try_from(over.elapsed().as_millis())?,
        "told_mib": bytes >> 20,
        "cpu_ms": (daemon.ticks()? - ticks) * 10,
        "rss_before_kib": before,
        "rss_following_kib": idle,
        "rss_after_kib": daemon.status("VmRSS:")?,
        "rss_peak_kib": daemon.status("VmHWM:")?,
    }))
}

fn median(values: &[Value], of: &str) -> f64 {
    let mut values: Vec<f64> = values
        .iter()
        .filter_map(|value| value[of].as_f64())
        .collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

async fn run(line: &Line) -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    let current = limit.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..limit })?;
    // Not below /tmp, which may be in memory.
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let daemon = Arc::new(Daemon::start(dir.path()).await?);
    let mut out = std::io::stdout();
    let (mut none, mut many) = (Vec::new(), Vec::new());
    for _ in 0..line.rounds {
        for (count, all) in [(0, &mut none), (line.subscribers, &mut many)] {
            let figures = turn(&daemon, line, count).await?;
            writeln!(out, "{figures}")?;
            all.push(figures);
        }
    }
    // The first run of each side: later ones reuse the memory of earlier ones.
    let each = |of: &str, from: &str| {
        let first = |name: &str| many.first().and_then(|of| of[name].as_f64());
        let grown = first(of).unwrap_or(f64::NAN) - first(from).unwrap_or(f64::NAN);
        grown / f64::from(u32::try_from(line.subscribers).unwrap_or(u32::MAX).max(1))
    };
    let ratio = json!({
        "turn_many_over_none": median(&many, "turn_ms") / median(&none, "turn_ms"),
        "behind_ms": median(&many, "behind_ms"),
        "kib_each_following": each("rss_following_kib", "rss_before_kib"),
        "kib_each_after": each("rss_after_kib", "rss_before_kib"),
    });
    writeln!(out, "{ratio}")?;
    Ok(())
}

fn main() -> ExitCode {
    // Started together with the tests: nothing to do.
    if !std::env::args().any(|arg| arg == "--bench") {
        return ExitCode::SUCCESS;
    }
    let line = Line::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(run(&line)),
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            drop(writeln!(std::io::stderr(), "chats: {error}"));
            ExitCode::FAILURE
        }
    }
}
