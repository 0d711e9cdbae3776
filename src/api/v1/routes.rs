//! The one table of the routes: from it come the router, the OpenAPI document and the table of
//! `docs/rest.md`.
//!
//! Owns what each takes, gives and refuses, and the least role that it needs. Must not know how a
//! request is read.

mod chats;
mod files;

use axum::http::Method;

use super::{
    Handler, asks, events, files as pages, fleet, openapi, overlays, reload, sessions, supervisor,
    tasks,
};
use crate::limits;
use crate::model::{PoolFlow, Role};

/// What a key of a query may be.
#[derive(Debug, Clone, Copy)]
pub enum Given {
    /// A number of items.
    Limit,
    /// `true` or `false`.
    Flag,
    /// One of these.
    Word(&'static [&'static str]),
    /// A text that is not empty.
    Text {
        /// In characters.
        longest: usize,
    },
}

impl Given {
    /// In words.
    #[must_use]
    pub fn told(self) -> String {
        match self {
            Self::Limit => format!("a number from 1 to {}", super::call::LONGEST_PAGE),
            Self::Flag => "true or false".to_owned(),
            Self::Word(words) => format!("one of {}", words.join(", ")),
            Self::Text { longest } => format!("a text of 1 to {longest} characters"),
        }
    }
}

/// A key of a query.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub is: Given,
    /// What it does.
    pub does: &'static str,
}

/// One route.
#[derive(Debug)]
pub struct Route {
    /// How it is asked.
    pub method: Method,
    /// Where.
    pub path: &'static str,
    /// The least role that may.
    pub role: Role,
    /// Its name in the OpenAPI document.
    pub name: &'static str,
    /// What it does, in one line.
    pub does: &'static str,
    /// The keys of its query.
    pub query: &'static [Key],
    /// Headers that it looks at: name, what it is, the most characters of it.
    pub headers: &'static [(&'static str, &'static str, usize)],
    /// The schema of its body, if it takes one.
    pub body: Option<&'static str>,
    /// The most bytes of it.
    pub body_bytes: u64,
    /// What it answers when it is done: status and schema.
    pub gives: (u16, &'static str),
    /// With which further statuses it refuses, beside those that every route has.
    pub refuses: &'static [u16],
    pub(super) handle: Handler,
}

/// The schema's name of what is a stream.
pub const STREAM: &str = "text/event-stream";
/// The schema's name of an answer without a body.
pub const NOTHING: &str = "";

const LIMIT: Key = Key {
    name: "limit",
    is: Given::Limit,
    does: "how many items; 100 if not given",
};
const CURSOR: Key = Key {
    name: "cursor",
    is: Given::Text { longest: 400 },
    does: "`next` of the page before",
};
const POOL: Key = Key {
    name: "pool",
    is: Given::Text { longest: 32 },
    does: "of this pool only",
};
const LAST_EVENT: &[(&str, &str, usize)] = &[(
    "Last-Event-ID",
    "the id of the last event that was read; it goes before `after`",
    200,
)];

/// A route that only looks.
const LOOKS: Route = Route {
    method: Method::GET,
    path: "",
    role: Role::Read,
    name: "",
    does: "",
    query: &[],
    headers: &[],
    body: None,
    body_bytes: limits::HTTP_BODY_BYTES,
    gives: (200, ""),
    refuses: &[],
    handle: |desk, call| Box::pin(fleet::summary(desk, call)),
};
/// A route that does something.
const ACTS: Route = Route {
    method: Method::POST,
    role: Role::Operate,
    refuses: &[404, 409],
    ..LOOKS
};

/// All of them, by their paths.
pub fn all() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().chain(chats::ROUTES).chain(files::ROUTES)
}

/// Those of the fleet itself; their paths stand before those of workspaces.
static ROUTES: &[Route] = &[
    Route {
        path: "/api/v1/agents",
        name: "listAgents",
        does: "The agents that are built in, and which of them this host has",
        gives: (200, "AgentList"),
        handle: |desk, call| Box::pin(supervisor::agents(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/asks",
        name: "listAsks",
        does: "The asks that wait for a person, or the newest of those that are over",
        query: &[
            Key {
                name: "over",
                is: Given::Flag,
                does: "those that are over instead",
            },
            LIMIT,
            CURSOR,
        ],
        gives: (200, "AskList"),
        handle: |desk, call| Box::pin(asks::list(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/asks/{ask}",
        name: "getAsk",
        does: "One ask with everything that is known of it",
        gives: (200, "Ask"),
        refuses: &[404],
        handle: |desk, call| Box::pin(asks::one(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/asks/{ask}",
        role: Role::Approve,
        name: "answerAsk",
        does: "Answers an ask; returns when the answer is durable",
        body: Some("AskAnswer"),
        gives: (200, "AskAnswered"),
        handle: |desk, call| Box::pin(asks::answer(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/config",
        name: "getConfig",
        does: "The configuration that is in force, every secret hidden",
        gives: (200, "Config"),
        handle: |desk, call| Box::pin(supervisor::config(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/config/reload",
        role: Role::Admin,
        name: "reloadConfig",
        does: "Reads the file and the policies again; takes over what can be while running, and says what needs a start",
        gives: (200, "Reloaded"),
        refuses: &[422],
        handle: |desk, call| Box::pin(reload::reload(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/events",
        name: "streamEvents",
        does: "What happens in the whole fleet, as server-sent events",
        query: &[
            Key {
                name: "kind",
                is: Given::Text { longest: 400 },
                does: "of these kinds only, with commas between them",
            },
            POOL,
            Key {
                name: "session",
                is: Given::Text { longest: 128 },
                does: "of this session only",
            },
            Key {
                name: "after",
                is: Given::Text { longest: 32 },
                does: "after this cursor; from now on if not given",
            },
        ],
        headers: LAST_EVENT,
        gives: (200, STREAM),
        refuses: &[],
        handle: |desk, call| Box::pin(events::of_fleet(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/fleet",
        name: "getFleet",
        does: "The fleet in short: version, readiness, pools, slots by state, open asks",
        gives: (200, "Fleet"),
        handle: |desk, call| Box::pin(fleet::summary(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/openapi.json",
        name: "getOpenapi",
        does: "This document",
        gives: (200, "OpenApi"),
        handle: |desk, call| Box::pin(openapi::page(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/policies",
        name: "getPolicies",
        does: "What judges each pool's requests, and what came of the last reading",
        gives: (200, "Policies"),
        handle: |desk, call| Box::pin(supervisor::policies(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/policies/reload",
        role: Role::Admin,
        name: "reloadPolicies",
        does: "Reads the policies again: all come into force, or none",
        gives: (200, "Policies"),
        refuses: &[422],
        handle: |desk, call| Box::pin(supervisor::reload_policies(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/pools",
        name: "listPools",
        does: "The pools, by name",
        query: &[LIMIT, CURSOR],
        gives: (200, "PoolList"),
        handle: |desk, call| Box::pin(fleet::pools(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/pools/{pool}",
        name: "getPool",
        does: "One pool",
        gives: (200, "Pool"),
        refuses: &[404],
        handle: |desk, call| Box::pin(fleet::pool(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/pools/{pool}/drain",
        name: "drainPool",
        does: "Begins no further task; running ones end, and children go that have nothing to do",
        gives: (200, "Pool"),
        handle: |desk, call| Box::pin(fleet::flow(desk, call, PoolFlow::Draining)),
        ..ACTS
    },
    Route {
        path: "/api/v1/pools/{pool}/pause",
        name: "pausePool",
        does: "Begins no further task; slots keep their children",
        gives: (200, "Pool"),
        handle: |desk, call| Box::pin(fleet::flow(desk, call, PoolFlow::Paused)),
        ..ACTS
    },
    Route {
        path: "/api/v1/pools/{pool}/resize",
        name: "resizePool",
        does: "Has the first so many slots get tasks; the others end what they work",
        body: Some("PoolSize"),
        gives: (200, "Pool"),
        handle: |desk, call| Box::pin(fleet::resize(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/pools/{pool}/resume",
        name: "resumePool",
        does: "Begins tasks again after a drain or a pause",
        gives: (200, "Pool"),
        handle: |desk, call| Box::pin(fleet::flow(desk, call, PoolFlow::Running)),
        ..ACTS
    },
    Route {
        path: "/api/v1/sessions",
        name: "listSessions",
        does: "The sessions that the journal has, the newest first",
        query: &[
            POOL,
            Key {
                name: "open",
                is: Given::Flag,
                does: "those that have not ended, or those that have",
            },
            LIMIT,
            CURSOR,
        ],
        gives: (200, "SessionList"),
        handle: |desk, call| Box::pin(sessions::list(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/sessions/{session}",
        name: "getSession",
        does: "One session",
        gives: (200, "Session"),
        refuses: &[404],
        handle: |desk, call| Box::pin(sessions::one(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/sessions/{session}/apply",
        name: "applySession",
        does: "Puts what a session wrote over its workspace there, as `marshal apply` does",
        body: Some("Apply"),
        gives: (200, "Overlay"),
        handle: |desk, call| Box::pin(overlays::apply(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/sessions/{session}/commands",
        name: "commandSession",
        does: "Gives the agent of a session one of its own commands; returns with the agent's answer",
        body: Some("Command"),
        body_bytes: chats::BODY_BYTES,
        gives: (200, "CommandSaid"),
        refuses: &[404, 409, 422, 504],
        handle: |desk, call| Box::pin(sessions::command(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/sessions/{session}/diff",
        name: "diffSession",
        does: "What a session wrote over its workspace, as `marshal diff` shows it",
        gives: (200, "Overlay"),
        refuses: &[404, 409],
        handle: |desk, call| Box::pin(overlays::diff(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/sessions/{session}/events",
        name: "streamSessionEvents",
        does: "A session's events from the journal and on, as server-sent events, each once",
        query: &[Key {
            name: "after",
            is: Given::Text { longest: 64 },
            does: "after the event with this id; from the first one if not given",
        }],
        headers: LAST_EVENT,
        gives: (200, STREAM),
        refuses: &[404],
        handle: |desk, call| Box::pin(events::of_session(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/sessions/{session}/interrupt",
        name: "interruptSession",
        does: "Ends the turn of a session; the session goes on where it can",
        gives: (202, "Session"),
        handle: |desk, call| Box::pin(sessions::interrupt(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/sessions/{session}/prompt",
        name: "promptSession",
        does: "Sends a message to a session that is a chat; returns when it is durable",
        headers: &[(
            "Idempotency-Key",
            "the same message under the same key is taken once",
            limits::TURN_KEY_BYTES,
        )],
        body: Some("Message"),
        body_bytes: chats::BODY_BYTES,
        gives: (202, "TurnTaken"),
        refuses: &[404, 409, 422],
        handle: |desk, call| Box::pin(sessions::prompt(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/sessions/{session}/stop",
        name: "stopSession",
        does: "Ends a session, its turn first",
        gives: (202, "Session"),
        handle: |desk, call| Box::pin(sessions::stop(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/slots",
        name: "listSlots",
        does: "The slots, by pool and number",
        query: &[
            POOL,
            Key {
                name: "state",
                is: Given::Text { longest: 32 },
                does: "in this state only",
            },
            LIMIT,
            CURSOR,
        ],
        gives: (200, "SlotList"),
        handle: |desk, call| Box::pin(fleet::slots(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/slots/{pool}/{slot}",
        name: "getSlot",
        does: "One slot",
        gives: (200, "Slot"),
        refuses: &[404],
        handle: |desk, call| Box::pin(fleet::slot(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/slots/{pool}/{slot}/restart",
        name: "restartSlot",
        does: "Ends the slot's child; its next work starts a new one. Unparks",
        refuses: &[404],
        gives: (202, "Slot"),
        handle: |desk, call| Box::pin(fleet::restart(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/tasks",
        name: "listTasks",
        does: "The tasks that the journal has, the newest first",
        query: &[
            POOL,
            Key {
                name: "run",
                is: Given::Text { longest: 128 },
                does: "of this run only",
            },
            Key {
                name: "state",
                is: Given::Word(&["queued", "running", "ended"]),
                does: "in this state only",
            },
            LIMIT,
            CURSOR,
        ],
        gives: (200, "TaskList"),
        handle: |desk, call| Box::pin(tasks::list(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/tasks",
        name: "submitTask",
        does: "Takes a task in; returns when it is durable",
        headers: &[(
            "Idempotency-Key",
            "the same task under the same key is taken in once",
            200,
        )],
        body: Some("NewTask"),
        refuses: &[422, 429],
        gives: (202, "TaskTaken"),
        handle: |desk, call| Box::pin(tasks::submit(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/tasks/{task}",
        name: "getTask",
        does: "One task",
        gives: (200, "Task"),
        refuses: &[404],
        handle: |desk, call| Box::pin(tasks::one(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/tasks/{task}/cancel",
        name: "cancelTask",
        does: "Ends a task that waits or is worked; it still gets its report",
        gives: (202, "Task"),
        handle: |desk, call| Box::pin(tasks::cancel(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/workspaces",
        name: "listWorkspaces",
        does: "The registered workspaces, by name",
        gives: (200, "WorkspaceList"),
        handle: |desk, call| Box::pin(pages::workspaces(desk, call)),
        ..LOOKS
    },
];
