//! The one table of the routes: from it come the router, the OpenAPI document and the table of
//! `docs/rest.md`.
//!
//! Owns what each takes, gives and refuses, and the least role that it needs. Must not know how a
//! request is read.
//!
//! A new route: its row here, its handler in `engine/api/v1/`, its forms in `schemas.json`, a test in
//! `tests/drills/api/`. Then run `marshal api schema > docs/openapi.json` and put the table of
//! `marshal api routes` into `docs/rest.md`.

mod chats;
mod files;

use axum::http::Method;

use super::{
    Handler, approvals, events, files as pages, fleet, openapi, overlays, reload, sessions,
    supervisor, tasks,
};
use marshal_model::limits;
use marshal_model::{PoolPhase, Role};

/// What a key of a query may be.
#[derive(Debug, Clone, Copy)]
pub enum ParamKind {
    /// A number of items.
    Limit,
    /// `true` or `false`.
    Flag,
    /// One of these.
    OneOf(&'static [&'static str]),
    /// A text that is not empty.
    Text {
        /// In characters.
        longest: usize,
    },
}

impl ParamKind {
    /// In words.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Limit => format!(
                "a number from 1 to {}",
                super::request_context::LONGEST_PAGE
            ),
            Self::Flag => "true or false".to_owned(),
            Self::OneOf(words) => format!("one of {}", words.join(", ")),
            Self::Text { longest } => format!("a text of 1 to {longest} characters"),
        }
    }
}

/// A key of a query.
#[derive(Debug, Clone, Copy)]
pub struct QueryParam {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub kind: ParamKind,
    /// What it does.
    pub summary: &'static str,
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
    pub summary: &'static str,
    /// The keys of its query.
    pub query: &'static [QueryParam],
    /// Headers that it looks at: name, what it is, the most characters of it.
    pub headers: &'static [(&'static str, &'static str, usize)],
    /// The schema of its body, if it takes one.
    pub body: Option<&'static str>,
    /// The most bytes of it.
    pub body_bytes: u64,
    /// What it answers when it is done: status and schema.
    pub response: (u16, &'static str),
    /// With which further statuses it refuses, beside those that every route has.
    pub error_statuses: &'static [u16],
    pub(super) handler: Handler,
}

/// The schema's name of what is a stream.
pub const STREAM: &str = "text/event-stream";
/// The schema's name of an answer without a body.
pub const NO_BODY: &str = "";

const LIMIT: QueryParam = QueryParam {
    name: "limit",
    kind: ParamKind::Limit,
    summary: "how many items; 100 if not given",
};
const CURSOR: QueryParam = QueryParam {
    name: "cursor",
    kind: ParamKind::Text { longest: 400 },
    summary: "`next` of the page before",
};
const POOL: QueryParam = QueryParam {
    name: "pool",
    kind: ParamKind::Text { longest: 32 },
    summary: "of this pool only",
};
const LAST_EVENT: &[(&str, &str, usize)] = &[(
    "Last-Event-ID",
    "the id of the last event that was read; it goes before `after`",
    200,
)];

/// A route that only looks.
const READ_ONLY: Route = Route {
    method: Method::GET,
    path: "",
    role: Role::Read,
    name: "",
    summary: "",
    query: &[],
    headers: &[],
    body: None,
    body_bytes: limits::HTTP_BODY_BYTES,
    response: (200, ""),
    error_statuses: &[],
    handler: |desk, call| Box::pin(fleet::summary(desk, call)),
};
/// A route that does something.
const MUTATING: Route = Route {
    method: Method::POST,
    role: Role::Operate,
    error_statuses: &[404, 409],
    ..READ_ONLY
};

/// All of them, by their paths.
pub fn all_routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().chain(chats::ROUTES).chain(files::ROUTES)
}

/// Those of the fleet itself; their paths stand before those of workspaces.
static ROUTES: &[Route] = &[
    Route {
        path: "/api/v1/agents",
        name: "listAgents",
        summary: "The agents that are built in, and which of them this host has",
        response: (200, "AgentList"),
        handler: |desk, call| Box::pin(supervisor::agents(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/approvals",
        name: "listApprovals",
        summary: "Pending approvals, or the newest that have ended",
        query: &[
            QueryParam {
                name: "ended",
                kind: ParamKind::Flag,
                summary: "return ended approvals instead",
            },
            LIMIT,
            CURSOR,
        ],
        response: (200, "ApprovalList"),
        handler: |desk, call| Box::pin(approvals::list(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/approvals/{approval}",
        name: "getApproval",
        summary: "One approval with all its details",
        response: (200, "Approval"),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(approvals::get(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/approvals/{approval}",
        role: Role::Approve,
        name: "answerApproval",
        summary: "Answers an approval; returns when the answer is durable",
        body: Some("ApprovalAnswer"),
        response: (200, "ApprovalAnswered"),
        handler: |desk, call| Box::pin(approvals::answer(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/config",
        name: "getConfig",
        summary: "The configuration that is in force, every secret hidden",
        response: (200, "Config"),
        handler: |desk, call| Box::pin(supervisor::config(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/config/reload",
        role: Role::Admin,
        name: "reloadConfig",
        summary: "Reads the file and the policies again; takes over what can be while running, and says what needs a start",
        response: (200, "Reloaded"),
        error_statuses: &[422],
        handler: |desk, call| Box::pin(reload::reload(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/events",
        name: "streamEvents",
        summary: "What happens in the whole fleet, as server-sent events",
        query: &[
            QueryParam {
                name: "kind",
                kind: ParamKind::Text { longest: 400 },
                summary: "of these kinds only, with commas between them",
            },
            POOL,
            QueryParam {
                name: "session",
                kind: ParamKind::Text { longest: 128 },
                summary: "of this session only",
            },
            QueryParam {
                name: "after",
                kind: ParamKind::Text { longest: 32 },
                summary: "after this cursor; from now on if not given",
            },
        ],
        headers: LAST_EVENT,
        response: (200, STREAM),
        error_statuses: &[],
        handler: |desk, call| Box::pin(events::stream_fleet(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/fleet",
        name: "getFleet",
        summary: "The fleet in short: version, readiness, pools, slots by state, pending approvals",
        response: (200, "Fleet"),
        handler: |desk, call| Box::pin(fleet::summary(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/openapi.json",
        name: "getOpenapi",
        summary: "This document",
        response: (200, "OpenApi"),
        handler: |desk, call| Box::pin(openapi::page(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/policies",
        name: "getPolicies",
        summary: "What judges each pool's requests, and what came of the last reading",
        response: (200, "Policies"),
        handler: |desk, call| Box::pin(supervisor::policies(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/policies/reload",
        role: Role::Admin,
        name: "reloadPolicies",
        summary: "Reads the policies again: all come into force, or none",
        response: (200, "Policies"),
        error_statuses: &[422],
        handler: |desk, call| Box::pin(supervisor::reload_policies(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/pools",
        name: "listPools",
        summary: "The pools, by name",
        query: &[LIMIT, CURSOR],
        response: (200, "PoolList"),
        handler: |desk, call| Box::pin(fleet::pools(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/pools/{pool}",
        name: "getPool",
        summary: "One pool",
        response: (200, "Pool"),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(fleet::pool(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/pools/{pool}/drain",
        name: "drainPool",
        summary: "Begins no further task; running ones end, and children go that have nothing to do",
        response: (200, "Pool"),
        handler: |desk, call| Box::pin(fleet::set_flow(desk, call, PoolPhase::Draining)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/pools/{pool}/pause",
        name: "pausePool",
        summary: "Begins no further task; slots keep their children",
        response: (200, "Pool"),
        handler: |desk, call| Box::pin(fleet::set_flow(desk, call, PoolPhase::Paused)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/pools/{pool}/resize",
        name: "resizePool",
        summary: "Has the first so many slots get tasks; the others end what they work",
        body: Some("PoolSize"),
        response: (200, "Pool"),
        handler: |desk, call| Box::pin(fleet::resize(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/pools/{pool}/resume",
        name: "resumePool",
        summary: "Begins tasks again after a drain or a pause",
        response: (200, "Pool"),
        handler: |desk, call| Box::pin(fleet::set_flow(desk, call, PoolPhase::Running)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/sessions",
        name: "listSessions",
        summary: "The sessions that the journal has, the newest first",
        query: &[
            POOL,
            QueryParam {
                name: "open",
                kind: ParamKind::Flag,
                summary: "those that have not ended, or those that have",
            },
            LIMIT,
            CURSOR,
        ],
        response: (200, "SessionList"),
        handler: |desk, call| Box::pin(sessions::list(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/sessions/{session}",
        name: "getSession",
        summary: "One session",
        response: (200, "Session"),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(sessions::get(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/sessions/{session}/apply",
        name: "applySession",
        summary: "Puts what a session wrote over its workspace there, as `marshal apply` does",
        body: Some("Apply"),
        response: (200, "Overlay"),
        handler: |desk, call| Box::pin(overlays::apply(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/sessions/{session}/commands",
        name: "commandSession",
        summary: "Gives the agent of a session one of its own commands; returns with the agent's answer",
        body: Some("Command"),
        body_bytes: chats::BODY_BYTES,
        response: (200, "CommandSaid"),
        error_statuses: &[404, 409, 422, 504],
        handler: |desk, call| Box::pin(sessions::command(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/sessions/{session}/diff",
        name: "diffSession",
        summary: "What a session wrote over its workspace, as `marshal diff` shows it",
        response: (200, "Overlay"),
        error_statuses: &[404, 409],
        handler: |desk, call| Box::pin(overlays::diff(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/sessions/{session}/events",
        name: "streamSessionEvents",
        summary: "A session's events from the journal and on, as server-sent events, each once",
        query: &[QueryParam {
            name: "after",
            kind: ParamKind::Text { longest: 64 },
            summary: "after the event with this id; from the first one if not given",
        }],
        headers: LAST_EVENT,
        response: (200, STREAM),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(events::stream_session(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/sessions/{session}/interrupt",
        name: "interruptSession",
        summary: "Ends the turn of a session; the session goes on where it can",
        response: (202, "Session"),
        handler: |desk, call| Box::pin(sessions::interrupt(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/sessions/{session}/prompt",
        name: "promptSession",
        summary: "Sends a message to a session that is a chat; returns when it is durable",
        headers: &[(
            "Idempotency-Key",
            "the same message under the same key is taken once",
            limits::TURN_KEY_BYTES,
        )],
        body: Some("Message"),
        body_bytes: chats::BODY_BYTES,
        response: (202, "TurnTaken"),
        error_statuses: &[404, 409, 422],
        handler: |desk, call| Box::pin(sessions::prompt(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/sessions/{session}/stop",
        name: "stopSession",
        summary: "Ends a session, its turn first",
        response: (202, "Session"),
        handler: |desk, call| Box::pin(sessions::stop(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/slots",
        name: "listSlots",
        summary: "The slots, by pool and number",
        query: &[
            POOL,
            QueryParam {
                name: "state",
                kind: ParamKind::Text { longest: 32 },
                summary: "in this state only",
            },
            LIMIT,
            CURSOR,
        ],
        response: (200, "SlotList"),
        handler: |desk, call| Box::pin(fleet::slots(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/slots/{pool}/{slot}",
        name: "getSlot",
        summary: "One slot",
        response: (200, "Slot"),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(fleet::slot(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/slots/{pool}/{slot}/restart",
        name: "restartSlot",
        summary: "Ends the slot's child; its next work starts a new one. Unparks",
        error_statuses: &[404],
        response: (202, "Slot"),
        handler: |desk, call| Box::pin(fleet::restart(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/tasks",
        name: "listTasks",
        summary: "The tasks that the journal has, the newest first",
        query: &[
            POOL,
            QueryParam {
                name: "run",
                kind: ParamKind::Text { longest: 128 },
                summary: "of this run only",
            },
            QueryParam {
                name: "state",
                kind: ParamKind::OneOf(&["queued", "running", "ended"]),
                summary: "in this state only",
            },
            LIMIT,
            CURSOR,
        ],
        response: (200, "TaskList"),
        handler: |desk, call| Box::pin(tasks::list(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/tasks",
        name: "submitTask",
        summary: "Takes a task in; returns when it is durable",
        headers: &[(
            "Idempotency-Key",
            "the same task under the same key is taken in once",
            200,
        )],
        body: Some("NewTask"),
        error_statuses: &[422, 429],
        response: (202, "TaskTaken"),
        handler: |desk, call| Box::pin(tasks::submit(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/tasks/{task}",
        name: "getTask",
        summary: "One task",
        response: (200, "Task"),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(tasks::get(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/tasks/{task}/cancel",
        name: "cancelTask",
        summary: "Ends a task that waits or is worked; it still gets its report",
        response: (202, "Task"),
        handler: |desk, call| Box::pin(tasks::cancel(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces",
        name: "listWorkspaces",
        summary: "The registered workspaces, by name",
        response: (200, "WorkspaceList"),
        handler: |desk, call| Box::pin(pages::workspaces(desk, call)),
        ..READ_ONLY
    },
];
