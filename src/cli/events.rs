//! `events`: shows journalled events, starting at a cursor or a time, and follows new ones.
//!
//! Owns the order over several sessions and the cursor. Reads the journal directly, also while a
//! supervisor runs. Must not know how an event is worded.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::path::Path;
use std::time::Duration;

use super::audit::now_us;
use super::event_text;
use super::exit::Exit;
use super::since::Since;
use super::streams::Streams;
use marshal_journal::{FILE_NAME, OpenError, ReadError, Reader, StoredEvent, StoredSession};
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{EventId, EventKind, PoolName, SessionId};

/// `events …`
#[derive(Debug, Clone, clap::Args)]
pub struct EventsArgs {
    /// Start after this event (3-117, with --session), this long ago (10m) or at this time (RFC
    /// 3339)
    #[arg(long, value_name = "CURSOR", value_parser = Since::parse)]
    pub since: Option<Since>,

    /// Show only events of this session
    #[arg(long, value_parser = |text: &str| SessionId::new(text))]
    pub session: Option<SessionId>,

    /// Show only events of this pool's sessions
    #[arg(long, value_parser = |text: &str| PoolName::new(text))]
    pub pool: Option<PoolName>,

    /// Show only events of this kind, for example decided; may be repeated
    #[arg(long, value_parser = kind)]
    pub kind: Vec<EventKind>,

    /// Show at most this many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,

    /// Wait for new events and show them
    #[arg(short, long)]
    pub follow: bool,
}

fn kind(text: &str) -> Result<EventKind, String> {
    EventKind::parse(text).ok_or_else(|| {
        let words: Vec<_> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
        format!("the known kinds are {}", words.join(", "))
    })
}

/// Why the journal cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// There is no journal.
    #[error(
        "there is no journal in {0}: no run has used this state directory yet, or it is the wrong one; name the right configuration with --config"
    )]
    NoJournal(String),
    /// Another user owns it.
    #[error("no permission to read the journal in {0}; run this as its owner or as root")]
    NotPermitted(String),
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The journal does not have this session.
    #[error(
        "there is no session {0} in the journal; sessions are removed after the retention time"
    )]
    NoSession(SessionId),
    /// An event id was given as the cursor, without its session.
    #[error("the cursor {0} is an event id, which needs its session; name it with --session")]
    SessionRequired(EventId),
}

impl JournalError {
    /// How the program ends because of it.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::NoJournal(_) | Self::NoSession(_) | Self::SessionRequired(_) => Exit::Usage,
            Self::NotPermitted(_) => Exit::NotPermitted,
            Self::Open(_) | Self::Read(_) => Exit::Failures,
        }
    }
}

/// Opens the journal of a state directory for reading.
///
/// # Errors
/// [`JournalError`]
pub fn open_journal(state: &Path) -> Result<Reader, JournalError> {
    let display_path = || escape_for_display(&state.to_string_lossy(), 200);
    match std::fs::File::open(state.join(FILE_NAME)).map_err(|error| error.kind()) {
        Err(std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            Err(JournalError::NoJournal(display_path()))
        }
        Err(std::io::ErrorKind::PermissionDenied) => {
            Err(JournalError::NotPermitted(display_path()))
        }
        // SQLite reports every other error, with its reason.
        _ => Ok(Reader::open(state)?),
    }
}

/// Shows events.
pub fn events(state: &Path, args: &EventsArgs, json: bool, streams: &mut Streams) -> Exit {
    match run(state, args, json, streams) {
        Ok(()) => Exit::Done,
        Err(error) => {
            streams.err.line(&format!("error: {error}"));
            error.exit()
        }
    }
}

fn run(
    state: &Path,
    args: &EventsArgs,
    json: bool,
    streams: &mut Streams,
) -> Result<(), JournalError> {
    /// How often a follower checks for new events.
    const LOOK: Duration = Duration::from_millis(100);
    /// How far back from its start a follower looks for ended sessions: longer than a commit takes,
    /// so that no session that ends during the start is missed.
    const MARGIN_US: i64 = 60_000_000;
    let reader = open_journal(state)?;
    let begun_us = now_us();
    let mut tail = Tail {
        args,
        json,
        from_us: args.since.and_then(|since| since.at_us(begun_us)),
        left: args.limit.unwrap_or(u64::MAX),
        last_seqs: HashMap::new(),
    };
    tail.begin(&reader, streams)?;
    let mut ended_after = tail.from_us.unwrap_or(i64::MIN);
    loop {
        let version = reader.data_version()?;
        tail.round(&reader, ended_after, streams)?;
        if !args.follow || tail.left == 0 || streams.out.is_closed() {
            return Ok(());
        }
        ended_after = ended_after.max(begun_us - MARGIN_US);
        while reader.data_version()? == version {
            std::thread::sleep(LOOK);
        }
    }
}

/// The position up to which each session was shown.
struct Tail<'a> {
    args: &'a EventsArgs,
    json: bool,
    from_us: Option<i64>,
    /// Events that may still be shown.
    left: u64,
    last_seqs: HashMap<String, u64>,
}

/// The next events of one session.
struct Source {
    session: SessionId,
    after: u64,
    next: VecDeque<StoredEvent>,
}

impl Source {
    /// Reads the next page if the buffer is empty; `false` at the end.
    fn fill(&mut self, reader: &Reader, bytes: usize) -> Result<bool, ReadError> {
        if self.next.is_empty() {
            let page =
                reader.events_page(&self.session, self.after, limits::CATCH_UP_EVENTS, bytes)?;
            self.next = page.into();
        }
        Ok(!self.next.is_empty())
    }
}

impl Tail<'_> {
    /// Finds the position of the cursor, and reports a cursor that is not durable.
    fn begin(&mut self, reader: &Reader, streams: &mut Streams) -> Result<(), JournalError> {
        let Some(session) = &self.args.session else {
            return match self.args.since {
                Some(Since::Event(cursor)) => Err(JournalError::SessionRequired(cursor)),
                _ => Ok(()),
            };
        };
        if reader.session(session)?.is_none() {
            return Err(JournalError::NoSession(session.clone()));
        }
        if let Some(Since::Event(cursor)) = self.args.since {
            let to = match cursor.seq {
                0 => cursor,
                _ => reader.last_common_event(session, cursor)?,
            };
            if to != cursor {
                self.print_rewound(session, to, streams);
            }
            self.last_seqs.insert(session.to_string(), to.seq);
        }
        Ok(())
    }

    /// Reports a cursor beyond the durable end: its owner saw events that were lost in a crash.
    fn print_rewound(&self, session: &SessionId, to: EventId, streams: &mut Streams) {
        if self.json {
            let line = serde_json::json!({
                "type": "rewound", "session": session.as_str(), "to": to.to_string(),
            });
            streams.out.json(&line.to_string());
        } else {
            let line = format!("rewound to {to}: later events were not durable");
            streams.out.line(&line);
        }
    }

    /// The sessions that may have more events.
    fn sources(&mut self, reader: &Reader, ended_after: i64) -> Result<Vec<Source>, JournalError> {
        let sessions: Vec<StoredSession> = match &self.args.session {
            Some(session) => reader.session(session)?.into_iter().collect(),
            None => reader.sessions_since(ended_after)?,
        };
        let mut sources = Vec::new();
        for stored in sessions {
            let pool = self.args.pool.as_ref().map(PoolName::as_str);
            if pool.is_some_and(|pool| pool != stored.pool) {
                continue;
            }
            let Ok(session) = SessionId::new(&stored.session) else {
                continue;
            };
            let after = match (self.last_seqs.get(&stored.session), self.from_us) {
                (Some(given), _) => *given,
                (None, Some(from_us)) => reader.seq_before(&session, from_us)?,
                (None, None) => 0,
            };
            self.last_seqs.insert(stored.session, after);
            sources.push(Source {
                session,
                after,
                next: VecDeque::new(),
            });
        }
        Ok(sources)
    }

    /// Shows all events that are there now, ordered by time.
    fn round(
        &mut self,
        reader: &Reader,
        ended_after: i64,
        streams: &mut Streams,
    ) -> Result<(), JournalError> {
        let mut sources = self.sources(reader, ended_after)?;
        // All sessions together buffer at most one page.
        let bytes = limits::CATCH_UP_BYTES / sources.len().max(1);
        let mut heads = BinaryHeap::new();
        for (index, source) in sources.iter_mut().enumerate() {
            if source.fill(reader, bytes)?
                && let Some(event) = source.next.front()
            {
                heads.push(Reverse((event.at_us, index)));
            }
        }
        while let Some(Reverse((_, index))) = heads.pop() {
            let Some(source) = sources.get_mut(index) else {
                continue;
            };
            let Some(event) = source.next.pop_front() else {
                continue;
            };
            source.after = event.id.seq;
            self.last_seqs.insert(event.session.clone(), event.id.seq);
            self.show(event, streams);
            if self.left == 0 || streams.out.is_closed() {
                return Ok(());
            }
            if source.fill(reader, bytes)?
                && let Some(event) = source.next.front()
            {
                heads.push(Reverse((event.at_us, index)));
            }
        }
        Ok(())
    }

    fn show(&mut self, event: StoredEvent, streams: &mut Streams) {
        let kinds = &self.args.kind;
        if !kinds.is_empty() && !kinds.iter().any(|kind| kind.as_str() == event.kind) {
            return;
        }
        self.left -= 1;
        if self.json {
            streams.out.json(&event.into_json());
        } else {
            let named = self.args.session.is_none();
            let line = event_text::line(&event, named, streams.width);
            streams.out.line(&line);
        }
    }
}
