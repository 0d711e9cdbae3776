//! The client of the control socket: submits tasks, reads logs, restarts slots.
//!
//! Must not know how answers are shown. A connection carries one conversation, so cancelling a run
//! that is being streamed needs a second connection.

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

/// Why a request to a supervisor failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No supervisor answers on the socket.
    #[error("no supervisor answers at {}: {source}; start one with `marshal up`, or check the state directory", .path.display())]
    NoSupervisor {
        /// The state directory.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// No permission to use the socket.
    #[error("the supervisor at {} belongs to another user; run this as that user or as root", .0.display())]
    NotPermitted(PathBuf),
    /// The supervisor refused the request.
    #[error("{0}")]
    Refused(Failure),
    /// The connection ended, or an answer was not valid.
    #[error("the connection to the supervisor failed: {0}; see its log")]
    Lost(String),
    /// The tasks do not fit into one request.
    #[error("the tasks take {0} bytes, and one request has at most {max}; submit fewer tasks, or use --local", max = limits::CONTROL_LINE_BYTES)]
    TooLong(usize),
}

impl ClientError {
    /// The exit code for this error.
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
    /// Connects to the supervisor of a state directory.
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
            None => Err(ClientError::Lost("the connection was closed".to_owned())),
        }
    }

    async fn request(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let line = request::write(request).map_err(ClientError::Refused)?;
        if line.len() > limits::CONTROL_LINE_BYTES {
            return Err(ClientError::TooLong(line.len()));
        }
        // A supervisor that refuses a client answers and closes at once. The write may fail then,
        // but the reason in the answer is more useful than the failed write.
        let sent = self.lines.send(line).await;
        match (self.line().await, sent) {
            (Ok(line), _) => match reply::read_reply(&line) {
                Some(Reply::Failed(failure)) => Err(ClientError::Refused(failure)),
                Some(reply) => Ok(reply),
                None => Err(ClientError::Lost("unknown answer".to_owned())),
            },
            (Err(_), Err(error)) => Err(error.into()),
            (Err(error), Ok(())) => Err(error),
        }
    }

    /// What the supervisor says of itself.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn hello(&mut self) -> Result<Hello, ClientError> {
        match self.request(&Request::Hello).await? {
            Reply::Hello {
                role,
                pid,
                configuration,
            } => Ok(Hello {
                role,
                pid,
                configuration,
            }),
            _ => Err(unexpected()),
        }
    }

    /// The current state of pools and slots.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn list(&mut self) -> Result<Listing, ClientError> {
        match self.request(&Request::List).await? {
            Reply::Listed(listing) => Ok(listing),
            _ => Err(unexpected()),
        }
    }

    /// Submits tasks and starts to watch them; [`Client::next`] returns the items.
    ///
    /// # Errors
    /// [`ClientError`]; no task was accepted then.
    pub async fn submit(&mut self, tasks: Vec<TaskSpec>) -> Result<RunId, ClientError> {
        self.submit_within(tasks, RunBounds::default()).await
    }

    /// The same for a run with bounds.
    ///
    /// # Errors
    /// [`ClientError`]; no task was accepted then.
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

    /// Starts to watch a run; [`Client::next`] returns the items.
    ///
    /// # Errors
    /// [`ClientError`], also if the daemon does not have the run.
    pub async fn watch(&mut self, run: RunId) -> Result<(), ClientError> {
        match self.request(&Request::Watch { run }).await? {
            Reply::Watching { .. } => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// The next item of the run's stream, and its line. The item is `None` if this version does not
    /// know its kind.
    ///
    /// # Errors
    /// [`ClientError`]; the stream has ended then.
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

    /// Cancels a run, over a separate connection.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn cancel(state_dir: &Path, run: RunId) -> Result<(), ClientError> {
        let mut client = Self::connect(state_dir).await?;
        client.request(&Request::Cancel { run }).await.map(drop)
    }

    /// Cancels one task of a run, over a separate connection.
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

    /// Lists, shows or answers approvals.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn approvals(&mut self, op: ApprovalOp) -> Result<Reply, ClientError> {
        self.request(&Request::Approvals(op)).await
    }

    /// The policies in force, by pool; after a reload if `reload` is set.
    ///
    /// # Errors
    /// [`ClientError`], also for policies with errors: the old ones stay in force then.
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

    /// Opens a new conversation or loads an earlier one. The connection then carries only this
    /// conversation.
    ///
    /// # Errors
    /// [`ClientError`]; no conversation was opened then.
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

    /// One page of the conversations of a pool, after the first `after` ones.
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
    ClientError::Lost("unexpected answer".to_owned())
}

/// What a supervisor says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// What kind of supervisor it is.
    pub role: Role,
    /// Its process id.
    pub pid: u32,
    /// The digest of its configuration.
    pub configuration: String,
}

/// The supervisor of a state directory, if one answers.
///
/// # Errors
/// [`ClientError`] if a supervisor runs there and the connection fails.
pub async fn supervisor(state_dir: &Path) -> Result<Option<(Client, Hello)>, ClientError> {
    let mut client = match Client::connect(state_dir).await {
        Ok(client) => client,
        Err(ClientError::NoSupervisor { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let hello = client.hello().await?;
    Ok(Some((client, hello)))
}

/// The daemon of a state directory, if one answers. A supervisor that only runs its own tasks
/// does not count.
///
/// # Errors
/// [`ClientError`] if a supervisor runs there and the connection fails.
#[cfg(test)]
pub async fn daemon(state_dir: &Path) -> Result<Option<Client>, ClientError> {
    let found = supervisor(state_dir).await?;
    let daemon = found.filter(|(_, hello)| hello.role == Role::Daemon);
    Ok(daemon.map(|(client, _)| client))
}

/// Whether a supervisor of this state directory serves conversations.
///
/// # Errors
/// [`ClientError`] if a supervisor runs there and the connection fails, or if it only runs its own
/// tasks.
pub async fn serves_conversations(state_dir: &Path) -> Result<bool, ClientError> {
    let Some((_, hello)) = supervisor(state_dir).await? else {
        return Ok(false);
    };
    match (hello.role, hello.pid) {
        (Role::Daemon | Role::Editor, _) => Ok(true),
        (Role::Run, pid) => Err(ClientError::Refused(Failure::new(
            Code::NoDaemon,
            format!(
                "process {pid} runs its own tasks in {}; wait until it ends, or use another state directory",
                escape_for_display(&state_dir.to_string_lossy(), 300)
            ),
        ))),
    }
}

/// `marshal restart SLOT`.
pub async fn restart(state_dir: &Path, slot: SlotId, streams: &mut Streams) -> Exit {
    let reply = async {
        let mut client = Client::connect(state_dir).await?;
        client
            .request(&Request::Restart { slot: slot.clone() })
            .await
    };
    match reply.await {
        Ok(_) => {
            streams.err.line(&format!("{slot}: restarted"));
            Exit::Done
        }
        Err(error) => report_error(&error, streams),
    }
}

/// `marshal logs SLOT [-f]`: the child's stderr, line by line, escaped; with `json` as it was
/// received. Ends with the log, with the supervisor or when the output is closed.
pub async fn logs(
    state_dir: &Path,
    slot: SlotId,
    follow: bool,
    json: bool,
    streams: &mut Streams,
) -> Exit {
    let connected = async {
        let mut client = Client::connect(state_dir).await?;
        client.request(&Request::Logs { slot, follow }).await?;
        Ok(client)
    };
    let mut client = match connected.await {
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
                let note = format!("{missed} lines were skipped: they arrived too fast");
                streams.err.line(&note);
            }
        }
        if streams.out.is_closed() {
            return Exit::Done;
        }
    }
}

/// Escapes a log line. It is at most [`limits::STDERR_LINE_BYTES`] long, but longer when escaped.
fn show_line(text: &UntrustedText) -> String {
    text.escape_for_display(limits::STDERR_LINE_BYTES * "\\u{10ffff}".len())
}

/// Prints an error; its text is safe to show.
pub(crate) fn report_error(error: &ClientError, streams: &mut Streams) -> Exit {
    streams.err.line(&format!("error: {error}"));
    error.exit()
}

#[cfg(test)]
#[path = "control_client_tests.rs"]
mod tests;
