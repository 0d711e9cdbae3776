//! The pushes of a child: the pack of each is unpacked by git in a sandbox of its own, with the
//! slot's uid, without network and without anything of the agent's, and searched here.
//!
//! No secret enters that sandbox: what git prints is read outside. A failure of any kind refuses the
//! push.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};
use uuid::Uuid;

use super::session_tree::{GitSandbox, git_plan};
use super::{SessionDirs, WORKSPACE_INSIDE, blocking, owner};
use crate::setup::{PoolShared, Shared};
use marshal_config::{StopTimeouts, is_likely_secret};
use marshal_launch::{Child, ChildExit};
use marshal_model::limits::{CONCURRENT_PUSHES, PUSH_TIMEOUT, SECRET_MIN_BYTES};
use marshal_model::{ExitStatus, SlotId, untrusted};
use marshal_proxy::git::{PackFault, PackReader, PackSearch};
use marshal_proxy::model_proxy::{PushFault, PushInspector, PushedPack};
use marshal_proxy::route::{KeyForms, KeyGuard};
use marshal_sandbox::workspace::Masks;
use marshal_sandbox::workspace::branch::{self, git};
use marshal_sandbox::workspace::file_list::GitCommand;
use marshal_telemetry::labels::RouteRefusal as Why;

/// Pushes of the whole process that are inspected at the same time.
static PUSHES: Semaphore = Semaphore::const_new(CONCURRENT_PUSHES);

/// Bytes that are read or written at once.
const PIECE: usize = 64 << 10;

/// Bytes of git's own words that are kept.
const WORDS: usize = 4 << 10;

/// The longest first line of git's script.
const LENGTH_DIGITS: usize = 24;

/// Inspects the pushes of a pool's children.
#[derive(Debug)]
pub(crate) struct PackInspector {
    shared: Arc<Shared>,
    pool: Arc<PoolShared>,
}

impl PackInspector {
    pub(crate) const fn new(shared: Arc<Shared>, pool: Arc<PoolShared>) -> Self {
        Self { shared, pool }
    }
}

impl PushInspector for PackInspector {
    fn create_spool(&self) -> io::Result<File> {
        let copies = self.shared.state.copies();
        let name = format!(".push-{}", Uuid::now_v7());
        let flags = rustix::fs::OFlags::RDWR
            | rustix::fs::OFlags::CREATE
            | rustix::fs::OFlags::EXCL
            | rustix::fs::OFlags::NOFOLLOW
            | rustix::fs::OFlags::CLOEXEC;
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let file = rustix::fs::openat(copies, &*name, flags, mode)?;
        rustix::fs::unlinkat(copies, &*name, rustix::fs::AtFlags::empty())?;
        Ok(file.into())
    }

    fn inspect<'a>(
        &'a self,
        slot: &'a SlotId,
        push: PushedPack,
    ) -> Pin<Box<dyn Future<Output = Result<(), PushFault>> + Send + 'a>> {
        Box::pin(async move {
            // The time of other pushes is not taken from this one's. A pool has one at a time, so
            // that another pool always finds a place.
            let busy = |_| unsearched("other pushes are searched: try again later".to_owned());
            let places = async {
                let of_pool = self.pool.push_permit.acquire().await;
                (of_pool, PUSHES.acquire().await)
            };
            let places = tokio::time::timeout(PUSH_TIMEOUT, places).await;
            let (Ok(_of_pool), Ok(_of_all)) = places.map_err(busy)? else {
                return Err(unsearched("the supervisor is shutting down".to_owned()));
            };
            let inspecting = inspect(&self.shared, &self.pool, slot, &push);
            let inspected = tokio::time::timeout(PUSH_TIMEOUT, inspecting).await;
            inspected.unwrap_or_else(|_| {
                let seconds = PUSH_TIMEOUT.as_secs();
                let why = format!("the pack was not searched within {seconds} s");
                Err(unsearched(why))
            })
        })
    }
}

async fn inspect(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    slot: &SlotId,
    push: &PushedPack,
) -> Result<(), PushFault> {
    let closed = |_| unsearched("the supervisor is shutting down".to_owned());
    let mut search = Search::new(shared, pool);
    if let Some(name) = search.find_secret(push.name.as_bytes()) {
        return Err(PushFault {
            why: Why::PushSecret,
            reason: format!("the ref's name contains the secret {name}"),
        });
    }
    let failed = |error: &dyn std::fmt::Display| {
        tracing::warn!(%slot, %error, "the pack of a push cannot be unpacked");
        unsearched("the pack cannot be unpacked in a sandbox".to_owned())
    };
    let owner = owner(shared, pool, slot);
    let (of, what) = (Arc::clone(shared), format!("push-{}", Uuid::now_v7()));
    let scratch = blocking(&shared.ambient, move || {
        branch::create_scratch(of.state.copies(), &what, owner)
    });
    let scratch = scratch.await.map_err(|error| failed(&error))?;
    let (part, place) = scratch.map_err(|error| failed(&error))?;
    let mut scratch = Scratch {
        shared: Arc::clone(shared),
        part,
        git: None,
    };
    let space = SessionDirs::for_git(slot.clone(), place.clone());
    let most = pool_most(push);
    let GitCommand { argv, env } = git::read_pack(push.object_format, push.bytes);
    let sandbox = GitSandbox {
        writable: true,
        ..GitSandbox::read_only(env)
    };
    let inside = WORKSPACE_INSIDE.to_owned();
    let plan = git_plan(shared, pool, &space, &place, inside, argv, sandbox);
    let mut plan = plan.map_err(|error| failed(&error))?;
    plan.limits.fsize = most;
    let none = Duration::ZERO;
    let waits = StopTimeouts {
        goodbye: none,
        eof: none,
        int: none,
        term: none,
    };
    let child = {
        let _place = shared.spawning.acquire().await.map_err(closed)?;
        let started = shared.host.start(plan, waits).await;
        started.map_err(|error| failed(&error))?
    };
    read_child(child, push, search, &mut scratch).await
}

/// The longest file that git may write: the pack, or its index, which has about 40 bytes an object.
const fn pool_most(push: &PushedPack) -> u64 {
    push.bytes + 64 * push.objects as u64 + (1 << 20)
}

/// A directory that is removed when git is gone.
struct Scratch {
    shared: Arc<Shared>,
    part: String,
    /// Tells when git is gone.
    git: Option<oneshot::Receiver<ChildExit>>,
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let (shared, part) = (Arc::clone(&self.shared), std::mem::take(&mut self.part));
        let git = self.git.take();
        let remove = move || branch::remove_scratch(shared.state.copies(), &part);
        // Without a runtime the next start removes what git still writes.
        let Ok(runtime) = Handle::try_current() else {
            return remove();
        };
        runtime.spawn(async move {
            if let Some(git) = git {
                let _ = git.await;
            }
            let _ = tokio::task::spawn_blocking(remove).await;
        });
    }
}

/// Gives git the pack, and reads what it prints. Dropping the future kills git.
async fn read_child(
    child: Child,
    push: &PushedPack,
    search: Search,
    scratch: &mut Scratch,
) -> Result<(), PushFault> {
    let Child {
        stdin,
        stdout,
        stderr,
        keeper,
        exit,
        ..
    } = child;
    let git = scratch.git.insert(exit);
    let writing = write_pack(stdin, push);
    let words = read_words(stderr);
    let reading = read_objects(stdout, push, search);
    let (_, words, read) = tokio::join!(writing, words, async {
        let read = reading.await;
        if read.is_err() {
            keeper.kill();
        }
        read
    });
    let ended = git.await.ok().and_then(|exit| exit.status);
    scratch.git = None;
    let reader = match read {
        Ok(reader) if ended == Some(ExitStatus::Code(0)) => reader,
        // Git has more to say than that its output ended.
        Ok(_) | Err(PackFault::Unreadable(_)) if !words.is_empty() => {
            return Err(unsearched(format!("git refused the pack: {words}")));
        }
        Ok(_) => {
            return Err(unsearched(
                "git did not read the pack to its end".to_owned(),
            ));
        }
        Err(fault) => return Err(push_fault(&fault)),
    };
    let (objects, old, new) = (push.objects, push.old.clone(), push.new.clone());
    // Bounded, but long enough to hold up what else this thread serves.
    let check = move || reader.finish(objects, old.as_deref(), &new);
    let checked = tokio::task::spawn_blocking(check).await;
    let checked = checked.map_err(|_| unsearched("the search of the pack failed".to_owned()))?;
    checked.map_err(|fault| push_fault(&fault))
}

async fn write_pack(mut stdin: pipe::Sender, push: &PushedPack) -> io::Result<()> {
    let mut at = 0;
    while at < push.bytes {
        let length = usize::try_from(push.bytes - at).unwrap_or(PIECE).min(PIECE);
        let (file, from) = (Arc::clone(&push.file), at);
        let piece = tokio::task::spawn_blocking(move || {
            let mut piece = vec![0; length];
            file.read_exact_at(&mut piece, from).map(|()| piece)
        });
        let piece = piece.await.map_err(io::Error::other)??;
        stdin.write_all(&piece).await?;
        at += length as u64;
    }
    Ok(())
}

/// What git says of a failure; empty if it is silent.
async fn read_words(mut stderr: pipe::Receiver) -> String {
    let mut words = Vec::new();
    let mut piece = vec![0; WORDS];
    while let Ok(read @ 1..) = stderr.read(&mut piece).await {
        let room = WORDS - words.len();
        words.extend(piece.iter().take(read.min(room)));
    }
    let text = String::from_utf8_lossy(&words).into_owned();
    untrusted::escape_for_display(text.trim(), 300)
}

async fn read_objects(
    mut stdout: pipe::Receiver,
    push: &PushedPack,
    search: Search,
) -> Result<PackReader<Search>, PackFault> {
    let failed = |_| PackFault::Unreadable("git's output");
    let mut reader = PackReader::new(search, push.object_format);
    let mut first = Some(Vec::new());
    let mut piece = vec![0; PIECE];
    loop {
        let read = stdout.read(&mut piece).await.map_err(failed)?;
        let data = piece.get(..read).unwrap_or_default();
        if data.is_empty() {
            break;
        }
        let Some(mut line) = first.take() else {
            reader.read(data)?;
            continue;
        };
        line.extend_from_slice(data);
        match line.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                check_length(line.get(..end).unwrap_or_default(), push.bytes)?;
                reader.read(line.get(end + 1..).unwrap_or_default())?;
            }
            None if line.len() > LENGTH_DIGITS => return Err(PackFault::Unreadable("its length")),
            None => first = Some(line),
        }
    }
    if first.is_some() {
        return Err(PackFault::Unreadable("git printed nothing"));
    }
    Ok(reader)
}

/// What follows a pack is in no object, and so not searched.
fn check_length(digits: &[u8], bytes: u64) -> Result<(), PackFault> {
    let length = std::str::from_utf8(digits).ok();
    let length = length.and_then(|digits| digits.trim().parse::<u64>().ok());
    if length == Some(bytes) {
        Ok(())
    } else {
        Err(PackFault::Unreadable("something follows the pack"))
    }
}

fn push_fault(fault: &PackFault) -> PushFault {
    let why = match fault {
        PackFault::Unreadable(_) => Why::PushPack,
        PackFault::TooLarge(_) => Why::BodySize,
        PackFault::Secret(..) | PackFault::Hidden(_) => Why::PushSecret,
        PackFault::NotForward => Why::PushForce,
    };
    PushFault {
        why,
        reason: fault.to_string(),
    }
}

const fn unsearched(reason: String) -> PushFault {
    PushFault {
        why: Why::PushPack,
        reason,
    }
}

/// Searches for the secrets of the configuration, and for variables that look like one.
struct Search {
    /// Each secret with two guards: of the text as it is, and of its lines joined.
    secrets: Vec<(String, [KeyGuard; 2])>,
    masks: Arc<Masks>,
}

impl Search {
    fn new(shared: &Shared, pool: &PoolShared) -> Self {
        let configured = shared.config.secrets().into_iter();
        let configured =
            configured.filter_map(|found| Some((found.name, found.secret.expose()?.to_string())));
        let pools = shared.config.pools.iter();
        let passed = pools.flat_map(|pool| &pool.env.pass).filter_map(|name| {
            let value = shared.environment.get(name);
            let value = value.filter(|_| is_likely_secret(name))?;
            Some((name.clone(), value.clone()))
        });
        let forms = configured.chain(passed).filter_map(|(name, value)| {
            let value = value.trim();
            let is_long = value.len() >= SECRET_MIN_BYTES;
            let forms = is_long.then(|| Arc::new(KeyForms::new(value.as_bytes())))?;
            let guard = || KeyGuard::new(Some(Arc::clone(&forms)));
            Some((name, [guard(), guard()]))
        });
        Self {
            secrets: forms.collect(),
            masks: Arc::clone(&pool.workspace_masks),
        }
    }
}

impl PackSearch for Search {
    fn find_secret(&mut self, piece: &[u8]) -> Option<String> {
        let piece = Bytes::copy_from_slice(piece);
        let joined = piece
            .iter()
            .copied()
            .filter(|b| !matches!(b, b'\r' | b'\n'));
        let texts = [&piece, &joined.collect()];
        self.secrets.iter_mut().find_map(|(name, guards)| {
            let mut pairs = guards.iter_mut().zip(texts);
            let is_found = pairs.any(|(guard, text)| guard.pass(text.clone()).is_err());
            is_found.then(|| name.clone())
        })
    }

    fn reset(&mut self) {
        for guard in self.secrets.iter_mut().flat_map(|(_, guards)| guards) {
            guard.finish();
        }
    }

    fn hides(&self, path: &[u8]) -> bool {
        self.masks.hides(path)
    }
}
