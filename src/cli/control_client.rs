//! The other end of the control socket: handing tasks over, logs, restarts.
//!
//! Must not know what the answers are shown as. A connection carries one conversation; a further
//! one is made to cancel a run that streams.

use std::io;
use std::path::{Path, PathBuf};

use super::exit::Exit;
use super::streams::Streams;
use marshal_engine::api::approvals::ApprovalOp;
use marshal_engine::api::control::{LineError, Lines, connect};
use marshal_engine::api::json_lines::{self, LogItem};
use marshal_engine::api::listing::Listing;
use marshal_engine::api::policies::PolicyStatusView;
use marshal_engine::api::reply::{self, ConversationLine, Reply, Role};
use marshal_engine::api::request::{self, Code, Failure, Request};
use marshal_engine::api::run_stream::RunStreamItem;
use marshal_fleet::RunBounds;
use marshal_model::limits;
use marshal_model::untrusted::escape_for_display;
use marshal_model::{PoolName, RunId, SessionId, SlotId, TaskId, TaskSpec, UntrustedText};

/// Why a supervisor could not be asked, or did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answers.
    #[error("no supervisor answers at {}: {source}; start one with `marshal up`, or check the state directory", .path.display())]
    NoSupervisor {
        /// The state directory.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The socket may not be used.
    #[error("the supervisor at {} belongs to somebody else; become its user or root", .0.display())]
    NotPermitted(PathBuf),
    /// It said no.
    #[error("{0}")]
    Refused(Failure),
    /// It went away, or does not speak as expected.
    #[error("the supervisor broke off: {0}; see its log")]
    Lost(String),
    /// The tasks do not fit into one request.
    #[error("the tasks take {0} bytes as one request, and at most {max} fit; hand fewer over, or use --local", max = limits::CONTROL_LINE_BYTES)]
    TooLong(usize),
}

impl ClientError {
    /// How the program ends because of it.
    #[must_use]
    pub fn exit(&self) -> Exit {
        match self {
            Self::NoSupervisor { .. } | Self::Lost(_) => Exit::NoDaemon,
            Self::NotPermitted(_) => Exit::NotPermitted,
            Self::TooLong(_) => Exit::Usage,
            Self::Refused(failure) => match failure.code {
                Code::NotPermitted => Exit::NotPermitted,
                Code::BadTasks
                | Code::NoSuchSlot
                | Code::NoSuchRun
                | Code::NoSuchPool
                | Code::NoSuchApproval
                | Code::NoSuchSession
                | Code::BadDirectory => Exit::Usage,
                Code::Busy | Code::Stopping | Code::NoDaemon => Exit::NoDaemon,
                Code::Refused | Code::NoSlot | Code::Taken => Exit::CannotStart,
                Code::BadPolicy
                | Code::ApprovalEnded
                | Code::BadJson
                | Code::BadRequest
                | Code::BadVersion
                | Code::TooLong
                | Code::TooSlow => Exit::Failures,
            },
        }
    }
}

impl From<LineError> for ClientError {
    fn from(error: LineError) -> Self {
        Self::Lost(error.to_string())
    }
}

/// A connection to the supervisor of a state directory.
#[derive(Debug)]
pub struct Client {
    lines: Lines,
    state_dir: PathBuf,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// [`ClientError::NoSupervisor`], [`ClientError::NotPermitted`].
    pub async fn connect(state_dir: &Path) -> Result<Self, ClientError> {
        let stream = connect(state_dir).await.map_err(|source| {
            let path = state_dir.to_owned();
            if source.kind() == io::ErrorKind::PermissionDenied {
                ClientError::NotPermitted(path)
            } else {
                ClientError::NoSupervisor { path, source }
            }
        })?;
        Ok(Self {
            lines: Lines::new(
                stream,
                limits::CONTROL_EVENT_LINE_BYTES,
                limits::CONTROL_TIMEOUT,
            ),
            state_dir: state_dir.to_owned(),
        })
    }

    async fn line(&mut self) -> Result<String, ClientError> {
        match self.lines.next(None).await? {
            Some(line) => String::from_utf8(line)
                .map_err(|_| ClientError::Lost("a line is not UTF-8".to_owned())),
            None => Err(ClientError::Lost("it closed the connection".to_owned())),
        }
    }

    async fn request(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let line = request::write(request).map_err(ClientError::Refused)?;
        if line.len() > limits::CONTROL_LINE_BYTES {
            return Err(ClientError::TooLong(line.len()));
        }
        // A supervisor that sends us away closes at once, and its reason is worth more than the
        // failed write.
        let sent = self.lines.send(line).await;
        match (self.line().await, sent) {
            (Ok(line), _) => match reply::read_reply(&line) {
                Some(Reply::Failed(failure)) => Err(ClientError::Refused(failure)),
                Some(reply) => Ok(reply),
                None => Err(ClientError::Lost("its answer is not known".to_owned())),
            },
            (Err(_), Err(error)) => Err(error.into()),
            (Err(error), Ok(())) => Err(error),
        }
    }

    /// What kind of supervisor it is, and its process.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn hello(&mut self) -> Result<(Role, u32), ClientError> {
        match self.request(&Request::Hello).await? {
            Reply::Hello { role, pid } => Ok((role, pid)),
            _ => Err(unexpected()),
        }
    }

    /// Pools and slots, as they are now.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn list(&mut self) -> Result<Listing, ClientError> {
        match self.request(&Request::List).await? {
            Reply::Listed(listing) => Ok(listing),
            _ => Err(unexpected()),
        }
    }

    /// Hands tasks over and begins to watch them; [`Client::next`] tells the rest.
    ///
    /// # Errors
    /// [`ClientError`]; nothing was taken in then.
    pub async fn submit(&mut self, tasks: Vec<TaskSpec>) -> Result<RunId, ClientError> {
        self.submit_within(tasks, RunBounds::default()).await
    }

    /// The same of a run with bounds.
    ///
    /// # Errors
    /// [`ClientError`]; nothing was taken in then.
    pub async fn submit_within(
        &mut self,
        tasks: Vec<TaskSpec>,
        bounds: RunBounds,
    ) -> Result<RunId, ClientError> {
        let request = Request::Submit {
            tasks,
            watch: true,
            bounds,
        };
        match self.request(&request).await? {
            Reply::Submitted { run, .. } => Ok(run),
            _ => Err(unexpected()),
        }
    }

    /// Begins to watch a run; [`Client::next`] tells the rest.
    ///
    /// # Errors
    /// [`ClientError`], also if the daemon does not have it.
    pub async fn watch(&mut self, run: RunId) -> Result<(), ClientError> {
        match self.request(&Request::Watch { run }).await? {
            Reply::Watching { .. } => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// The next item of the run's stream, with the line that it came as. `NoJournal` is a line that
    /// this program does not know; it still has its text.
    ///
    /// # Errors
    /// [`ClientError`]; nothing more comes then.
    pub async fn next(&mut self) -> Result<(Option<RunStreamItem>, String), ClientError> {
        let line = self.line().await?;
        match json_lines::read_item(&line) {
            Ok(item) => Ok((item, line)),
            Err(error) => match reply::read_reply(&line) {
                Some(Reply::Failed(failure)) => Err(ClientError::Refused(failure)),
                _ => Err(ClientError::Lost(error.to_string())),
            },
        }
    }

    /// Cancels a run, over a connection of its own.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn cancel(state_dir: &Path, run: RunId) -> Result<(), ClientError> {
        let mut client = Self::connect(state_dir).await?;
        client.request(&Request::Cancel { run }).await.map(drop)
    }

    /// Ends one task of a run, over a connection of its own.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn cancel_task(
        state_dir: &Path,
        pool: &PoolName,
        run: &RunId,
        task: &TaskId,
    ) -> Result<(), ClientError> {
        let mut client = Self::connect(state_dir).await?;
        let request = Request::CancelTask {
            pool: pool.clone(),
            run: run.clone(),
            task: task.clone(),
        };
        client.request(&request).await.map(drop)
    }

    /// Asks about the approvals, or answers one.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn approvals(&mut self, asked: ApprovalOp) -> Result<Reply, ClientError> {
        self.request(&Request::Approvals(asked)).await
    }

    /// What judges each pool; with `reload` after reading the policies again.
    ///
    /// # Errors
    /// [`ClientError`], also for policies that are faulty: the older ones stay then.
    pub async fn policies(&mut self, reload: bool) -> Result<PolicyStatusView, ClientError> {
        let request = if reload {
            Request::Reload
        } else {
            Request::Policies
        };
        match self.request(&request).await? {
            Reply::Policies(status) => Ok(*status),
            _ => Err(unexpected()),
        }
    }

    /// Opens a conversation, or loads one: the connection is the conversation's then.
    ///
    /// # Errors
    /// [`ClientError`]; nothing was begun then.
    pub async fn open(
        &mut self,
        pool: PoolName,
        directory: PathBuf,
        session: Option<SessionId>,
    ) -> Result<SessionId, ClientError> {
        let request = Request::Open {
            pool,
            directory,
            session,
        };
        match self.request(&request).await? {
            Reply::Opened { session } => Ok(session),
            _ => Err(unexpected()),
        }
    }

    /// One page of the conversations of a pool, after so many.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn conversations(
        &mut self,
        pool: &PoolName,
        after: u32,
    ) -> Result<Vec<ConversationLine>, ClientError> {
        let pool = pool.clone();
        match self
            .request(&Request::Conversations { pool, after })
            .await?
        {
            Reply::Conversations(found) => Ok(found),
            _ => Err(unexpected()),
        }
    }

    /// The connection itself.
    #[must_use]
    pub fn into_lines(self) -> Lines {
        self.lines
    }

    /// The state directory that it is connected to.
    pub fn state_dir(&self) -> &Path {
        &self.state_dir
    }
}

fn unexpected() -> ClientError {
    ClientError::Lost("it answered something else".to_owned())
}

/// The daemon of a state directory, if one answers there. A supervisor that only works its own
/// list is none.
///
/// # Errors
/// [`ClientError`] if somebody is there and cannot be talked to.
pub async fn daemon(state_dir: &Path) -> Result<Option<Client>, ClientError> {
    let mut client = match Client::connect(state_dir).await {
        Ok(client) => client,
        Err(ClientError::NoSupervisor { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    match client.hello().await? {
        (Role::Daemon, _) => Ok(Some(client)),
        (Role::Run | Role::Editor, _) => Ok(None),
    }
}

/// Whether somebody at this state directory serves conversations.
///
/// # Errors
/// [`ClientError`] if somebody is there and cannot be talked to, or works only for itself.
pub async fn serves_conversations(state_dir: &Path) -> Result<bool, ClientError> {
    let mut client = match Client::connect(state_dir).await {
        Ok(client) => client,
        Err(ClientError::NoSupervisor { .. }) => return Ok(false),
        Err(error) => return Err(error),
    };
    match client.hello().await? {
        (Role::Daemon | Role::Editor, _) => Ok(true),
        (Role::Run, pid) => Err(ClientError::Refused(Failure::new(
            Code::NoDaemon,
            format!(
                "process {pid} works a list of tasks in {}; wait for its end, or use another state directory",
                escape_for_display(&state_dir.to_string_lossy(), 300)
            ),
        ))),
    }
}

/// `marshal restart SLOT`.
pub async fn restart(state_dir: &Path, slot: SlotId, streams: &mut Streams) -> Exit {
    let asked = async {
        let mut client = Client::connect(state_dir).await?;
        client
            .request(&Request::Restart { slot: slot.clone() })
            .await
    };
    match asked.await {
        Ok(_) => {
            streams.err.line(&format!("{slot}: restarted"));
            Exit::Done
        }
        Err(error) => report_error(&error, streams),
    }
}

/// `marshal logs SLOT [-f]`: the child's stderr, line by line, shown safely; with `json` as it is
/// told. Ends with the log, the supervisor, or the program.
pub async fn logs(
    state_dir: &Path,
    slot: SlotId,
    follow: bool,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let asked = async {
        let mut client = Client::connect(state_dir).await?;
        client.request(&Request::Logs { slot, follow }).await?;
        Ok(client)
    };
    let mut client = match asked.await {
        Ok(client) => client,
        Err(error) => return report_error(&error, streams),
    };
    loop {
        let line = match client.line().await {
            Ok(line) => line,
            Err(error) => return report_error(&error, streams),
        };
        let item = match json_lines::read_log(&line) {
            Ok(item) => item,
            Err(error) => return report_error(&ClientError::Lost(error.to_string()), streams),
        };
        match item {
            LogItem::Complete => return Exit::Done,
            _ if json => streams.out.json(&line),
            LogItem::Line(text) => streams.out.line(&show_line(&text)),
            LogItem::Lagged(missed) => {
                let note = format!("{missed} lines are not shown: they came too fast");
                streams.err.line(&note);
            }
        }
        if streams.out.is_closed() {
            return Exit::Done;
        }
    }
}

/// A log line is at most [`limits::STDERR_LINE_BYTES`] long; escaped it can be longer.
fn show_line(text: &UntrustedText) -> String {
    text.escape_for_display(limits::STDERR_LINE_BYTES * "\\u{10ffff}".len())
}

/// Says an error; its text is safe to show.
pub(crate) fn report_error(error: &ClientError, streams: &mut Streams) -> Exit {
    streams.err.line(&format!("error: {error}"));
    error.exit()
}

#[cfg(test)]
#[path = "control_client_tests.rs"]
mod tests;
