//! The table of the routes. The router, the OpenAPI document and the table in `docs/rest.md` are made
//! from it.
//!
//! Owns the parameters, the responses, the errors and the required role of each route. Must not know
//! how a request is read.
//!
//! To add a route, add its row here, its handler in `engine/api/v1/` and a test in
//! `tests/drills/api/`. Its schemas come from the types that it names. Then run `marshal api schema > docs/openapi.json` and put the table of
//! `marshal api routes` into `docs/rest.md`.

mod chats;
mod files;

use axum::http::Method;

use super::activity::SlotActivity;
use super::caller::{CallerView, LoginCode, NewLogin};
use super::chats::{Message, TurnTaken};
use super::conversations::ConversationItem;
use super::files::WorkspaceView;
use super::fleet::{Size, Summary};
use super::overlays::{Apply, OverlayView};
use super::reload::Reloaded;
use super::runs::{NewRun, RunView, SupervisorView};
use super::schemas::{Config, OpenApi, SchemaOf, schema_of};
use super::sessions::{CommandBody, CommandReply};
use super::spend::SpendView;
use super::supervisor::{AgentView, Stopping};
use super::tasks::SubmittedTask;
use super::views::{List, Session, Task};
use super::{
    Handler, activity, approvals, caller, conversations, events, exec, files as pages, fleet,
    openapi, overlays, reload, runs, sessions, spend, supervisor, tasks,
};
use crate::api::approvals::{AnswerLine, AnswerReceiptView, ApprovalView};
use crate::api::listing::{Pool, Slot};
use crate::api::policies::PolicyStatusView;
use crate::api::task_body::NewTask;
use marshal_model::limits;
use marshal_model::{PoolPhase, Role};

/// The values that a query parameter accepts.
#[derive(Debug, Clone, Copy)]
pub enum ParamKind {
    /// A number of items, from 1 to `LONGEST_PAGE`.
    Limit,
    /// `true` or `false`.
    Flag,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// A string that is not empty.
    Text {
        /// Maximum length in characters.
        longest: usize,
    },
}

impl ParamKind {
    /// Describes the accepted values for error messages, such as `one of a, b`.
    #[must_use]
    pub fn describe(self) -> String {
        match self {
            Self::Limit => format!(
                "a number from 1 to {}",
                super::request_context::LONGEST_PAGE
            ),
            Self::Flag => "true or false".to_owned(),
            Self::OneOf(words) => format!("one of {}", words.join(", ")),
            Self::Text { longest } => format!("a string of 1 to {longest} characters"),
        }
    }
}

/// A parameter of a query.
#[derive(Debug, Clone, Copy)]
pub struct QueryParam {
    /// The name in the query string.
    pub name: &'static str,
    /// The accepted values.
    pub kind: ParamKind,
    /// The description in the OpenAPI document.
    pub summary: &'static str,
}

/// One route.
#[derive(Debug)]
pub struct Route {
    /// The HTTP method; `GET` also serves `HEAD`.
    pub method: Method,
    /// The path with `{name}` for each path parameter.
    pub path: &'static str,
    /// The least role that may call this route.
    pub role: Role,
    /// The `operationId` in the OpenAPI document.
    pub name: &'static str,
    /// One line for the OpenAPI document and `docs/rest.md`.
    pub summary: &'static str,
    /// The query parameters; any other is refused.
    pub query: &'static [QueryParam],
    /// Headers that the handler reads: name, description, maximum length in characters.
    pub headers: &'static [(&'static str, &'static str, usize)],
    /// The schema of the request body; `None` if the route takes none.
    pub body: Option<SchemaOf>,
    /// The maximum size of the request body in bytes.
    pub body_bytes: u64,
    /// Status and content of the successful response.
    pub response: (u16, Answer),
    /// Error statuses in addition to those of every route.
    pub error_statuses: &'static [u16],
    pub(super) handler: Handler,
}

/// What a successful response carries.
#[derive(Debug, Clone, Copy)]
pub enum Answer {
    /// No body.
    Nothing,
    /// JSON.
    Json(SchemaOf),
    /// Server-sent events, or a WebSocket with the same events.
    Stream,
    /// Messages of both sides over a WebSocket. The OpenAPI document cannot say what it carries, and
    /// leaves it out.
    WebSocket,
}

const LIMIT: QueryParam = QueryParam {
    name: "limit",
    kind: ParamKind::Limit,
    summary: "number of items; 100 by default",
};
const CURSOR: QueryParam = QueryParam {
    name: "cursor",
    kind: ParamKind::Text { longest: 400 },
    summary: "`next` of the previous page",
};
const POOL: QueryParam = QueryParam {
    name: "pool",
    kind: ParamKind::Text { longest: 32 },
    summary: "only this pool",
};
const LAST_EVENT: &[(&str, &str, usize)] = &[(
    "Last-Event-ID",
    "the id of the last event that the client read; it takes precedence over `after`",
    200,
)];

/// Defaults of a route that changes nothing.
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
    response: (200, Answer::Nothing),
    error_statuses: &[],
    handler: |app, request| Box::pin(fleet::summary(app, request)),
};
/// Defaults of a route that changes something.
const MUTATING: Route = Route {
    method: Method::POST,
    role: Role::Operate,
    error_statuses: &[404, 409],
    ..READ_ONLY
};

/// All routes, ordered by path.
pub fn all_routes() -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().chain(chats::ROUTES).chain(files::ROUTES)
}

/// The routes of the fleet; their paths sort before those below `/api/v1/workspaces/`.
static ROUTES: &[Route] = &[
    Route {
        path: "/api/v1/activity",
        name: "listActivity",
        summary: "List what the slots do now: agent, turns, tokens, cost and memory",
        query: &[POOL, LIMIT, CURSOR],
        response: (200, Answer::Json(schema_of::<List<SlotActivity>>)),
        handler: |app, request| Box::pin(activity::list(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/activity/events",
        name: "streamActivity",
        summary: "Stream what the slots do as server-sent events: all of them once, then those that change, at most four times a second",
        query: &[QueryParam {
            name: "rows",
            kind: ParamKind::Flag,
            summary: "`false` leaves out the slots; the summary stays",
        }],
        response: (200, Answer::Stream),
        handler: |app, request| Box::pin(activity::stream(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/agents",
        name: "listAgents",
        summary: "List the built-in agents and which of them this host has",
        response: (200, Answer::Json(schema_of::<List<AgentView>>)),
        handler: |app, request| Box::pin(supervisor::agents(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/approvals",
        name: "listApprovals",
        summary: "List pending approvals, or the newest that have ended",
        query: &[
            QueryParam {
                name: "ended",
                kind: ParamKind::Flag,
                summary: "return ended approvals instead",
            },
            LIMIT,
            CURSOR,
        ],
        response: (200, Answer::Json(schema_of::<List<ApprovalView>>)),
        handler: |app, request| Box::pin(approvals::list(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/approvals/{approval}",
        name: "getApproval",
        summary: "Get one approval with all its details",
        response: (200, Answer::Json(schema_of::<ApprovalView>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(approvals::get(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/approvals/{approval}",
        role: Role::Approve,
        name: "answerApproval",
        summary: "Answer an approval; returns when the answer is durable",
        body: Some(schema_of::<AnswerLine>),
        response: (200, Answer::Json(schema_of::<AnswerReceiptView>)),
        handler: |app, request| Box::pin(approvals::answer(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/caller",
        name: "getCaller",
        summary: "Get who the caller is: name and role",
        response: (200, Answer::Json(schema_of::<CallerView>)),
        handler: |app, request| Box::pin(caller::caller(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/config",
        name: "getConfig",
        summary: "Get the active configuration, with all secrets hidden",
        response: (200, Answer::Json(schema_of::<Config>)),
        handler: |app, request| Box::pin(supervisor::config(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/config/reload",
        role: Role::Admin,
        name: "reloadConfig",
        summary: "Reload the configuration file and the policies; lists the keys that require a restart",
        response: (200, Answer::Json(schema_of::<Reloaded>)),
        error_statuses: &[422],
        handler: |app, request| Box::pin(reload::reload(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/events",
        name: "streamEvents",
        summary: "Stream the events of the fleet as server-sent events",
        query: &[
            QueryParam {
                name: "kind",
                kind: ParamKind::Text { longest: 400 },
                summary: "only these kinds, separated by commas",
            },
            POOL,
            QueryParam {
                name: "session",
                kind: ParamKind::Text { longest: 128 },
                summary: "only this session",
            },
            QueryParam {
                name: "after",
                kind: ParamKind::Text { longest: 32 },
                summary: "start after this cursor; only new events by default",
            },
        ],
        headers: LAST_EVENT,
        response: (200, Answer::Stream),
        error_statuses: &[],
        handler: |app, request| Box::pin(events::stream_fleet(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/fleet",
        name: "getFleet",
        summary: "Get a summary of the fleet: version, readiness, pools, slots by state, pending approvals",
        response: (200, Answer::Json(schema_of::<Summary>)),
        handler: |app, request| Box::pin(fleet::summary(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/logins",
        role: Role::Admin,
        name: "createLogin",
        summary: "Make a one-time code that logs a browser in; only over the Unix socket",
        body: Some(schema_of::<NewLogin>),
        response: (201, Answer::Json(schema_of::<LoginCode>)),
        error_statuses: &[404, 422],
        handler: |app, request| Box::pin(caller::log_in(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/openapi.json",
        name: "getOpenapi",
        summary: "Get this document",
        response: (200, Answer::Json(schema_of::<OpenApi>)),
        handler: |app, request| Box::pin(openapi::page(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/policies",
        name: "getPolicies",
        summary: "Get the policy of each pool and the result of the last reload",
        response: (200, Answer::Json(schema_of::<PolicyStatusView>)),
        handler: |app, request| Box::pin(supervisor::policies(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/policies/reload",
        role: Role::Admin,
        name: "reloadPolicies",
        summary: "Reload the policies; either all of them take effect or none does",
        response: (200, Answer::Json(schema_of::<PolicyStatusView>)),
        error_statuses: &[422],
        handler: |app, request| Box::pin(supervisor::reload_policies(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/pools",
        name: "listPools",
        summary: "List the pools, by name",
        query: &[LIMIT, CURSOR],
        response: (200, Answer::Json(schema_of::<List<Pool>>)),
        handler: |app, request| Box::pin(fleet::pools(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/pools/{pool}",
        name: "getPool",
        summary: "Get one pool",
        response: (200, Answer::Json(schema_of::<Pool>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(fleet::pool(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/pools/{pool}/conversation",
        role: Role::Admin,
        name: "openConversation",
        summary: "Open a conversation of an editor as a WebSocket; only over the Unix socket",
        query: &[
            QueryParam {
                name: "directory",
                kind: ParamKind::Text { longest: 4096 },
                summary: "the client's directory on the host, an absolute path",
            },
            QueryParam {
                name: "additional",
                kind: ParamKind::Text { longest: 32768 },
                summary: "further directories of the client, a JSON array of absolute paths",
            },
            QueryParam {
                name: "session",
                kind: ParamKind::Text { longest: 128 },
                summary: "the conversation to load; a new one by default",
            },
        ],
        response: (101, Answer::WebSocket),
        error_statuses: &[404, 409, 422],
        handler: |app, request| Box::pin(conversations::open(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/pools/{pool}/conversations",
        name: "listConversations",
        summary: "List the conversations of editors that can be loaded, newest first",
        query: &[CURSOR],
        response: (200, Answer::Json(schema_of::<List<ConversationItem>>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(conversations::list(app, request)),
        ..READ_ONLY
    },
    Route {
        method: Method::DELETE,
        path: "/api/v1/pools/{pool}/conversations/{session}",
        role: Role::Admin,
        name: "deleteConversation",
        summary: "End a conversation that no editor has open: it cannot be loaded any more",
        response: (204, Answer::Nothing),
        error_statuses: &[404, 409],
        handler: |app, request| Box::pin(conversations::delete(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/pools/{pool}/drain",
        name: "drainPool",
        summary: "Start no more tasks; running tasks finish, and idle children are stopped",
        response: (200, Answer::Json(schema_of::<Pool>)),
        handler: |app, request| Box::pin(fleet::set_phase(app, request, PoolPhase::Draining)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/pools/{pool}/pause",
        name: "pausePool",
        summary: "Start no more tasks; slots keep their children",
        response: (200, Answer::Json(schema_of::<Pool>)),
        handler: |app, request| Box::pin(fleet::set_phase(app, request, PoolPhase::Paused)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/pools/{pool}/resize",
        name: "resizePool",
        summary: "Set how many slots receive tasks, the first N; the others finish their current task",
        body: Some(schema_of::<Size>),
        response: (200, Answer::Json(schema_of::<Pool>)),
        handler: |app, request| Box::pin(fleet::resize(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/pools/{pool}/resume",
        name: "resumePool",
        summary: "Start tasks again after a drain or a pause",
        response: (200, Answer::Json(schema_of::<Pool>)),
        handler: |app, request| Box::pin(fleet::set_phase(app, request, PoolPhase::Running)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/runs",
        name: "submitRun",
        summary: "Submit tasks as one run; returns when all of them are durable, or none is",
        body: Some(schema_of::<NewRun>),
        body_bytes: limits::RUN_BODY_BYTES as u64,
        response: (202, Answer::Json(schema_of::<RunView>)),
        error_statuses: &[409, 422],
        handler: |app, request| Box::pin(runs::submit_named(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/runs/{run}",
        name: "getRun",
        summary: "Get a run that goes on, or one of the last that ended",
        response: (200, Answer::Json(schema_of::<RunView>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(app.runs().get(request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/runs/{run}/cancel",
        name: "cancelRun",
        summary: "Cancel a run: its running turns end, its waiting tasks are skipped; each still gets a report",
        response: (202, Answer::Json(schema_of::<RunView>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(app.runs().cancel(request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/runs/{run}/events",
        name: "streamRun",
        summary: "Stream a run as server-sent events: the events of its sessions and each report exactly once, then `complete`",
        query: &[QueryParam {
            name: "past",
            kind: ParamKind::Flag,
            summary: "also the stored events from the run's beginning; true by default",
        }],
        response: (200, Answer::Stream),
        error_statuses: &[404],
        handler: |app, request| Box::pin(app.runs().stream(request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/sessions",
        name: "listSessions",
        summary: "List the sessions in the journal, newest first",
        query: &[
            POOL,
            QueryParam {
                name: "open",
                kind: ParamKind::Flag,
                summary: "only sessions that are open, or only those that have ended",
            },
            LIMIT,
            CURSOR,
        ],
        response: (200, Answer::Json(schema_of::<List<Session>>)),
        handler: |app, request| Box::pin(sessions::list(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/sessions/{session}",
        name: "getSession",
        summary: "Get one session",
        response: (200, Answer::Json(schema_of::<Session>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(sessions::get(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/sessions/{session}/apply",
        name: "applySession",
        summary: "Apply the overlay of a session to its workspace, as `marshal apply` does",
        body: Some(schema_of::<Apply>),
        response: (200, Answer::Json(schema_of::<OverlayView>)),
        handler: |app, request| Box::pin(overlays::apply(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/sessions/{session}/commands",
        name: "commandSession",
        summary: "Send one of the agent's own commands to the agent of a session; returns the agent's answer",
        body: Some(schema_of::<CommandBody>),
        body_bytes: chats::BODY_BYTES,
        response: (200, Answer::Json(schema_of::<CommandReply>)),
        error_statuses: &[404, 409, 422, 504],
        handler: |app, request| Box::pin(sessions::command(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/sessions/{session}/diff",
        name: "diffSession",
        summary: "Get the changes in the overlay of a session, as `marshal diff` shows them",
        response: (200, Answer::Json(schema_of::<OverlayView>)),
        error_statuses: &[404, 409],
        handler: |app, request| Box::pin(overlays::diff(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/sessions/{session}/events",
        name: "streamSessionEvents",
        summary: "Stream the past and new events of a session as server-sent events, each exactly once",
        query: &[QueryParam {
            name: "after",
            kind: ParamKind::Text { longest: 64 },
            summary: "start after the event with this id; from the first event by default",
        }],
        headers: LAST_EVENT,
        response: (200, Answer::Stream),
        error_statuses: &[404],
        handler: |app, request| Box::pin(events::stream_session(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/sessions/{session}/interrupt",
        name: "interruptSession",
        summary: "Cancel the turn of a session; the session continues if the agent supports that",
        response: (202, Answer::Json(schema_of::<Session>)),
        handler: |app, request| Box::pin(sessions::interrupt(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/sessions/{session}/prompt",
        name: "promptSession",
        summary: "Send a message to a session that is a chat; returns when the message is durable",
        headers: &[(
            "Idempotency-Key",
            "the same message with the same key is accepted once",
            limits::TURN_KEY_BYTES,
        )],
        body: Some(schema_of::<Message>),
        body_bytes: chats::BODY_BYTES,
        response: (202, Answer::Json(schema_of::<TurnTaken>)),
        error_statuses: &[404, 409, 422],
        handler: |app, request| Box::pin(sessions::prompt(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/sessions/{session}/stop",
        name: "stopSession",
        summary: "End a session after cancelling its turn",
        response: (202, Answer::Json(schema_of::<Session>)),
        handler: |app, request| Box::pin(sessions::stop(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/slots",
        name: "listSlots",
        summary: "List the slots, by pool and number",
        query: &[
            POOL,
            QueryParam {
                name: "state",
                kind: ParamKind::Text { longest: 32 },
                summary: "only in this state",
            },
            LIMIT,
            CURSOR,
        ],
        response: (200, Answer::Json(schema_of::<List<Slot>>)),
        handler: |app, request| Box::pin(fleet::slots(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/slots/{pool}/{slot}",
        name: "getSlot",
        summary: "Get one slot",
        response: (200, Answer::Json(schema_of::<Slot>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(fleet::slot(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/slots/{pool}/{slot}/exec",
        role: Role::Admin,
        name: "execInSlot",
        summary: "Run a command in the sandbox of the slot's agent, as a WebSocket",
        query: &[
            QueryParam {
                name: "command",
                kind: ParamKind::Text { longest: 32768 },
                summary: "program and arguments, a JSON array of strings",
            },
            QueryParam {
                name: "term",
                kind: ParamKind::Text { longest: 64 },
                summary: "the type of the client's terminal; without it the command gets pipes",
            },
            QueryParam {
                name: "rows",
                kind: ParamKind::Text { longest: 5 },
                summary: "the height of the terminal; 24 by default",
            },
            QueryParam {
                name: "columns",
                kind: ParamKind::Text { longest: 5 },
                summary: "the width of the terminal; 80 by default",
            },
            QueryParam {
                name: "session",
                kind: ParamKind::Text { longest: 128 },
                summary: "only if the slot has this session now",
            },
        ],
        response: (101, Answer::WebSocket),
        error_statuses: &[404, 409, 422],
        handler: |app, request| Box::pin(exec::open(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/slots/{pool}/{slot}/logs",
        // Secrets are not masked in it, as they are in events.
        role: Role::Admin,
        name: "getLogs",
        summary: "Get the stderr of the slot's child as server-sent events, line by line; secrets in it are not masked",
        query: &[QueryParam {
            name: "follow",
            kind: ParamKind::Flag,
            summary: "continue with new lines",
        }],
        response: (200, Answer::Stream),
        error_statuses: &[404],
        handler: |app, request| Box::pin(app.runs().logs(request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/slots/{pool}/{slot}/restart",
        name: "restartSlot",
        summary: "Stop the slot's child and unpark the slot; its next task starts a new child. Answers when the old one has ended, or after 10 s",
        error_statuses: &[404],
        response: (202, Answer::Json(schema_of::<Slot>)),
        handler: |app, request| Box::pin(fleet::restart(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/spend",
        name: "listSpend",
        summary: "List what each pool spent, by day, and its budgets",
        response: (200, Answer::Json(schema_of::<List<SpendView>>)),
        handler: |app, request| Box::pin(spend::list(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/stop",
        role: Role::Admin,
        name: "stopSupervisor",
        summary: "Stop the supervisor: nothing starts, running turns have stop.drain to end, and what waits goes on at the next start",
        query: &[QueryParam {
            name: "now",
            kind: ParamKind::Flag,
            summary: "interrupt the running turns at once",
        }],
        response: (202, Answer::Json(schema_of::<Stopping>)),
        error_statuses: &[],
        handler: |app, request| Box::pin(supervisor::stop(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/supervisor",
        name: "getSupervisor",
        summary: "Get what kind of supervisor this is, its process and the digest of its configuration",
        response: (200, Answer::Json(schema_of::<SupervisorView>)),
        handler: |app, _| Box::pin(app.runs().about()),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/tasks",
        name: "listTasks",
        summary: "List the tasks in the journal, newest first",
        query: &[
            POOL,
            QueryParam {
                name: "run",
                kind: ParamKind::Text { longest: 128 },
                summary: "only this run",
            },
            QueryParam {
                name: "state",
                kind: ParamKind::OneOf(&["queued", "running", "ended"]),
                summary: "only in this state",
            },
            LIMIT,
            CURSOR,
        ],
        response: (200, Answer::Json(schema_of::<List<Task>>)),
        handler: |app, request| Box::pin(tasks::list(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/tasks",
        name: "submitTask",
        summary: "Submit a task; returns when it is durable",
        headers: &[(
            "Idempotency-Key",
            "the same task with the same key is accepted once",
            200,
        )],
        body: Some(schema_of::<NewTask>),
        error_statuses: &[422, 429],
        response: (202, Answer::Json(schema_of::<SubmittedTask>)),
        handler: |app, request| Box::pin(tasks::submit(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/tasks/{task}",
        name: "getTask",
        summary: "Get one task",
        response: (200, Answer::Json(schema_of::<Task>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(tasks::get(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/tasks/{task}/cancel",
        name: "cancelTask",
        summary: "Cancel a waiting or running task; it still gets a report",
        response: (202, Answer::Json(schema_of::<Task>)),
        handler: |app, request| Box::pin(tasks::cancel(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces",
        name: "listWorkspaces",
        summary: "List the configured workspaces, by name",
        response: (200, Answer::Json(schema_of::<List<WorkspaceView>>)),
        handler: |app, request| Box::pin(pages::workspaces(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}",
        name: "getWorkspace",
        summary: "Get one workspace",
        response: (200, Answer::Json(schema_of::<WorkspaceView>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(pages::get_workspace(app, request)),
        ..READ_ONLY
    },
];
