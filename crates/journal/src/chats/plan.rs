//! Autonomous chats: their progress, the items of their plans, and the reviews of these plans.
//!
//! A claim of an item that is not open is rejected, so no two members have the same item. Must not
//! know the contents of a plan's file, or who does the work.

use rusqlite::{Row, params};

use super::queries::parse_column;
use super::{ChatViolation, chat_violation};
use crate::codec;
use crate::columns::Columns as _;
use crate::error::{ReadError, Violation};
use crate::reader::{Reader, StoredEvent, event_from_row};
use crate::rows::{RowWriter, WriteError, to_i64};
use marshal_model::{
    ChatPhase, ChatProgress, ItemState, ReviewState, SessionId, TurnId, UntrustedText,
};
use marshal_wire::plan::checklist::ItemId;

/// A change of an autonomous chat. Times are milliseconds since the Unix epoch.
#[derive(Debug, Clone)]
pub enum PlanWrite {
    /// The chat's phase and progress changed.
    Progress {
        /// The chat.
        chat: SessionId,
        /// The new phase.
        phase: ChatPhase,
        /// The new progress.
        progress: ChatProgress,
    },
    /// The chat's settings changed: the path of its plan is known.
    Settings {
        /// The chat.
        chat: SessionId,
        /// The complete new settings.
        settings: marshal_model::ChatSettings,
    },
    /// The parent's stream contains a member's events up to `seq`.
    Forwarded {
        /// The member.
        chat: SessionId,
        /// The seq of the last forwarded event.
        seq: u64,
    },
    /// An item was added or changed.
    Item(PlanItem),
    /// A member claims an open item for a turn.
    Claim {
        /// The chat whose plan it is.
        chat: SessionId,
        /// The item.
        item: ItemId,
        /// The member.
        by: SessionId,
        /// The member's turn.
        turn: TurnId,
        /// When the item was claimed.
        at_ms: i64,
    },
    /// A review of a plan. A new waiting review replaces the waiting one.
    Review(PlanReview),
    /// Removes the oldest of the items that people removed from the plan.
    PruneItems {
        /// The chat whose plan it is.
        chat: SessionId,
        /// The number of newest removed items to keep.
        keep: usize,
    },
}

/// An item of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanItem {
    /// The chat whose plan it is.
    pub chat: SessionId,
    /// The item's id.
    pub item: ItemId,
    /// Its position in the plan, from 1.
    pub ordinal: u32,
    /// Its text.
    pub content: UntrustedText,
    /// The state.
    pub state: ItemState,
    /// Whether an agent added it.
    pub by_agent: bool,
    /// The member that has it, or had it last.
    pub claimed_by: Option<SessionId>,
    /// That member's turn.
    pub turn: Option<TurnId>,
    /// The number of failed turns for it.
    pub tries: u32,
    /// The number of turns for it that were lost with the supervisor.
    pub losses: u32,
    /// When it changed last, in milliseconds since the Unix epoch.
    pub at_ms: i64,
    /// For an item that an agent removed: its state before the removal.
    pub state_before_removal: Option<ItemState>,
}

/// A review of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanReview {
    /// The chat whose plan it is.
    pub chat: SessionId,
    /// The result.
    pub state: ReviewState,
    /// The SHA-256 of the reviewed text, in hexadecimal.
    pub sha256: String,
    /// The reviewer: a person's name, or the policy's.
    pub by: String,
    /// The rules that decided.
    pub rules: Vec<String>,
    /// The reason; foreign text.
    pub why: UntrustedText,
    /// When it was made, in milliseconds since the Unix epoch.
    pub at_ms: i64,
}

impl RowWriter<'_> {
    /// Writes the rows of plans.
    pub(crate) fn write_plan(&self, write: &PlanWrite) -> Result<(), WriteError> {
        match write {
            PlanWrite::Progress {
                chat,
                phase,
                progress,
            } => self.update_chat(
                chat,
                "UPDATE chats SET phase = ?2, progress = ?3 WHERE session = ?1",
                params![
                    chat.as_str(),
                    phase.as_str(),
                    codec::progress_json(progress)
                ],
            ),
            PlanWrite::Settings { chat, settings } => self.update_chat(
                chat,
                "UPDATE chats SET settings = ?2 WHERE session = ?1",
                params![chat.as_str(), codec::settings_json(settings)],
            ),
            PlanWrite::Forwarded { chat, seq } => self.update_chat(
                chat,
                "UPDATE chats SET forwarded = ?2 WHERE session = ?1",
                params![chat.as_str(), to_i64(*seq)],
            ),
            PlanWrite::Item(item) => self.upsert_plan_item(item),
            PlanWrite::Claim {
                chat,
                item,
                by,
                turn,
                at_ms,
            } => {
                let claimed = self.execute(
                    "UPDATE plan_items SET state = 'claimed', claimed_by = ?3, turn = ?4, \
                     at_ms = ?5 WHERE chat = ?1 AND item = ?2 AND state = 'open'",
                    params![
                        chat.as_str(),
                        item.to_string(),
                        by.as_str(),
                        turn.as_str(),
                        at_ms
                    ],
                )?;
                claimed.require_one(|| {
                    chat_violation(chat, ChatViolation::ItemNotOpen(item.to_string()))
                })
            }
            PlanWrite::PruneItems { chat, keep } => {
                self.execute(
                    "DELETE FROM plan_items WHERE chat = ?1 AND item IN (SELECT item \
                     FROM plan_items WHERE chat = ?1 AND state = 'gone' AND by_agent = 0 \
                     ORDER BY at_ms DESC, item LIMIT -1 OFFSET ?2)",
                    params![chat.as_str(), i64::try_from(*keep).unwrap_or(i64::MAX)],
                )?;
                Ok(())
            }
            PlanWrite::Review(review) => {
                if review.state == ReviewState::Waiting {
                    self.execute(
                        "DELETE FROM plan_reviews WHERE chat = ?1 AND state = 'waiting' \
                         AND nth = (SELECT max(nth) FROM plan_reviews WHERE chat = ?1)",
                        [review.chat.as_str()],
                    )?;
                }
                self.execute(
                    "INSERT INTO plan_reviews (chat, nth, state, sha256, said_by, rules, why, at_ms) \
                     VALUES (?1, (SELECT coalesce(max(nth), 0) + 1 FROM plan_reviews WHERE chat = ?1), \
                     ?2, ?3, ?4, ?5, ?6, ?7)",
                    params![
                        review.chat.as_str(),
                        review.state.as_str(),
                        review.sha256,
                        review.by,
                        serde_json::to_string(&review.rules).unwrap_or_default(),
                        review.why.raw(),
                        review.at_ms,
                    ],
                )?;
                Ok(())
            }
        }
    }

    fn update_chat(
        &self,
        chat: &SessionId,
        sql: &str,
        given: impl rusqlite::Params,
    ) -> Result<(), WriteError> {
        let unknown = || -> Violation { chat_violation(chat, ChatViolation::Unknown) };
        self.execute(sql, given)?.require_one(unknown)
    }

    fn upsert_plan_item(&self, item: &PlanItem) -> Result<(), WriteError> {
        self.execute(
            "INSERT INTO plan_items (chat, item, ordinal, content, state, by_agent, claimed_by, \
             turn, tries, losses, at_ms, gone_as) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) \
             ON CONFLICT (chat, item) DO UPDATE SET ordinal = ?3, content = ?4, state = ?5, \
             by_agent = ?6, claimed_by = ?7, turn = ?8, tries = ?9, losses = ?10, at_ms = ?11, \
             gone_as = ?12",
            params![
                item.chat.as_str(),
                item.item.to_string(),
                item.ordinal,
                item.content.raw(),
                item.state.as_str(),
                item.by_agent,
                item.claimed_by.as_ref().map(SessionId::as_str),
                item.turn.as_ref().map(TurnId::as_str),
                item.tries,
                item.losses,
                item.at_ms,
                item.state_before_removal.map(ItemState::as_str),
            ],
        )?;
        Ok(())
    }
}

impl Reader {
    /// At most `limit` autonomous chats that have not ended, in the order of their ids, after
    /// `after`.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn autonomous_chats(
        &self,
        after: Option<&SessionId>,
        limit: u32,
    ) -> Result<Vec<SessionId>, ReadError> {
        let sql = "SELECT session FROM chats WHERE phase IS NOT NULL AND phase <> 'ended' \
                   AND ended_ms IS NULL AND session > ?1 ORDER BY session LIMIT ?2";
        let after = after.map_or("", SessionId::as_str);
        self.query_rows(sql, params![after, limit], |row| {
            parse_session_id(row.get(0)?)
        })
    }

    /// The members of a chat, in the order of their ids, which is the order of their roles.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn members(&self, chat: &SessionId) -> Result<Vec<SessionId>, ReadError> {
        let sql = "SELECT session FROM chats WHERE parent = ?1 ORDER BY session";
        self.query_rows(sql, [chat.as_str()], |row| parse_session_id(row.get(0)?))
    }

    /// The items of a chat's plan in order; removed items come last.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn plan_items(&self, chat: &SessionId) -> Result<Vec<PlanItem>, ReadError> {
        let sql = "SELECT chat, item, ordinal, content, state, by_agent, claimed_by, turn, tries, \
                   losses, at_ms, gone_as FROM plan_items WHERE chat = ?1 \
                   ORDER BY state = 'gone', ordinal, item";
        self.query_rows(sql, [chat.as_str()], plan_item_from_row)
    }

    /// At most `limit` events of a member after `after` that its parent evaluates: changed files,
    /// permission requests, steps of the plan, ends of turns.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn member_events(
        &self,
        member: &SessionId,
        after: u64,
        limit: u32,
    ) -> Result<Vec<StoredEvent>, ReadError> {
        let sql = "SELECT session, epoch, seq, at_us, kind, version, body FROM events \
                   WHERE session = ?1 AND seq > ?2 AND kind IN \
                   ('file_updated', 'permission_requested', 'plan_step', 'turn_ended') ORDER BY seq LIMIT ?3";
        let given = params![member.as_str(), to_i64(after), limit];
        self.query_rows(sql, given, |row| Ok(event_from_row(row)?))
    }

    /// Whether a session, after an event, made a tool call that is not read-only or changed a file,
    /// with `text` (as JSON escapes it) in the event's record.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn has_touched(
        &self,
        session: &SessionId,
        after: u64,
        text: &str,
    ) -> Result<bool, ReadError> {
        let text = serde_json::to_string(text).unwrap_or_default();
        let sql = "SELECT 1 FROM events WHERE session = ?1 AND seq > ?2 AND kind IN \
                   ('tool_start', 'tool_update', 'permission_requested', 'file_updated') AND instr(body, ?3) > 0 \
                   AND lower(coalesce(body ->> '$.name', body ->> '$.tool', '')) NOT GLOB 'read*' \
                   LIMIT 1";
        let given = params![session.as_str(), to_i64(after), text.trim_matches('"')];
        Ok(!self.query_rows(sql, given, |_| Ok(()))?.is_empty())
    }

    /// The last `limit` reviews of a chat's plan, in order.
    ///
    /// # Errors
    /// [`ReadError`]
    pub fn plan_reviews(&self, chat: &SessionId, limit: u32) -> Result<Vec<PlanReview>, ReadError> {
        let sql = "SELECT chat, state, sha256, said_by, rules, why, at_ms FROM plan_reviews \
                   WHERE chat = ?1 ORDER BY nth DESC LIMIT ?2";
        let reviews = self.query_rows(sql, params![chat.as_str(), limit], |row| {
            let rules = parse_column("list of rules", row.get("rules")?, |text| {
                serde_json::from_str(text).ok()
            });
            Ok(PlanReview {
                chat: parse_session_id(row.get("chat")?)?,
                state: parse_column("review", row.get("state")?, ReviewState::parse)?,
                sha256: row.get("sha256")?,
                by: row.get("said_by")?,
                rules: rules?,
                why: row.untrusted("why")?,
                at_ms: row.get("at_ms")?,
            })
        });
        let mut reviews = reviews?;
        reviews.reverse();
        Ok(reviews)
    }
}

fn parse_session_id(text: String) -> Result<SessionId, ReadError> {
    parse_column("session", text, |text| SessionId::new(text).ok())
}

fn plan_item_from_row(row: &Row<'_>) -> Result<PlanItem, ReadError> {
    let claimed_by: Option<String> = row.get("claimed_by")?;
    let turn: Option<String> = row.get("turn")?;
    Ok(PlanItem {
        chat: parse_session_id(row.get("chat")?)?,
        item: parse_column("item", row.get("item")?, ItemId::parse)?,
        ordinal: row.get("ordinal")?,
        content: row.untrusted("content")?,
        state: parse_column("state of an item", row.get("state")?, ItemState::parse)?,
        by_agent: row.get("by_agent")?,
        claimed_by: claimed_by.map(parse_session_id).transpose()?,
        turn: turn.and_then(|turn| TurnId::new(&turn).ok()),
        tries: row.get("tries")?,
        losses: row.get("losses")?,
        at_ms: row.get("at_ms")?,
        state_before_removal: row
            .get::<_, Option<String>>("gone_as")?
            .map(|word| parse_column("state of an item", word, ItemState::parse))
            .transpose()?,
    })
}
