//! What the agent has its client do: files read and written, commands run, inside its own walls.
//!
//! Owns the open requests of one child from their verdict to their answer, and the child's
//! terminals. Nothing is begun before the session says that the verdict is durable. Each file and
//! each command is a plain task, which reports; none of them holds up the channel. Must not know
//! rules, nor how the protocol says any of this.
//!
//! The path of a request: `dialect/acp/client.rs` takes it if the pool offers the method. The session
//! judges it (`session/client.rs`, `policy/client.rs`). When the verdict is durable, the work goes through
//! the sandbox's door (`launch/sandbox_entry.rs`). An answer waits until the child's stdin has room for a long one.
//! Methods about a terminal that exists need no verdict.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::files::{FileAction, FilePlace, FileWork, WrittenFile, run_file_work};
use super::state::ChannelState;
use super::stdin::Stdin;
use super::terminal::{self, Terminal};
use super::tools::{self, EngineTools, ToolSetup};
use super::{ChannelMsg, ChannelRef};
use crate::credit::CreditPermit;
use crate::files::SessionVersions;
use crate::session::ChannelEvent;
use marshal_dialect::Command;
use marshal_launch::{ExecRequest, ProcessLimits, SandboxEntry};
use marshal_model::limits::{CLIENT_FILES, TERMINALS};
use marshal_model::{
    ClientCall, ClientError, ClientErrorKind, ClientMethod, ClientOutput, ClientResult, EngineCall,
    Event, PermissionRequest, PermissionRequestKey, TaskId, TerminalExit, TerminalSpec,
    UntrustedText,
};

/// What every command for the agent has, and where its files are.
#[derive(Debug, Clone)]
pub(crate) struct ClientSetup {
    /// The environment of every terminal.
    pub(crate) env: Vec<(String, String)>,
    /// The limits of every terminal.
    pub(crate) limits: ProcessLimits,
    /// The workspace, as seen inside.
    pub(crate) workspace: String,
    /// The versions of its files, if they are kept.
    pub(crate) versions: Option<SessionVersions>,
    /// The tools that it gets, if it gets any.
    pub(crate) tools: Option<ToolSetup>,
}

/// What is heard of the requests under way.
#[derive(Debug)]
pub(crate) enum ClientUpdate {
    /// The verdict is durable: the place that was judged, or why nothing is done.
    Decided {
        /// The request.
        key: PermissionRequestKey,
        /// Go on, there.
        verdict: Result<String, ClientError>,
        /// The task that it was asked in.
        task: TaskId,
    },
    /// A file was read or written, or not.
    File {
        /// The request.
        key: PermissionRequestKey,
        /// What came of it.
        answer: ClientResult,
        /// The file, if it was written, or may have been.
        wrote: Option<WrittenFile>,
    },
    /// A command runs, or does not.
    Started {
        /// The request.
        key: PermissionRequestKey,
        /// Its terminal.
        terminal: String,
        /// Why it does not.
        failed: Option<String>,
        /// Program and arguments, and where.
        what: (Vec<String>, String),
    },
    /// A command wrote something.
    Output {
        /// Its terminal.
        terminal: String,
        /// What.
        delta: UntrustedText,
        /// Drops when it is durable.
        credit: CreditPermit,
    },
    /// A command is over, and nothing of it is left.
    Ended {
        /// Its terminal.
        terminal: String,
        /// How.
        exit: TerminalExit,
        /// Bytes that it wrote.
        wrote: u64,
        /// Bytes of these that were not told.
        untold: u64,
    },
}

/// What the agent wants, until it is judged.
#[derive(Debug)]
pub(super) enum PendingCall {
    /// Of its client.
    Client(ClientCall),
    /// Of a tool of ours.
    Tool(Box<EngineCall>),
}

/// What is to be said, once the child's stdin has room for it.
#[derive(Debug)]
pub(super) enum PendingReply {
    /// This.
    Ready(ClientResult),
    /// The same, of a file: its place among those that are worked on is free then.
    File(ClientResult),
    /// What this terminal's command has written by then.
    Output(String),
}

/// The requests and terminals of one child.
#[derive(Debug)]
pub(super) struct ClientRequests {
    setup: ClientSetup,
    /// The tools that we give it.
    pub(super) tools: EngineTools,
    sandbox_entry: Option<Arc<SandboxEntry>>,
    /// What waits for its verdict.
    pub(super) undecided: Vec<(PermissionRequestKey, PendingCall)>,
    waiting: VecDeque<(PermissionRequestKey, FileWork)>,
    /// Files that are worked on, or whose answer waits.
    files: usize,
    terminals: BTreeMap<String, Terminal>,
    last_terminal: u64,
    replies: VecDeque<(PermissionRequestKey, PendingReply)>,
}

impl ClientRequests {
    pub(super) fn new(setup: ClientSetup) -> Self {
        Self {
            setup,
            tools: EngineTools::default(),
            sandbox_entry: None,
            undecided: Vec::new(),
            waiting: VecDeque::new(),
            files: 0,
            terminals: BTreeMap::new(),
            last_terminal: 0,
            replies: VecDeque::new(),
        }
    }

    /// The child runs, and this leads into its walls.
    pub(super) fn set_sandbox_entry(&mut self, door: Option<SandboxEntry>) {
        self.sandbox_entry = door.map(Arc::new);
    }

    /// Terminals that there are or will be.
    fn terminal_count(&self) -> usize {
        let coming = self.undecided.iter();
        let coming =
            coming.filter(|(_, call)| matches!(call, PendingCall::Client(ClientCall::Run(_))));
        self.terminals.len() + coming.count()
    }

    /// Nobody waits for this answer any more.
    pub(super) fn withdraw(&mut self, key: &PermissionRequestKey) {
        self.undecided.retain(|(open, _)| open != key);
        self.waiting.retain(|(open, _)| open != key);
        for terminal in self.terminals.values_mut() {
            terminal.remove_waiter(key);
        }
    }

    fn find_terminal(&mut self, id: &str) -> Result<&mut Terminal, ClientError> {
        let found = self.terminals.get_mut(id).filter(|of| !of.is_released());
        found.ok_or_else(|| {
            let shown = UntrustedText::from(id).escape_for_display(60);
            ClientError::new(ClientErrorKind::NotFound, format!("terminal {shown}"))
        })
    }

    /// The place that was judged, as a path below the workspace.
    pub(super) fn file_work(
        &self,
        (tool, path): (&'static str, String),
        place: &str,
        act: FileAction,
        task: &TaskId,
    ) -> Option<FileWork> {
        let root = self.setup.workspace.trim_end_matches('/').to_owned();
        let below = place.strip_prefix(&root)?.strip_prefix('/')?.to_owned();
        let versions = self.setup.versions.as_ref();
        let at = FilePlace {
            tool,
            path,
            root,
            file: versions.and_then(|of| of.file(&below, task)),
            below,
        };
        Some(FileWork { at, act })
    }

    fn client_file_work(&self, call: ClientCall, place: &str, task: &TaskId) -> Option<FileWork> {
        let method = call.method().word();
        let (path, act) = match call {
            ClientCall::Read { path, line, limit } => (path, FileAction::Read { line, limit }),
            ClientCall::Write { path, content } => {
                let (text, base) = (content, None);
                (path, FileAction::Write { text, base })
            }
            ClientCall::Run(_) | ClientCall::Terminal { .. } => return None,
        };
        self.file_work((method, path), place, act, task)
    }

    /// A file waits for its turn.
    pub(super) fn queue_file(&mut self, key: PermissionRequestKey, work: FileWork) {
        self.waiting.push_back((key, work));
    }

    /// The tools that the agent gets, and where.
    pub(super) fn tool_setup(&self) -> Option<&ToolSetup> {
        self.setup.tools.as_ref()
    }

    /// A file of a tool's call is done.
    pub(super) fn release_file(&mut self) {
        self.files = self.files.saturating_sub(1);
    }

    fn errand(&self, spec: &TerminalSpec, cwd: String) -> ExecRequest {
        let mut env = self.setup.env.clone();
        for (name, value) in &spec.env {
            env.retain(|(known, _)| known != name);
            env.push((name.clone(), value.clone()));
        }
        ExecRequest {
            argv: spec.argv.clone(),
            env,
            cwd,
            limits: self.setup.limits,
        }
    }

    /// What the terminals that are left come to when their child is gone.
    pub(super) fn end_terminals(&mut self) -> Vec<ChannelEvent> {
        let left = std::mem::take(&mut self.terminals).into_iter();
        left.filter(|(_, of)| of.is_running())
            .map(|(terminal, of)| {
                let (wrote, untold) = of.byte_counts();
                ChannelEvent::Event(Event::TerminalEnded {
                    terminal,
                    status: None,
                    written_bytes: wrote,
                    omitted_bytes: untold,
                })
            })
            .collect()
    }
}

impl ChannelState {
    /// The agent wants something. What must be judged goes to the session first.
    pub(super) fn handle_client_call(
        &mut self,
        key: PermissionRequestKey,
        call: ClientCall,
        ask: Option<Box<PermissionRequest>>,
        now: Instant,
    ) -> Option<ChannelEvent> {
        self.request_opened(&key);
        let Some(clients) = &mut self.client_requests else {
            let error = ClientError::new(ClientErrorKind::Failed, "this is not offered");
            self.queue_client_reply(key, PendingReply::Ready(Err(error)), now);
            return None;
        };
        if matches!(call, ClientCall::Run(_)) && clients.terminal_count() >= TERMINALS {
            let why = format!("{TERMINALS} terminals are open: release one first");
            let error = ClientError::new(ClientErrorKind::Failed, why);
            self.queue_client_reply(key, PendingReply::Ready(Err(error)), now);
            return None;
        }
        match (ask, call.policy_request(), &call) {
            (Some(ask), Some(wish), _) => {
                clients.undecided.push((key, PendingCall::Client(call)));
                Some(ChannelEvent::ClientRequest {
                    permission_request: ask,
                    request: wish,
                })
            }
            (_, _, ClientCall::Terminal { method, id }) => {
                self.handle_terminal_call(key, *method, id, now);
                None
            }
            _ => None,
        }
    }

    /// The methods about a terminal that is there.
    fn handle_terminal_call(
        &mut self,
        key: PermissionRequestKey,
        method: ClientMethod,
        id: &str,
        now: Instant,
    ) {
        let Some(clients) = &mut self.client_requests else {
            return;
        };
        let terminal = match clients.find_terminal(id) {
            Ok(terminal) => terminal,
            Err(error) => {
                return self.queue_client_reply(key, PendingReply::Ready(Err(error)), now);
            }
        };
        match method {
            ClientMethod::TerminalOutput => {
                return self.queue_client_reply(key, PendingReply::Output(id.to_owned()), now);
            }
            ClientMethod::TerminalKill => terminal.kill(),
            ClientMethod::TerminalRelease => terminal.release(),
            _ => {}
        }
        // Whoever ends a command is answered when nothing of it is left.
        let over = terminal.exit();
        let is_gone = over.is_some() && terminal.is_released();
        match over {
            Some(exit) => {
                if is_gone {
                    clients.terminals.remove(id);
                }
                self.queue_client_reply(
                    key,
                    PendingReply::Ready(Ok(ClientOutput::Exited(exit))),
                    now,
                );
            }
            None => terminal.add_waiter(key),
        }
    }

    /// Something is heard of a request under way.
    pub(super) fn handle_client_update(
        &mut self,
        news: ClientUpdate,
        myself: &ChannelRef,
        now: Instant,
    ) {
        match news {
            ClientUpdate::Decided { key, verdict, task } => {
                self.client_call_decided(&key, verdict, (&task, myself), now);
            }
            ClientUpdate::File { key, answer, wrote } => {
                if let Some(wrote) = wrote {
                    let WrittenFile {
                        tool,
                        path,
                        sha256,
                        version,
                    } = wrote;
                    self.send_event(
                        Event::FileUpdated {
                            tool: tool.into(),
                            path: path.into(),
                            sha256,
                            version: version.map(Box::new),
                        },
                        None,
                    );
                }
                self.queue_client_reply(key, PendingReply::File(answer), now);
                self.start_waiting_files(myself);
            }
            ClientUpdate::Started {
                key,
                terminal,
                failed,
                what: (argv, cwd),
            } => {
                let Some(clients) = &mut self.client_requests else {
                    return;
                };
                let answer = if let Some(why) = failed {
                    // Whoever guessed its id waits for something that never was.
                    let waiting = clients.terminals.remove(&terminal);
                    for key in waiting.map(Terminal::into_waiters).unwrap_or_default() {
                        let shown = UntrustedText::from(terminal.as_str()).escape_for_display(60);
                        let none = ClientError::new(
                            ClientErrorKind::NotFound,
                            format!("terminal {shown}"),
                        );
                        self.queue_client_reply(key, PendingReply::Ready(Err(none)), now);
                    }
                    Err(ClientError::new(ClientErrorKind::Failed, why))
                } else {
                    if let Some(of) = clients.terminals.get_mut(&terminal) {
                        of.set_started();
                    }
                    self.send_event(
                        Event::TerminalStarted {
                            terminal: terminal.clone(),
                            argv: argv.into_iter().map(UntrustedText::new).collect(),
                            cwd: cwd.into(),
                        },
                        None,
                    );
                    Ok(ClientOutput::Terminal(terminal))
                };
                self.queue_client_reply(key, PendingReply::Ready(answer), now);
            }
            ClientUpdate::Output {
                terminal,
                delta,
                credit: hold,
            } => self.send_event(Event::TerminalOutput { terminal, delta }, Some(hold)),
            ClientUpdate::Ended {
                terminal,
                exit,
                wrote,
                untold,
            } => self.terminal_ended(terminal, exit, (wrote, untold), now),
        }
    }

    fn terminal_ended(
        &mut self,
        terminal: String,
        exit: TerminalExit,
        (wrote, untold): (u64, u64),
        now: Instant,
    ) {
        let of = self
            .client_requests
            .as_mut()
            .map(|clients| &mut clients.terminals);
        let Some(of) = of.and_then(|terminals| terminals.get_mut(&terminal)) else {
            return;
        };
        let waiting = of.end(exit);
        let is_released = of.is_released();
        if is_released && let Some(clients) = &mut self.client_requests {
            clients.terminals.remove(&terminal);
        }
        self.send_event(
            Event::TerminalEnded {
                terminal,
                status: exit.0,
                written_bytes: wrote,
                omitted_bytes: untold,
            },
            None,
        );
        for key in waiting {
            self.queue_client_reply(
                key,
                PendingReply::Ready(Ok(ClientOutput::Exited(exit))),
                now,
            );
        }
    }

    pub(super) fn send_event(&mut self, event: Event, hold: Option<CreditPermit>) {
        self.pool.meters.record_event(event.kind());
        self.send(vec![ChannelEvent::Event(event)], hold);
    }

    /// The verdict is durable: what is allowed begins now.
    fn client_call_decided(
        &mut self,
        key: &PermissionRequestKey,
        verdict: Result<String, ClientError>,
        (task, myself): (&TaskId, &ChannelRef),
        now: Instant,
    ) {
        let is_ending = self.ladder.has_begun() || self.ended.is_some();
        let Some(clients) = &mut self.client_requests else {
            return;
        };
        let Some(at) = clients.undecided.iter().position(|(open, _)| open == key) else {
            return; // It was withdrawn.
        };
        let (key, call) = clients.undecided.swap_remove(at);
        let begun = match (verdict, &clients.sandbox_entry) {
            (Err(error), _) => Err(error),
            (Ok(_), _) if is_ending => Err(ClientError::new(
                ClientErrorKind::Cancelled,
                "the session is ending",
            )),
            (Ok(_), None) => Err(ClientError::new(
                ClientErrorKind::Failed,
                "there is no sandbox",
            )),
            (Ok(place), Some(door)) => Ok((place, Arc::clone(door))),
        };
        let (place, door) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                return self.queue_client_reply(key, PendingReply::Ready(Err(error)), now);
            }
        };
        let call = match call {
            PendingCall::Client(call) => call,
            PendingCall::Tool(call) => {
                return self.tool_call_decided(key, *call, place, (task, myself), now);
            }
        };
        if let ClientCall::Run(spec) = &call {
            clients.last_terminal += 1;
            let id = format!("terminal-{}", clients.last_terminal);
            let errand = clients.errand(spec, place);
            let begun = terminal::start_terminal(terminal::TerminalStart {
                key,
                id: id.clone(),
                door,
                errand,
                wanted: spec.output_bytes,
                credits: self.credits.clone(),
                to: myself.clone(),
            });
            clients.terminals.insert(id, begun);
        } else if let Some(work) = clients.client_file_work(call, &place, task) {
            clients.queue_file(key, work);
            self.start_waiting_files(myself);
        }
    }

    /// The turn is over, or is to be: nothing of it begins any more. What is being read or written
    /// already, and terminals, go on.
    pub(super) fn cancel_client_requests(&mut self, now: Instant) {
        let Some(clients) = &mut self.client_requests else {
            return;
        };
        let judging = std::mem::take(&mut clients.undecided).into_iter();
        let waiting = std::mem::take(&mut clients.waiting).into_iter();
        let left: Vec<PermissionRequestKey> = waiting.map(|(key, _)| key).collect();
        let left: Vec<PermissionRequestKey> = left
            .into_iter()
            .chain(judging.map(|(key, _)| key))
            .collect();
        for key in left {
            let why = "the turn was over before this was begun";
            let error = ClientError::new(ClientErrorKind::Cancelled, why);
            self.queue_client_reply(key, PendingReply::Ready(Err(error)), now);
        }
    }

    /// Begins the next files, as far as there are places.
    pub(super) fn start_waiting_files(&mut self, myself: &ChannelRef) {
        let is_ending = self.ladder.has_begun() || self.ended.is_some();
        let Some(clients) = &mut self.client_requests else {
            return;
        };
        if is_ending {
            // Nobody is there any more to be told.
            return clients.waiting.clear();
        }
        while clients.files < CLIENT_FILES
            && let Some(door) = &clients.sandbox_entry
            && let Some((key, work)) = clients.waiting.pop_front()
        {
            clients.files += 1;
            let (door, to) = (Arc::clone(door), myself.clone());
            tokio::spawn(async move {
                let (answer, wrote) = run_file_work(&door, work).await;
                let news = ClientUpdate::File { key, answer, wrote };
                let _ = to.send_message(ChannelMsg::ClientUpdate(Box::new(news)));
            });
        }
    }

    pub(super) fn queue_client_reply(
        &mut self,
        key: PermissionRequestKey,
        reply: PendingReply,
        now: Instant,
    ) {
        // The agent waits for nothing but itself from here on: one that does not read is silent.
        self.request_closed(&key, now);
        if tools::is_engine_call(&key) {
            return self.reply_to_tool_call(&key, reply);
        }
        match &mut self.client_requests {
            Some(clients) => {
                clients.replies.push_back((key, reply));
                self.flush_client_replies(now);
            }
            None => {
                if let PendingReply::Ready(answer) = reply {
                    self.send_command(Command::AnswerClientRequest { key, answer }, now);
                }
            }
        }
    }

    /// Says what is to be said, as far as the child takes it in: an answer may be long, and one
    /// that is not read must not count as a child that hangs.
    pub(super) fn flush_client_replies(&mut self, now: Instant) {
        while let Some(clients) = &mut self.client_requests
            && self.stdin.as_ref().is_none_or(Stdin::has_room)
            && let Some((key, reply)) = clients.replies.pop_front()
        {
            let answer = match reply {
                PendingReply::Ready(answer) => answer,
                PendingReply::File(answer) => {
                    clients.files -= 1;
                    answer
                }
                PendingReply::Output(id) => clients.find_terminal(&id).map(|of| of.output()),
            };
            self.send_command(Command::AnswerClientRequest { key, answer }, now);
        }
        // Files that wait behind an answer which the agent does not take in wait for the agent.
        if let Some(clients) = &self.client_requests
            && !clients.replies.is_empty()
        {
            let waiting = clients.waiting.iter().map(|(key, _)| key.clone());
            for key in waiting.collect::<Vec<_>>() {
                self.request_closed(&key, now);
            }
        }
    }
}
