//! Chats, their streams, an agent's own commands, and plans that several agents work on.
//!
//! As in `limits.rs`, each has its unit and its reason.

use std::time::Duration;

use super::COPY_RETENTION;

/// Prompts that wait in one conversation, beside the one that runs.
pub const CONVERSATION_QUEUE: usize = 16;

/// How long a client waits for a free slot before it is refused.
pub const CONVERSATION_SLOT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a client that opens a conversation waits for what the agent says of itself.
pub const CONVERSATION_READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Clients that wait for a slot of one pool at the same time.
pub const CONVERSATION_OPENERS: usize = 64;

/// Conversations on one page of a list.
pub const CONVERSATION_PAGE: u32 = 50;

/// How long a conversation that nobody uses can be loaded: as long as the copy of a task is kept.
pub const CONVERSATION_RETENTION: Duration = COPY_RETENTION;

/// Bytes of one message.
pub const TURN_BYTES: usize = 256 << 10;

/// Messages of one chat that wait, beside the one that is worked.
pub const CHAT_QUEUE: u32 = 16;

/// Bytes of a chat's goal.
pub const CHAT_GOAL_BYTES: usize = 64 << 10;

/// Files that a chat may name at its beginning.
pub const CHAT_FILES: usize = 64;

/// Bytes of the path of one of them: as long as the kernel takes.
pub const CHAT_FILE_BYTES: usize = 4096;

/// Bytes of the key by which a client may send the same message twice.
pub const TURN_KEY_BYTES: usize = 255;

/// Bytes of the transcript for an agent that cannot resume.
pub const CHAT_TRANSCRIPT_BYTES: usize = 32 << 10;

/// Events, from a chat's end, in which they are looked for.
pub const CHAT_TRANSCRIPT_EVENTS: u64 = 100_000;

/// The most turns of a chat of the mode `autonomous`.
pub const CHAT_ROUNDS: u32 = 1000;

/// Bytes of the name of an agent's own command.
pub const COMMAND_NAME_BYTES: usize = 64;

/// How long an agent may take for one where `timeouts.control` is no bound.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(600);

/// Bytes of the output of a slash command that its sender gets; the journal has all of it.
pub const COMMAND_TEXT_BYTES: usize = 64 << 10;

/// How long a running tool call may continue after a person stopped its turn, before the
/// agent gets the cancel.
pub const TOOL_GRACE: Duration = Duration::from_secs(30);

/// Of the transcript's bytes ([`CHAT_TRANSCRIPT_BYTES`]), those of the goal, so that there is room
/// for what was said last.
pub const CHAT_TRANSCRIPT_GOAL_BYTES: usize = 8 << 10;

/// Bytes of the body of a request that creates a chat, or sends a message.
pub const CHAT_BODY_BYTES: usize = 512 << 10;

/// Chats that have an actor at the same time: far more than pools have slots, as those that wait
/// for one count.
pub const CHATS_LOADED: usize = 4096;

/// Chats or turns on one page of a list.
pub const CHAT_PAGE: u32 = 50;

/// Subscribers of all chats together.
pub const CHAT_SUBSCRIBERS: usize = 4096;

/// Events of one chat that are kept encoded for its subscribers.
pub const CHAT_RING_EVENTS: usize = 1024;

/// Their bytes.
pub const CHAT_RING_BYTES: usize = 1 << 20;

/// Events that are read from the journal at once for a subscriber, or for the ring.
pub const CHAT_PAGE_EVENTS: u32 = 256;

/// Bytes of their bodies.
pub const CHAT_PAGE_BYTES: usize = 256 << 10;

/// Bytes that are taken for one subscriber at once, one event at least: many that take nothing hold
/// this much each.
pub const CHAT_PIECE_BYTES: usize = 32 << 10;

/// Pieces that wait to be written to a subscriber; while they do, nothing more is read for it.
pub const CHAT_STREAM_QUEUE: usize = 4;

/// How long a subscriber may take for a piece before its connection is given up.
pub const CHAT_STREAM_WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// The interval of keepalives of a quiet stream.
pub const CHAT_STREAM_KEEPALIVE: Duration = Duration::from_secs(15);

/// When a subscriber should reconnect after the end of its stream.
pub const CHAT_STREAM_RETRY: Duration = Duration::from_secs(1);

/// A stream ends so long before its connection must.
pub const CHAT_STREAM_MARGIN: Duration = Duration::from_secs(2);

/// Connections to the journal that are kept for chats, and readings at the same time.
pub const CHAT_READERS: usize = 4;

/// Bytes of a turn's text that its last event repeats: the end of it.
pub const CHAT_ANSWER_BYTES: usize = 64 << 10;

/// How long it waits before it asks again for a slot, or for a journal that takes nothing now.
pub const CHAT_RETRY: Duration = Duration::from_millis(500);

/// As long as that becomes at most: it doubles from one try to the next.
pub const CHAT_RETRY_MAX: Duration = Duration::from_secs(30);

/// How long whoever closes a chat waits for the end of its turn and its agent; it goes on without.
pub const CHAT_CLOSE_TIMEOUT: Duration = Duration::from_secs(20);

/// How often it is looked for chats that nobody has used for long, at most.
pub const CHAT_IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(3600);

/// Agents that work on one plan.
pub const PLAN_MEMBERS: usize = 16;

/// Bytes of the command that says whether a goal is met.
pub const CHAT_CHECK_BYTES: usize = 4096;

/// Bytes of what is sent while a goal is not met.
pub const CHAT_CONTINUE_BYTES: usize = 16 << 10;

/// Rounds that are sent where a check still fails, unless a chat says less or more.
pub const PLAN_ROUNDS: u32 = 10;

/// The most that a chat may say.
pub const PLAN_ROUNDS_MAX: u32 = 1000;

/// Turns that may fail for one item.
pub const PLAN_ITEM_TRIES: u32 = 2;

/// Turns for one item, or of one planner, that may go with the supervisor.
pub const PLAN_LOST_TURNS: u32 = 100;

/// Orders of people that wait for one plan.
pub const PLAN_COMMAND_QUEUE: usize = 16;

/// Events of members that are reported in one step.
pub const PLAN_FORWARDED: u32 = 200;

/// Retries of a tick because another process wrote the file at the same time.
pub const PLAN_TICK_RETRIES: u32 = 16;

/// Looks, each some time after the last, at a file that is no plan any more before the work ends.
pub const PLAN_MISSING_RETRIES: u32 = 5;

/// Bytes of a person's reason against a plan.
pub const PLAN_REASON_BYTES: usize = 16 << 10;

/// How long a changed plan is left alone, so that several changes are one.
pub const PLAN_SETTLE: Duration = Duration::from_millis(50);

/// Versions of a plan's file that are looked through for whoever wrote an item.
pub const PLAN_HISTORY: u32 = 64;

/// Turns in a row that are had only so that the check is run.
pub const PLAN_CHECK_ONLY_TURNS: u32 = 3;

/// The shortest time between two changes of a plan that waits for approval and are told.
pub const PLAN_REVIEW_INTERVAL: Duration = Duration::from_secs(2);

/// What was said of a plan that is shown: the newest.
pub const PLAN_REVIEWS_LISTED: u32 = 200;

/// Items of a plan, written by people, that are gone and are still known: the newest.
pub const PLAN_REMOVED_ITEMS: usize = 1000;
