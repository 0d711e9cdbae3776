//! The baseline for idle and killed children: one tokio task a child, nothing else.

use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::Failure;
use crate::figures::{Cost, Figures, Latency, descriptors, resident_bytes};
use crate::load::Load;
use crate::wire::Wire;

/// How long the fleet is idle before it is measured.
const SETTLE: Duration = Duration::from_millis(500);

/// The timeout of each step; when it expires, the run fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// A message from a child's task.
enum News {
    /// The child sent `ready`.
    Ready { slot: usize, pid: u32, at: Instant },
    /// The child was reaped.
    Exited { slot: usize, at: Instant },
}

/// Runs `idle` or `kill`.
pub(crate) fn run(load: &Load, wire: Wire) -> Result<Figures, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        match load {
            Load::Kill { kills, .. } => kill(load, wire, *kills).await,
            _ => idle(load, wire).await,
        }
    })
}

async fn idle(load: &Load, wire: Wire) -> Result<Figures, Failure> {
    let (memory, open) = (resident_bytes()?, descriptors()?);
    let spawning = Instant::now();
    let mut fleet = Fleet::start(load, wire).await?;
    let spawn_s = spawning.elapsed().as_secs_f64();
    tokio::time::sleep(SETTLE).await;
    let children = load.children() as f64;
    let mut figures = Figures::default();
    let cost = Cost::begin();
    tokio::time::sleep(load.watch()).await;
    cost.note(&mut figures, 0);
    figures.note("spawn_s", spawn_s);
    figures.note(
        "rss_bytes_per_child",
        (resident_bytes()? - memory) / children,
    );
    figures.note("descriptors_per_child", (descriptors()? - open) / children);
    fleet.stop().await;
    Ok(figures)
}

async fn kill(load: &Load, wire: Wire, kills: usize) -> Result<Figures, Failure> {
    let mut fleet = Fleet::start(load, wire).await?;
    tokio::time::sleep(SETTLE).await;
    let (mut exit, mut again) = (Latency::default(), Latency::default());
    let cost = Cost::begin();
    for kill in 0..kills {
        let slot = kill % load.children();
        let pid = fleet.pids[slot].ok_or("a child that is not there")?;
        let killed = Instant::now();
        kill_process(pid, Signal::KILL)?;
        loop {
            match fleet.news().await? {
                News::Exited { slot: which, at } if which == slot => {
                    exit.add(at.saturating_duration_since(killed));
                }
                News::Ready {
                    slot: which, at, ..
                } if which == slot => {
                    again.add(at.saturating_duration_since(killed));
                    break;
                }
                _ => return Err("another child changed".into()),
            }
        }
    }
    let mut figures = Figures::default();
    cost.note(&mut figures, kills as u64);
    figures.note_latency("exit_known", &exit);
    figures.note_latency("ready_again", &again);
    fleet.stop().await;
    Ok(figures)
}

/// The children's tasks; each replaces its child when it ends.
struct Fleet {
    tasks: Vec<JoinHandle<Result<(), Failure>>>,
    pids: Vec<Option<Pid>>,
    news: mpsc::Receiver<News>,
}

impl Fleet {
    /// Starts all children and waits until they are ready.
    async fn start(load: &Load, wire: Wire) -> Result<Self, Failure> {
        let (sender, news) = mpsc::channel(64);
        let tasks = (0..load.children())
            .map(|slot| tokio::spawn(keep(slot, load.command(wire), wire, sender.clone())))
            .collect();
        let mut fleet = Self {
            tasks,
            pids: vec![None; load.children()],
            news,
        };
        for _ in 0..load.children() {
            fleet.news().await?;
        }
        Ok(fleet)
    }

    async fn news(&mut self) -> Result<News, Failure> {
        let news = tokio::time::timeout(PATIENCE, self.news.recv())
            .await?
            .ok_or("every task ended")?;
        if let News::Ready { slot, pid, .. } = news {
            self.pids[slot] = Pid::from_raw(i32::try_from(pid)?);
        }
        Ok(news)
    }

    /// Kills all children and waits for the tasks.
    async fn stop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        for task in &mut self.tasks {
            // The task was aborted; its child is killed when it is dropped.
            drop(task.await);
        }
    }
}

/// Restarts one child for ever.
async fn keep(
    slot: usize,
    command: Vec<String>,
    wire: Wire,
    news: mpsc::Sender<News>,
) -> Result<(), Failure> {
    loop {
        let mut child = spawn(&command)?;
        let pid = child.id().ok_or("a child that is gone")?;
        // `wait` would close the child's stdin.
        let mut stdin = child.stdin.take().ok_or("a child without pipes")?;
        if let Some(line) = wire.greeting() {
            stdin.write_all(line.as_bytes()).await?;
        }
        let mut stdout = child.stdout.take().ok_or("a child without pipes")?;
        let mut chunk = vec![0; 4096];
        if stdout.read(&mut chunk).await? > 0 {
            let at = Instant::now();
            news.send(News::Ready { slot, pid, at }).await?;
            // An idle child needs no buffer.
            drop(chunk);
            drain(&mut stdout).await?;
        }
        child.wait().await?;
        drop(stdin);
        let at = Instant::now();
        news.send(News::Exited { slot, at }).await?;
    }
}

fn spawn(command: &[String]) -> Result<Child, Failure> {
    Ok(Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()?)
}

/// Reads until the child's end.
async fn drain(stdout: &mut ChildStdout) -> Result<(), Failure> {
    let mut byte = [0; 64];
    while stdout.read(&mut byte).await? > 0 {}
    Ok(())
}
