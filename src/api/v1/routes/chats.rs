//! The rows of chats in the table of routes.
//!
//! Owns them alone; what a row means is the table's. Must not know what a chat does.

use axum::http::Method;

use super::super::{chats, plans};
use super::{ACTS, Given, Key, LAST_EVENT, LIMIT, LOOKS, NOTHING, Route, STREAM};
use crate::limits;
use crate::model::Role;

/// Where a page of a list begins.
const AFTER: Key = Key {
    name: "after",
    is: Given::Text { longest: 128 },
    does: "`next` of the page before",
};
/// A page of chats or turns has at most 50 of them, whatever is asked for.
const SOME: Key = Key {
    does: "how many items at most; 50 if not given, and never more",
    ..LIMIT
};
pub(super) const BODY_BYTES: u64 = limits::CHAT_BODY_BYTES as u64;

/// See the head of this file.
pub(super) static ROUTES: &[Route] = &[
    Route {
        path: "/api/v1/workspaces/{workspace}/chats",
        name: "listChats",
        does: "The chats of a workspace, the newest first",
        query: &[AFTER, SOME],
        gives: (200, "ChatList"),
        refuses: &[404, 422],
        handle: |desk, call| Box::pin(chats::list(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats",
        name: "createChat",
        does: "Begins a chat with its first message; returns when it is durable",
        headers: &[(
            "Idempotency-Key",
            "the same chat under the same key is begun once",
            limits::TURN_KEY_BYTES,
        )],
        body: Some("NewChat"),
        body_bytes: BODY_BYTES,
        gives: (201, "ChatBegun"),
        refuses: &[404, 409, 422],
        handle: |desk, call| Box::pin(chats::create(desk, call)),
        ..ACTS
    },
    Route {
        method: Method::DELETE,
        path: "/api/v1/workspaces/{workspace}/chats/{chat}",
        name: "closeChat",
        does: "Closes a chat: what runs is stopped, and no message is taken any more",
        gives: (200, "ChatClosed"),
        refuses: &[404, 409],
        handle: |desk, call| Box::pin(chats::close(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}",
        name: "getChat",
        does: "One chat and how it stands",
        gives: (200, "Chat"),
        refuses: &[404],
        handle: |desk, call| Box::pin(chats::one(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}",
        name: "sendMessage",
        does: "Sends a message to a chat; returns when it is durable",
        headers: &[(
            "Idempotency-Key",
            "the same message under the same key is taken once",
            limits::TURN_KEY_BYTES,
        )],
        body: Some("Message"),
        body_bytes: BODY_BYTES,
        gives: (202, "TurnTaken"),
        refuses: &[404, 409, 422],
        handle: |desk, call| Box::pin(chats::say(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/events",
        name: "streamChatEvents",
        does: "A chat's events from the journal and on, as server-sent events, each once",
        query: &[
            Key {
                name: "after",
                is: Given::Text { longest: 64 },
                does: "after the event with this id; from the first one if not given",
            },
            Key {
                name: "shape",
                is: Given::Word(&["named", "enveloped"]),
                does: "whether events have names, or are objects with `type` and `data`",
            },
        ],
        headers: LAST_EVENT,
        gives: (200, STREAM),
        refuses: &[404, 409],
        handle: |desk, call| Box::pin(chats::events(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/ping",
        name: "pingChat",
        does: "Says that a chat is used, so that its agent stays",
        gives: (204, NOTHING),
        refuses: &[404],
        handle: |desk, call| Box::pin(chats::ping(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/plan",
        name: "getPlan",
        does: "The plan of a chat whose members work one: its items, its approval, who works it",
        gives: (200, "Plan"),
        refuses: &[404],
        handle: |desk, call| Box::pin(plans::plan(desk, call)),
        ..LOOKS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/plan/approve",
        role: Role::Approve,
        name: "approvePlan",
        does: "Approves the plan that waits: it is worked from now on",
        body: Some("ApprovePlan"),
        gives: (200, "PlanReviewed"),
        refuses: &[404, 409, 422],
        handle: |desk, call| Box::pin(plans::approve(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/plan/reject",
        role: Role::Approve,
        name: "rejectPlan",
        does: "Rejects the plan that waits: its planner is told why, and writes another",
        body: Some("RejectPlan"),
        gives: (200, "PlanReviewed"),
        refuses: &[404, 409, 422],
        handle: |desk, call| Box::pin(plans::reject(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/stop",
        name: "stopChat",
        does: "Cancels the running turn of a chat, and what waits",
        gives: (200, "ChatStopped"),
        refuses: &[404],
        handle: |desk, call| Box::pin(chats::cancel(desk, call)),
        ..ACTS
    },
    Route {
        path: "/api/v1/workspaces/{workspace}/chats/{chat}/turns",
        name: "listTurns",
        does: "The turns of a chat, by their sequence",
        query: &[
            Key {
                name: "after",
                is: Given::Text { longest: 20 },
                does: "after the turn with this sequence",
            },
            SOME,
        ],
        gives: (200, "TurnList"),
        refuses: &[404],
        handle: |desk, call| Box::pin(chats::turns(desk, call)),
        ..LOOKS
    },
];
