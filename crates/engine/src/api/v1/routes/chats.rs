//! The routes of chats, as rows of the route table.
//!
//! Owns only the rows; `routes.rs` defines their columns. Must not know what a chat does.

use axum::http::Method;

use super::super::chats::{
    ChatBegun, ChatClosed, ChatDocument, ChatStopped, Create, Message, TurnDocument, TurnTaken,
};
use super::super::plans::{Approve, Plan, PlanReviewed, Reject};
use super::super::schemas::schema_of;
use super::super::views::List;
use super::super::{chats, plans};
use super::{Answer, CURSOR, LAST_EVENT, LIMIT, MUTATING, ParamKind, QueryParam, READ_ONLY, Route};
use marshal_model::Role;
use marshal_model::limits;

pub(super) const BODY_BYTES: u64 = limits::CHAT_BODY_BYTES as u64;

/// The rows, ordered by path.
pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/api/v1/workspaces/{workspace}/chats",
        name: "listChats",
        summary: "List the chats of a workspace, newest first",
        query: &[LIMIT, CURSOR],
        response: (200, Answer::Json(schema_of::<List<ChatDocument>>)),
        error_statuses: &[404, 422],
        handler: |app, request| Box::pin(chats::list(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats",
        name: "createChat",
        summary: "Create a chat with its first message; returns when it is durable",
        headers: &[(
            "Idempotency-Key",
            "the same chat with the same key is created once",
            limits::TURN_KEY_BYTES,
        )],
        body: Some(schema_of::<Create>),
        body_bytes: BODY_BYTES,
        response: (201, Answer::Json(schema_of::<ChatBegun>)),
        error_statuses: &[404, 409, 422],
        handler: |app, request| Box::pin(chats::create(app, request)),
        ..MUTATING
    },
    Route {
        method: Method::DELETE,
        path: "/api/v1/workspaces/{workspace}/chats/{chat}",
        name: "closeChat",
        summary: "Close a chat: its running turn is cancelled, and it accepts no more messages",
        response: (200, Answer::Json(schema_of::<ChatClosed>)),
        error_statuses: &[404, 409],
        handler: |app, request| Box::pin(chats::close(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}",
        name: "getChat",
        summary: "Get one chat and its state",
        response: (200, Answer::Json(schema_of::<ChatDocument>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(chats::get(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}",
        name: "sendMessage",
        summary: "Send a message to a chat; returns when it is durable",
        headers: &[(
            "Idempotency-Key",
            "the same message with the same key is accepted once",
            limits::TURN_KEY_BYTES,
        )],
        body: Some(schema_of::<Message>),
        body_bytes: BODY_BYTES,
        response: (202, Answer::Json(schema_of::<TurnTaken>)),
        error_statuses: &[404, 409, 422],
        handler: |app, request| Box::pin(chats::send(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/events",
        name: "streamChatEvents",
        summary: "Stream the past and new events of a chat as server-sent events, each exactly once",
        query: &[
            QueryParam {
                name: "after",
                kind: ParamKind::Text { longest: 64 },
                summary: "start after the event with this id; from the first event by default",
            },
            QueryParam {
                name: "shape",
                kind: ParamKind::OneOf(&["named", "enveloped"]),
                summary: "`named` events have names; `enveloped` events are objects with `type` and `data`",
            },
        ],
        headers: LAST_EVENT,
        response: (200, Answer::Stream),
        error_statuses: &[404, 409],
        handler: |app, request| Box::pin(chats::events(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/ping",
        name: "pingChat",
        summary: "Mark a chat as in use, so that its agent stays loaded",
        response: (204, Answer::Nothing),
        error_statuses: &[404],
        handler: |app, request| Box::pin(chats::ping(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/plan",
        name: "getPlan",
        summary: "Get the plan of a chat: its items, its approval and its members",
        response: (200, Answer::Json(schema_of::<Plan>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(plans::plan(app, request)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/plan/approve",
        role: Role::Approve,
        name: "approvePlan",
        summary: "Approve the pending plan; its execution starts",
        body: Some(schema_of::<Approve>),
        response: (200, Answer::Json(schema_of::<PlanReviewed>)),
        error_statuses: &[404, 409, 422],
        handler: |app, request| Box::pin(plans::approve(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/plan/reject",
        role: Role::Approve,
        name: "rejectPlan",
        summary: "Reject the pending plan; the planner receives the reason and writes another plan",
        body: Some(schema_of::<Reject>),
        response: (200, Answer::Json(schema_of::<PlanReviewed>)),
        error_statuses: &[404, 409, 422],
        handler: |app, request| Box::pin(plans::reject(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/stop",
        name: "stopChat",
        summary: "Cancel the running turn of a chat and its waiting messages",
        response: (200, Answer::Json(schema_of::<ChatStopped>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(chats::cancel(app, request)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/turns",
        name: "listTurns",
        summary: "List the turns of a chat, by sequence",
        query: &[LIMIT, CURSOR],
        response: (200, Answer::Json(schema_of::<List<TurnDocument>>)),
        error_statuses: &[404],
        handler: |app, request| Box::pin(chats::turns(app, request)),
        ..READ_ONLY
    },
];
