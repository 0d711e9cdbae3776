//! What the agent has its client do: files read and written, commands run, inside its own walls.
//!
//! Owns the open requests of one child from their verdict to their answer, and the child's
//! terminals. Nothing is begun before the session says that the verdict is durable. Each file and
//! each command is a plain task, which reports; none of them holds up the channel. Must not know
//! rules, nor how the protocol says any of this.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::files::{Act, FilePlace, FileWork, Wrote, carry_out};
use super::state::ChannelState;
use super::stdin::Stdin;
use super::terminal::{self, Terminal};
use super::tools::{self, ToolSetup, Tools};
use super::{ChannelMsg, ChannelRef};
use crate::dialect::Command;
use crate::fleet::credit::Hold;
use crate::fleet::files::Versioning;
use crate::fleet::session::Item;
use crate::launch::{Door, Errand, Limits};
use crate::limits::{CLIENT_FILES, TERMINALS};
use crate::model::{
    Ask, AskKey, ClientAnswer, ClientCall, ClientDone, ClientError, ClientFault, ClientMethod,
    EngineCall, Event, Foreign, TaskId, TerminalExit, TerminalSpec,
};

/// What every command for the agent has, and where its files are.
#[derive(Debug, Clone)]
pub(crate) struct ClientSetup {
    /// The environment of every terminal.
    pub(crate) env: Vec<(String, String)>,
    /// The limits of every terminal.
    pub(crate) limits: Limits,
    /// The workspace, as seen inside.
    pub(crate) workspace: String,
    /// The versions of its files, if they are kept.
    pub(crate) versions: Option<Versioning>,
    /// The tools that it gets, if it gets any.
    pub(crate) tools: Option<ToolSetup>,
}

/// What is heard of the requests under way.
#[derive(Debug)]
pub(crate) enum ClientNews {
    /// The verdict is durable: the place that was judged, or why nothing is done.
    Judged {
        /// The request.
        key: AskKey,
        /// Go on, there.
        verdict: Result<String, ClientError>,
        /// The task that it was asked in.
        task: TaskId,
    },
    /// A file was read or written, or not.
    File {
        /// The request.
        key: AskKey,
        /// What came of it.
        answer: ClientAnswer,
        /// The file, if it was written, or may have been.
        wrote: Option<Wrote>,
    },
    /// A command runs, or does not.
    Started {
        /// The request.
        key: AskKey,
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
        delta: Foreign,
        /// Drops when it is durable.
        hold: Hold,
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
pub(super) enum Wanted {
    /// Of its client.
    Client(ClientCall),
    /// Of a tool of ours.
    Tool(Box<EngineCall>),
}

/// What is to be said, once the child's stdin has room for it.
#[derive(Debug)]
pub(super) enum Reply {
    /// This.
    Ready(ClientAnswer),
    /// The same, of a file: its place among those that are worked on is free then.
    File(ClientAnswer),
    /// What this terminal's command has written by then.
    Output(String),
}

/// The requests and terminals of one child.
#[derive(Debug)]
pub(super) struct Clients {
    setup: ClientSetup,
    /// The tools that we give it.
    pub(super) tools: Tools,
    door: Option<Arc<Door>>,
    /// What waits for its verdict.
    pub(super) judging: Vec<(AskKey, Wanted)>,
    waiting: VecDeque<(AskKey, FileWork)>,
    /// Files that are worked on, or whose answer waits.
    files: usize,
    terminals: BTreeMap<String, Terminal>,
    last_terminal: u64,
    replies: VecDeque<(AskKey, Reply)>,
}

impl Clients {
    pub(super) fn new(setup: ClientSetup) -> Self {
        Self {
            setup,
            tools: Tools::default(),
            door: None,
            judging: Vec::new(),
            waiting: VecDeque::new(),
            files: 0,
            terminals: BTreeMap::new(),
            last_terminal: 0,
            replies: VecDeque::new(),
        }
    }

    /// The child runs, and this leads into its walls.
    pub(super) fn has_door(&mut self, door: Option<Door>) {
        self.door = door.map(Arc::new);
    }

    /// Terminals that there are or will be.
    fn crowd(&self) -> usize {
        let coming = self.judging.iter();
        let coming = coming.filter(|(_, call)| matches!(call, Wanted::Client(ClientCall::Run(_))));
        self.terminals.len() + coming.count()
    }

    /// Nobody waits for this answer any more.
    pub(super) fn withdrawn(&mut self, key: &AskKey) {
        self.judging.retain(|(open, _)| open != key);
        self.waiting.retain(|(open, _)| open != key);
        for terminal in self.terminals.values_mut() {
            terminal.forget(key);
        }
    }

    fn known(&mut self, id: &str) -> Result<&mut Terminal, ClientError> {
        let found = self.terminals.get_mut(id).filter(|of| !of.is_released());
        found.ok_or_else(|| {
            let shown = Foreign::from(id).show(60);
            ClientError::new(ClientFault::NotFound, format!("terminal {shown}"))
        })
    }

    /// The place that was judged, as a path below the workspace.
    pub(super) fn file_work(
        &self,
        (tool, path): (&'static str, String),
        place: &str,
        act: Act,
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

    fn file_order(&self, call: ClientCall, place: &str, task: &TaskId) -> Option<FileWork> {
        let method = call.method().word();
        let (path, act) = match call {
            ClientCall::Read { path, line, limit } => (path, Act::Read { line, limit }),
            ClientCall::Write { path, content } => {
                let (text, base) = (content, None);
                (path, Act::Write { text, base })
            }
            ClientCall::Run(_) | ClientCall::Terminal { .. } => return None,
        };
        self.file_work((method, path), place, act, task)
    }

    /// A file waits for its turn.
    pub(super) fn file_waits(&mut self, key: AskKey, work: FileWork) {
        self.waiting.push_back((key, work));
    }

    /// The tools that the agent gets, and where.
    pub(super) fn tool_setup(&self) -> Option<&ToolSetup> {
        self.setup.tools.as_ref()
    }

    /// A file of a tool's call is done.
    pub(super) fn file_done(&mut self) {
        self.files = self.files.saturating_sub(1);
    }

    fn errand(&self, spec: &TerminalSpec, cwd: String) -> Errand {
        let mut env = self.setup.env.clone();
        for (name, value) in &spec.env {
            env.retain(|(known, _)| known != name);
            env.push((name.clone(), value.clone()));
        }
        Errand {
            argv: spec.argv.clone(),
            env,
            cwd,
            limits: self.setup.limits,
        }
    }

    /// What the terminals that are left come to when their child is gone.
    pub(super) fn gone(&mut self) -> Vec<Item> {
        let left = std::mem::take(&mut self.terminals).into_iter();
        left.filter(|(_, of)| of.runs())
            .map(|(terminal, of)| {
                let (wrote, untold) = of.counted();
                Item::Event(Event::TerminalEnded {
                    terminal,
                    status: None,
                    wrote,
                    untold,
                })
            })
            .collect()
    }
}

impl ChannelState {
    /// The agent wants something. What must be judged goes to the session first.
    pub(super) fn client_wanted(
        &mut self,
        key: AskKey,
        call: ClientCall,
        ask: Option<Box<Ask>>,
        now: Instant,
    ) -> Option<Item> {
        self.ask_opened(&key);
        let Some(clients) = &mut self.clients else {
            let error = ClientError::new(ClientFault::Failed, "this is not offered");
            self.client_reply(key, Reply::Ready(Err(error)), now);
            return None;
        };
        if matches!(call, ClientCall::Run(_)) && clients.crowd() >= TERMINALS {
            let why = format!("{TERMINALS} terminals are open: release one first");
            let error = ClientError::new(ClientFault::Failed, why);
            self.client_reply(key, Reply::Ready(Err(error)), now);
            return None;
        }
        match (ask, call.wish(), &call) {
            (Some(ask), Some(wish), _) => {
                clients.judging.push((key, Wanted::Client(call)));
                Some(Item::Client { ask, wish })
            }
            (_, _, ClientCall::Terminal { method, id }) => {
                self.client_terminal(key, *method, id, now);
                None
            }
            _ => None,
        }
    }

    /// The methods about a terminal that is there.
    fn client_terminal(&mut self, key: AskKey, method: ClientMethod, id: &str, now: Instant) {
        let Some(clients) = &mut self.clients else {
            return;
        };
        let terminal = match clients.known(id) {
            Ok(terminal) => terminal,
            Err(error) => return self.client_reply(key, Reply::Ready(Err(error)), now),
        };
        match method {
            ClientMethod::TerminalOutput => {
                return self.client_reply(key, Reply::Output(id.to_owned()), now);
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
                self.client_reply(key, Reply::Ready(Ok(ClientDone::Exited(exit))), now);
            }
            None => terminal.wait(key),
        }
    }

    /// Something is heard of a request under way.
    pub(super) fn client_news(&mut self, news: ClientNews, myself: &ChannelRef, now: Instant) {
        match news {
            ClientNews::Judged { key, verdict, task } => {
                self.client_judged(&key, verdict, (&task, myself), now);
            }
            ClientNews::File { key, answer, wrote } => {
                if let Some(wrote) = wrote {
                    let Wrote {
                        tool,
                        path,
                        sha256,
                        version,
                    } = wrote;
                    self.client_event(
                        Event::FileUpdated {
                            tool: tool.into(),
                            path: path.into(),
                            sha256,
                            version: version.map(Box::new),
                        },
                        None,
                    );
                }
                self.client_reply(key, Reply::File(answer), now);
                self.client_files(myself);
            }
            ClientNews::Started {
                key,
                terminal,
                failed,
                what: (argv, cwd),
            } => {
                let Some(clients) = &mut self.clients else {
                    return;
                };
                let answer = if let Some(why) = failed {
                    // Whoever guessed its id waits for something that never was.
                    let waiting = clients.terminals.remove(&terminal);
                    for key in waiting.map(Terminal::never_began).unwrap_or_default() {
                        let shown = Foreign::from(terminal.as_str()).show(60);
                        let none =
                            ClientError::new(ClientFault::NotFound, format!("terminal {shown}"));
                        self.client_reply(key, Reply::Ready(Err(none)), now);
                    }
                    Err(ClientError::new(ClientFault::Failed, why))
                } else {
                    if let Some(of) = clients.terminals.get_mut(&terminal) {
                        of.started();
                    }
                    self.client_event(
                        Event::TerminalStarted {
                            terminal: terminal.clone(),
                            argv: argv.into_iter().map(Foreign::new).collect(),
                            cwd: cwd.into(),
                        },
                        None,
                    );
                    Ok(ClientDone::Terminal(terminal))
                };
                self.client_reply(key, Reply::Ready(answer), now);
            }
            ClientNews::Output {
                terminal,
                delta,
                hold,
            } => self.client_event(Event::TerminalOutput { terminal, delta }, Some(hold)),
            ClientNews::Ended {
                terminal,
                exit,
                wrote,
                untold,
            } => self.client_ended(terminal, exit, (wrote, untold), now),
        }
    }

    fn client_ended(
        &mut self,
        terminal: String,
        exit: TerminalExit,
        (wrote, untold): (u64, u64),
        now: Instant,
    ) {
        let of = self.clients.as_mut().map(|clients| &mut clients.terminals);
        let Some(of) = of.and_then(|terminals| terminals.get_mut(&terminal)) else {
            return;
        };
        let waiting = of.ended(exit);
        let is_released = of.is_released();
        if is_released && let Some(clients) = &mut self.clients {
            clients.terminals.remove(&terminal);
        }
        self.client_event(
            Event::TerminalEnded {
                terminal,
                status: exit.0,
                wrote,
                untold,
            },
            None,
        );
        for key in waiting {
            self.client_reply(key, Reply::Ready(Ok(ClientDone::Exited(exit))), now);
        }
    }

    pub(super) fn client_event(&mut self, event: Event, hold: Option<Hold>) {
        self.pool.meters.event(event.kind());
        self.send(vec![Item::Event(event)], hold);
    }

    /// The verdict is durable: what is allowed begins now.
    fn client_judged(
        &mut self,
        key: &AskKey,
        verdict: Result<String, ClientError>,
        (task, myself): (&TaskId, &ChannelRef),
        now: Instant,
    ) {
        let is_ending = self.ladder.has_begun() || self.ended.is_some();
        let Some(clients) = &mut self.clients else {
            return;
        };
        let Some(at) = clients.judging.iter().position(|(open, _)| open == key) else {
            return; // It was withdrawn.
        };
        let (key, call) = clients.judging.swap_remove(at);
        let begun = match (verdict, &clients.door) {
            (Err(error), _) => Err(error),
            (Ok(_), _) if is_ending => Err(ClientError::new(
                ClientFault::Cancelled,
                "the session is ending",
            )),
            (Ok(_), None) => Err(ClientError::new(ClientFault::Failed, "there is no sandbox")),
            (Ok(place), Some(door)) => Ok((place, Arc::clone(door))),
        };
        let (place, door) = match begun {
            Ok(begun) => begun,
            Err(error) => return self.client_reply(key, Reply::Ready(Err(error)), now),
        };
        let call = match call {
            Wanted::Client(call) => call,
            Wanted::Tool(call) => {
                return self.tool_judged(key, *call, place, (task, myself), now);
            }
        };
        if let ClientCall::Run(spec) = &call {
            clients.last_terminal += 1;
            let id = format!("terminal-{}", clients.last_terminal);
            let errand = clients.errand(spec, place);
            let begun = terminal::begin(terminal::Begin {
                key,
                id: id.clone(),
                door,
                errand,
                wanted: spec.output_bytes,
                credits: self.credits.clone(),
                to: myself.clone(),
            });
            clients.terminals.insert(id, begun);
        } else if let Some(work) = clients.file_order(call, &place, task) {
            clients.file_waits(key, work);
            self.client_files(myself);
        }
    }

    /// The turn is over, or is to be: nothing of it begins any more. What is being read or written
    /// already, and terminals, go on.
    pub(super) fn client_turn_over(&mut self, now: Instant) {
        let Some(clients) = &mut self.clients else {
            return;
        };
        let judging = std::mem::take(&mut clients.judging).into_iter();
        let waiting = std::mem::take(&mut clients.waiting).into_iter();
        let left: Vec<AskKey> = waiting.map(|(key, _)| key).collect();
        let left: Vec<AskKey> = left
            .into_iter()
            .chain(judging.map(|(key, _)| key))
            .collect();
        for key in left {
            let why = "the turn was over before this was begun";
            let error = ClientError::new(ClientFault::Cancelled, why);
            self.client_reply(key, Reply::Ready(Err(error)), now);
        }
    }

    /// Begins the next files, as far as there are places.
    pub(super) fn client_files(&mut self, myself: &ChannelRef) {
        let is_ending = self.ladder.has_begun() || self.ended.is_some();
        let Some(clients) = &mut self.clients else {
            return;
        };
        if is_ending {
            // Nobody is there any more to be told.
            return clients.waiting.clear();
        }
        while clients.files < CLIENT_FILES
            && let Some(door) = &clients.door
            && let Some((key, work)) = clients.waiting.pop_front()
        {
            clients.files += 1;
            let (door, to) = (Arc::clone(door), myself.clone());
            tokio::spawn(async move {
                let (answer, wrote) = carry_out(&door, work).await;
                let news = ClientNews::File { key, answer, wrote };
                let _ = to.send_message(ChannelMsg::Client(Box::new(news)));
            });
        }
    }

    pub(super) fn client_reply(&mut self, key: AskKey, reply: Reply, now: Instant) {
        // The agent waits for nothing but itself from here on: one that does not read is silent.
        self.ask_closed(&key, now);
        if tools::is_ours(&key) {
            return self.tool_reply(&key, reply);
        }
        match &mut self.clients {
            Some(clients) => {
                clients.replies.push_back((key, reply));
                self.client_replies(now);
            }
            None => {
                if let Reply::Ready(answer) = reply {
                    self.command(Command::Client { key, answer }, now);
                }
            }
        }
    }

    /// Says what is to be said, as far as the child takes it in: an answer may be long, and one
    /// that is not read must not count as a child that hangs.
    pub(super) fn client_replies(&mut self, now: Instant) {
        while let Some(clients) = &mut self.clients
            && self.stdin.as_ref().is_none_or(Stdin::has_room)
            && let Some((key, reply)) = clients.replies.pop_front()
        {
            let answer = match reply {
                Reply::Ready(answer) => answer,
                Reply::File(answer) => {
                    clients.files -= 1;
                    answer
                }
                Reply::Output(id) => clients.known(&id).map(|of| of.output()),
            };
            self.command(Command::Client { key, answer }, now);
        }
        // Files that wait behind an answer which the agent does not take in wait for the agent.
        if let Some(clients) = &self.clients
            && !clients.replies.is_empty()
        {
            let waiting = clients.waiting.iter().map(|(key, _)| key.clone());
            for key in waiting.collect::<Vec<_>>() {
                self.ask_closed(&key, now);
            }
        }
    }
}
