//! The rows of chats in the table of routes.
//!
//! Owns them alone; what a row means is the table's. Must not know what a chat does.

use axum::http::Method;

use super::super::{chats, plans};
use super::{
    LAST_EVENT, LIMIT, MUTATING, NO_BODY, ParamKind, QueryParam, READ_ONLY, Route, STREAM,
};
use marshal_model::Role;
use marshal_model::limits;

/// Where a page of a list begins.
const AFTER: QueryParam = QueryParam {
    name: "after",
    kind: ParamKind::Text { longest: 128 },
    summary: "`next` of the page before",
};
/// A page of chats or turns has at most 50 of them, whatever is asked for.
const CHAT_LIMIT: QueryParam = QueryParam {
    summary: "how many items at most; 50 if not given, and never more",
    ..LIMIT
};
pub(super) const BODY_BYTES: u64 = limits::CHAT_BODY_BYTES as u64;

/// See the head of this file.
pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/api/v1/workspaces/{workspace}/chats",
        name: "listChats",
        summary: "The chats of a workspace, the newest first",
        query: &[AFTER, CHAT_LIMIT],
        response: (200, "ChatList"),
        error_statuses: &[404, 422],
        handler: |desk, call| Box::pin(chats::list(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats",
        name: "createChat",
        summary: "Begins a chat with its first message; returns when it is durable",
        headers: &[(
            "Idempotency-Key",
            "the same chat under the same key is begun once",
            limits::TURN_KEY_BYTES,
        )],
        body: Some("NewChat"),
        body_bytes: BODY_BYTES,
        response: (201, "ChatBegun"),
        error_statuses: &[404, 409, 422],
        handler: |desk, call| Box::pin(chats::create(desk, call)),
        ..MUTATING
    },
    Route {
        method: Method::DELETE,
        path: "/api/v1/workspaces/{workspace}/chats/{chat}",
        name: "closeChat",
        summary: "Closes a chat: what runs is stopped, and no message is taken any more",
        response: (200, "ChatClosed"),
        error_statuses: &[404, 409],
        handler: |desk, call| Box::pin(chats::close(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}",
        name: "getChat",
        summary: "One chat and how it stands",
        response: (200, "Chat"),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(chats::get(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}",
        name: "sendMessage",
        summary: "Sends a message to a chat; returns when it is durable",
        headers: &[(
            "Idempotency-Key",
            "the same message under the same key is taken once",
            limits::TURN_KEY_BYTES,
        )],
        body: Some("Message"),
        body_bytes: BODY_BYTES,
        response: (202, "TurnTaken"),
        error_statuses: &[404, 409, 422],
        handler: |desk, call| Box::pin(chats::send(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/events",
        name: "streamChatEvents",
        summary: "A chat's events from the journal and on, as server-sent events, each once",
        query: &[
            QueryParam {
                name: "after",
                kind: ParamKind::Text { longest: 64 },
                summary: "after the event with this id; from the first one if not given",
            },
            QueryParam {
                name: "shape",
                kind: ParamKind::OneOf(&["named", "enveloped"]),
                summary: "whether events have names, or are objects with `type` and `data`",
            },
        ],
        headers: LAST_EVENT,
        response: (200, STREAM),
        error_statuses: &[404, 409],
        handler: |desk, call| Box::pin(chats::events(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/ping",
        name: "pingChat",
        summary: "Says that a chat is used, so that its agent stays",
        response: (204, NO_BODY),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(chats::ping(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/plan",
        name: "getPlan",
        summary: "The plan of a chat whose members work one: its items, its approval, who works it",
        response: (200, "Plan"),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(plans::plan(desk, call)),
        ..READ_ONLY
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/plan/approve",
        role: Role::Approve,
        name: "approvePlan",
        summary: "Approves the plan that waits: it is worked from now on",
        body: Some("ApprovePlan"),
        response: (200, "PlanReviewed"),
        error_statuses: &[404, 409, 422],
        handler: |desk, call| Box::pin(plans::approve(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/plan/reject",
        role: Role::Approve,
        name: "rejectPlan",
        summary: "Rejects the plan that waits: its planner is told why, and writes another",
        body: Some("RejectPlan"),
        response: (200, "PlanReviewed"),
        error_statuses: &[404, 409, 422],
        handler: |desk, call| Box::pin(plans::reject(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/stop",
        name: "stopChat",
        summary: "Cancels the running turn of a chat, and what waits",
        response: (200, "ChatStopped"),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(chats::cancel(desk, call)),
        ..MUTATING
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/turns",
        name: "listTurns",
        summary: "The turns of a chat, by their sequence",
        query: &[
            QueryParam {
                name: "after",
                kind: ParamKind::Text { longest: 20 },
                summary: "after the turn with this sequence",
            },
            CHAT_LIMIT,
        ],
        response: (200, "TurnList"),
        error_statuses: &[404],
        handler: |desk, call| Box::pin(chats::turns(desk, call)),
        ..READ_ONLY
    },
];
