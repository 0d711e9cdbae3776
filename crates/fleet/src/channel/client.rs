//! Requests that the agent makes of its client: reading and writing files and running commands,
//! inside its own sandbox.
//!
//! Owns the open requests of one child from their verdict to their reply, and the child's
//! terminals. Nothing starts before the session reports that the verdict is durable. Each file and
//! each command runs in its own task and reports back, so none of them blocks the channel. Must not
//! know rules, nor the protocol's messages.
//!
//! The path of a request: `dialect/acp/client.rs` accepts it if the pool offers the method. The
//! session evaluates it (`session/permissions/client_requests.rs`, `policy/client.rs`). When the verdict is durable, the
//! work enters the sandbox through `launch/sandbox_entry.rs`. A reply waits until the queue of the
//! child's stdin has room for a long one. Methods on an existing terminal need no verdict.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::files::{FileAction, FilePlace, FileWork, WrittenFile, run_file_work};
use super::outside_write::OutsideWrites;
use super::state::ChannelState;
use super::stdin::Stdin;
use super::terminal::{self, Terminal};
use super::tools::{self, EngineTools, ToolSetup};
use crate::credit::CreditPermit;
use crate::files::SessionVersions;
use crate::messages::{ChannelEvent, ChannelMsg, ChannelRef};
use marshal_dialect::Command;
use marshal_launch::{ExecRequest, ProcessLimits, SandboxEntry};
use marshal_model::limits::{CLIENT_FILES, TERMINALS};
use marshal_model::{
    ClientCall, ClientError, ClientErrorKind, ClientMethod, ClientOutput, ClientResult, EngineCall,
    Event, PermissionRequest, PermissionRequestKey, TaskId, TerminalExit, TerminalSpec,
    UntrustedText,
};

/// What all client requests of one session share.
#[derive(Debug, Clone)]
pub(crate) struct ClientSetup {
    /// The environment of every terminal.
    pub(crate) env: Vec<(String, String)>,
    /// The limits of every terminal.
    pub(crate) limits: ProcessLimits,
    /// The workspace path inside the sandbox.
    pub(crate) workspace: String,
    /// The file versions of the workspace; `None` if none are recorded.
    pub(crate) versions: Option<SessionVersions>,
    /// What the supervisor writes for an agent that sees its workspace read-only; `None` if files
    /// are written inside the sandbox.
    pub(crate) outside_writes: Option<Arc<OutsideWrites>>,
    /// The engine tools that the agent gets; `None` if the pool offers none.
    pub(crate) tools: Option<ToolSetup>,
}

/// An update on an open client request.
#[derive(Debug)]
pub(crate) enum ClientUpdate {
    /// The verdict is durable: the evaluated path, or why the request is not carried out.
    Decided {
        /// The request.
        key: PermissionRequestKey,
        /// On allow, the path that the policy evaluated.
        verdict: Result<String, ClientError>,
        /// The task during which the agent made the request.
        task: TaskId,
    },
    /// A file operation ended, successfully or not.
    File {
        /// The request.
        key: PermissionRequestKey,
        /// The result for the agent.
        answer: ClientResult,
        /// The file, if it was written or may have been.
        wrote: Option<WrittenFile>,
    },
    /// A command started, or failed to start.
    Started {
        /// The request.
        key: PermissionRequestKey,
        /// Its terminal.
        terminal: String,
        /// Why it failed to start.
        failed: Option<String>,
        /// Program with arguments, and working directory.
        what: (Vec<String>, String),
    },
    /// A command wrote output.
    Output {
        /// Its terminal.
        terminal: String,
        /// The new output.
        delta: UntrustedText,
        /// Returned when the event is durable.
        credit: CreditPermit,
    },
    /// A command ended, and none of its processes is left.
    Ended {
        /// Its terminal.
        terminal: String,
        /// The exit status.
        exit: TerminalExit,
        /// Bytes that it wrote.
        wrote: u64,
        /// Bytes of these that were not reported as events.
        untold: u64,
    },
}

/// A call that waits for its verdict.
#[derive(Debug)]
pub(super) enum PendingCall {
    /// A client method of the protocol.
    Client(ClientCall),
    /// A call of an engine tool.
    Tool(Box<EngineCall>),
}

/// A reply that waits until the queue of the child's stdin has room.
#[derive(Debug)]
pub(super) enum PendingReply {
    /// A complete reply.
    Ready(ClientResult),
    /// The reply of a file operation. Sending it frees one of the `CLIENT_FILES` places.
    File(ClientResult),
    /// The output of this terminal at the time of sending.
    Output(String),
}

/// The requests and terminals of one child.
#[derive(Debug)]
pub(super) struct ClientRequests {
    setup: ClientSetup,
    /// The engine tools of this child.
    pub(super) tools: EngineTools,
    sandbox_entry: Option<Arc<SandboxEntry>>,
    /// Calls that wait for their verdict.
    pub(super) undecided: Vec<(PermissionRequestKey, PendingCall)>,
    waiting: VecDeque<(PermissionRequestKey, FileWork)>,
    /// File operations that run, or whose reply waits.
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

    /// Sets the entry into the sandbox of a child that was just started.
    pub(super) fn set_sandbox_entry(&mut self, entry: Option<Arc<SandboxEntry>>) {
        self.sandbox_entry = entry;
    }

    /// Counts the open terminals, and the undecided requests for new ones.
    fn terminal_count(&self) -> usize {
        let coming = self.undecided.iter();
        let coming =
            coming.filter(|(_, call)| matches!(call, PendingCall::Client(ClientCall::Run(_))));
        self.terminals.len() + coming.count()
    }

    /// Drops a request that the agent withdrew.
    pub(super) fn withdraw(&mut self, key: &PermissionRequestKey) {
        self.undecided.retain(|(open, _)| open != key);
        self.waiting.retain(|(open, _)| open != key);
        for terminal in self.terminals.values_mut() {
            terminal.remove_waiter(key);
        }
    }

    fn find_terminal(&mut self, id: &str) -> Result<&mut Terminal, ClientError> {
        let terminal = self
            .terminals
            .get_mut(id)
            .filter(|item| !item.is_released());
        terminal.ok_or_else(|| {
            let shown = UntrustedText::from(id).escape_for_display(60);
            ClientError::new(ClientErrorKind::NotFound, format!("terminal {shown}"))
        })
    }

    /// Builds the file operation for an evaluated path; `None` if that is not below the workspace.
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
            file: versions.and_then(|item| item.file(&below, task)),
            outside: self.setup.outside_writes.clone(),
            below,
        };
        Some(FileWork { at, act })
    }

    fn client_file_work(&self, call: ClientCall, place: &str, task: &TaskId) -> Option<FileWork> {
        let method = call.method().as_str();
        let (path, act) = match call {
            ClientCall::Read { path, line, limit } => (path, FileAction::Read { line, limit }),
            ClientCall::Write { path, content } => {
                let (text, base) = (content, None);
                (path, FileAction::Write { text, base })
            }
            ClientCall::Run(_) | ClientCall::Terminal { .. } | ClientCall::Ask { .. } => {
                return None;
            }
        };
        self.file_work((method, path), place, act, task)
    }

    /// Queues a file operation.
    pub(super) fn queue_file(&mut self, key: PermissionRequestKey, work: FileWork) {
        self.waiting.push_back((key, work));
    }

    /// The engine tools that the agent gets.
    pub(super) fn tool_setup(&self) -> Option<&ToolSetup> {
        self.setup.tools.as_ref()
    }

    /// Frees the place of a tool call's file operation.
    pub(super) fn release_file(&mut self) {
        self.files = self.files.saturating_sub(1);
    }

    fn exec_request(&self, spec: &TerminalSpec, cwd: String) -> ExecRequest {
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

    /// Ends all terminals of a child that is gone, and gives the events for those that ran.
    pub(super) fn end_terminals(&mut self) -> Vec<ChannelEvent> {
        let left = std::mem::take(&mut self.terminals).into_iter();
        left.filter(|(_, item)| item.is_running())
            .map(|(terminal, item)| {
                let (wrote, untold) = item.byte_counts();
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
    /// Handles a client call. A call that needs a verdict goes to the session first.
    pub(super) fn handle_client_call(
        &mut self,
        key: PermissionRequestKey,
        call: ClientCall,
        agent_request: Option<Box<PermissionRequest>>,
        now: Instant,
    ) -> Option<ChannelEvent> {
        self.request_opened(&key);
        let Some(clients) = &mut self.client_requests else {
            let error = ClientError::new(
                ClientErrorKind::Failed,
                "this pool offers no client methods",
            );
            self.queue_client_reply(key, PendingReply::Ready(Err(error)), now);
            return None;
        };
        if matches!(call, ClientCall::Run(_)) && clients.terminal_count() >= TERMINALS {
            let why = format!("{TERMINALS} terminals are open: release one first");
            let error = ClientError::new(ClientErrorKind::Failed, why);
            self.queue_client_reply(key, PendingReply::Ready(Err(error)), now);
            return None;
        }
        match (agent_request, call.policy_request(), &call) {
            (Some(agent_request), Some(request), _) => {
                clients.undecided.push((key, PendingCall::Client(call)));
                Some(ChannelEvent::ClientRequest {
                    permission_request: agent_request,
                    request,
                })
            }
            (_, _, ClientCall::Terminal { method, id }) => {
                self.handle_terminal_call(key, *method, id, now);
                None
            }
            _ => None,
        }
    }

    /// Handles a method on an existing terminal.
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
        // A kill or release is answered only when no process of the command is left.
        let exit = terminal.exit();
        let is_gone = exit.is_some() && terminal.is_released();
        match exit {
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

    /// Handles an update on an open request.
    pub(super) fn handle_client_update(
        &mut self,
        update: ClientUpdate,
        myself: &ChannelRef,
        now: Instant,
    ) {
        match update {
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
                let reply = if let Some(why) = failed {
                    // The agent may have guessed the id and wait for a terminal that never existed.
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
                    if let Some(item) = clients.terminals.get_mut(&terminal) {
                        item.set_started();
                    }
                    self.send_event(
                        Event::TerminalStarted {
                            terminal: terminal.clone(),
                            argv: argv.into_iter().map(UntrustedText::new).collect(),
                            cwd: cwd.into(),
                            by: None,
                        },
                        None,
                    );
                    Ok(ClientOutput::Terminal(terminal))
                };
                self.queue_client_reply(key, PendingReply::Ready(reply), now);
            }
            ClientUpdate::Output {
                terminal,
                delta,
                credit,
            } => self.send_event(Event::TerminalOutput { terminal, delta }, Some(credit)),
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
        let terminal_state = self
            .client_requests
            .as_mut()
            .map(|clients| &mut clients.terminals);
        let Some(terminal_state) =
            terminal_state.and_then(|terminals| terminals.get_mut(&terminal))
        else {
            return;
        };
        let waiting = terminal_state.end(exit);
        let is_released = terminal_state.is_released();
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

    pub(super) fn send_event(&mut self, event: Event, credit: Option<CreditPermit>) {
        self.pool.meters.record_event(event.kind());
        self.send(vec![ChannelEvent::Event(event)], credit);
    }

    /// The verdict is durable: an allowed call starts now.
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
        let is_question = matches!(call, PendingCall::Client(ClientCall::Ask { .. }));
        let begun = match (verdict, &clients.sandbox_entry) {
            (Err(error), _) => Err(error),
            (Ok(answer), _) if is_question && !is_ending => {
                let reply = PendingReply::Ready(Ok(ClientOutput::Text(answer)));
                return self.queue_client_reply(key, reply, now);
            }
            (Ok(_), _) if is_ending => Err(ClientError::new(
                ClientErrorKind::Cancelled,
                "the session is ending",
            )),
            (Ok(_), None) => Err(ClientError::new(
                ClientErrorKind::Failed,
                "the agent has no sandbox to run this in",
            )),
            (Ok(place), Some(entry)) => Ok((place, Arc::clone(entry))),
        };
        let (place, entry) = match begun {
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
            let exec_request = clients.exec_request(spec, place);
            let begun = terminal::start_terminal(terminal::TerminalStart {
                key,
                id: id.clone(),
                entry,
                exec_request,
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

    /// The turn ended or is being cancelled: queued calls are dropped. File operations that already
    /// run, and terminals, continue.
    pub(super) fn cancel_client_requests(&mut self, now: Instant) {
        let Some(clients) = &mut self.client_requests else {
            return;
        };
        let undecided = std::mem::take(&mut clients.undecided).into_iter();
        let waiting = std::mem::take(&mut clients.waiting).into_iter();
        let left: Vec<PermissionRequestKey> = waiting.map(|(key, _)| key).collect();
        let left: Vec<PermissionRequestKey> = left
            .into_iter()
            .chain(undecided.map(|(key, _)| key))
            .collect();
        for key in left {
            let why = "the turn ended before this started";
            let error = ClientError::new(ClientErrorKind::Cancelled, why);
            self.queue_client_reply(key, PendingReply::Ready(Err(error)), now);
        }
    }

    /// Starts queued file operations, as far as places are free.
    pub(super) fn start_waiting_files(&mut self, myself: &ChannelRef) {
        let is_ending = self.ladder.has_begun() || self.ended.is_some();
        let Some(clients) = &mut self.client_requests else {
            return;
        };
        if is_ending {
            // The child is ending, so nobody reads a reply.
            return clients.waiting.clear();
        }
        while clients.files < CLIENT_FILES
            && let Some(entry) = &clients.sandbox_entry
            && let Some((key, work)) = clients.waiting.pop_front()
        {
            clients.files += 1;
            let (entry, to) = (Arc::clone(entry), myself.clone());
            tokio::spawn(async move {
                let (answer, wrote) = run_file_work(&entry, work).await;
                let update = ClientUpdate::File { key, answer, wrote };
                let _ = to.send_message(ChannelMsg::ClientUpdate(Box::new(update)));
            });
        }
    }

    pub(super) fn queue_client_reply(
        &mut self,
        key: PermissionRequestKey,
        reply: PendingReply,
        now: Instant,
    ) {
        // From here on the agent waits only for itself: the silence deadline applies to an agent
        // that does not read its input.
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

    /// Sends waiting replies while the queue of the child's stdin has room. A reply may be long,
    /// and an agent that does not read it must not count as a child that hangs.
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
                PendingReply::Output(id) => clients.find_terminal(&id).map(|item| item.output()),
            };
            self.send_command(Command::AnswerClientRequest { key, answer }, now);
        }
        // Files queued behind a reply that the agent does not read wait for the agent, not for us.
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
