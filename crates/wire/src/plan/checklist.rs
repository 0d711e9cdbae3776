//! An ordinary Markdown checklist: its items, and the ticking of one of them.
//!
//! Lines like `- [ ] text`, `* [x] text`, `+ [X] text`, `1. [ ] text`, `2) [ ] text`, at any depth of lists;
//! what stands in a code fence or is indented as code is no item. An item is known by its text and by
//! how many items with the same text stand before it, so that it stays itself while a person edits,
//! moves and ticks others. A tick changes one byte of the text and nothing else.

use std::collections::HashMap;
use std::fmt;

use sha2::{Digest as _, Sha256};

/// The largest checklist, in bytes.
pub const TEXT_BYTES: usize = 1 << 20;

/// The most items of a checklist.
pub const ITEMS: usize = 1000;

/// The most items that agents may add to one plan.
pub const AGENT_ITEMS: usize = 100;

/// The most characters of an item's text in an error.
const ERROR_TEXT_CHARS: usize = 80;

/// The furthest that the text of a line is indented within its list, in columns; beyond it is code.
const CODE_INDENT: usize = 4;

/// Why a text is not a valid checklist, or an item cannot be ticked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChecklistError {
    /// The text is too large.
    #[error("the plan has {bytes} bytes; the limit is {TEXT_BYTES}")]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// It has too many items.
    #[error("the plan has more than {ITEMS} items")]
    TooManyItems,
    /// The item no longer exists.
    #[error("the plan no longer has the item {0}: it was removed, or its text was changed")]
    ItemRemoved(ItemId),
    /// Agents added too many items.
    #[error("agents added {added} items to the plan; the limit is {AGENT_ITEMS}")]
    TooManyAdded {
        /// The number of items that agents added.
        added: usize,
    },
    /// A text that would not be parsed as one item.
    #[error("{0:?} cannot be the text of one item: it must be one line that is not empty")]
    InvalidText(String),
}

/// The identity of an item: the digest of its text, and which one of those with that text it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ItemId {
    digest: [u8; 8],
    /// From 1.
    nth: u32,
}

impl ItemId {
    /// Reads what `Display` writes.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (digest, nth) = text.split_once('-')?;
        let canonical = |c: u8| c.is_ascii_digit() || (b'a'..=b'f').contains(&c);
        if digest.len() != 16 || !digest.bytes().all(canonical) {
            return None;
        }
        let digest = u64::from_str_radix(digest, 16).ok()?.to_be_bytes();
        let id = Self {
            digest,
            nth: nth.parse().ok().filter(|nth| *nth > 0)?,
        };
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", u64::from_be_bytes(self.digest), self.nth)
    }
}

/// One item.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChecklistItem {
    /// Its identity.
    pub id: ItemId,
    /// Its text: the rest of its line, without blanks at the ends.
    pub text: String,
    /// Whether it is ticked.
    pub done: bool,
    /// The number of items that it is nested below.
    pub depth: usize,
    /// Its line, from 1.
    pub line: usize,
    /// Where its mark is, in bytes from the beginning.
    mark: usize,
}

/// The progress of a plan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Ticked items.
    pub done: usize,
    /// All items.
    pub total: usize,
}

/// The differences of a checklist between two texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChecklistDiff {
    /// New items, in their order.
    pub added: Vec<ChecklistItem>,
    /// Removed items.
    pub removed: Vec<ChecklistItem>,
}

/// A checklist that was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checklist {
    items: Vec<ChecklistItem>,
}

impl Checklist {
    /// Reads a text. A text without items is a checklist without items.
    ///
    /// # Errors
    /// [`ChecklistError::TooLarge`], [`ChecklistError::TooManyItems`]
    pub fn parse(text: &str) -> Result<Self, ChecklistError> {
        if text.len() > TEXT_BYTES {
            return Err(ChecklistError::TooLarge { bytes: text.len() });
        }
        let mut reader = Parser::default();
        let mut at = 0;
        for (number, line) in text.split_inclusive('\n').enumerate() {
            reader.read_line(at, number + 1, line);
            if reader.items.len() > ITEMS {
                return Err(ChecklistError::TooManyItems);
            }
            at += line.len();
        }
        Ok(Self {
            items: reader.items,
        })
    }

    /// The items, in their order.
    #[must_use]
    pub fn items(&self) -> &[ChecklistItem] {
        &self.items
    }

    /// The item with this identity.
    #[must_use]
    pub fn item(&self, id: ItemId) -> Option<&ChecklistItem> {
        self.items.iter().find(|item| item.id == id)
    }

    /// How many items are ticked.
    #[must_use]
    pub fn progress(&self) -> Progress {
        Progress {
            done: self.items.iter().filter(|item| item.done).count(),
            total: self.items.len(),
        }
    }

    /// The new and removed items since an earlier text.
    #[must_use]
    pub fn diff_from(&self, before: &Self) -> ChecklistDiff {
        let beyond = |these: &Self, those: &Self| {
            let known: std::collections::HashSet<ItemId> =
                those.items.iter().map(|item| item.id).collect();
            let new = these.items.iter().filter(|item| !known.contains(&item.id));
            new.cloned().collect()
        };
        ChecklistDiff {
            added: beyond(self, before),
            removed: beyond(before, self),
        }
    }
}

/// Ticks an item in the text as it is now, whatever else was edited since the item was read. A text
/// in which it is ticked already is returned unchanged.
///
/// # Errors
/// [`ChecklistError::ItemRemoved`] if the text has no such item, and what [`Checklist::parse`] says.
pub fn tick(text: &str, item: ItemId) -> Result<String, ChecklistError> {
    set_mark(text, item, true)
}

/// Removes the tick of an item, as [`tick`] sets it.
///
/// # Errors
/// Those of [`tick`].
pub fn untick(text: &str, item: ItemId) -> Result<String, ChecklistError> {
    set_mark(text, item, false)
}

fn set_mark(text: &str, id: ItemId, done: bool) -> Result<String, ChecklistError> {
    let list = Checklist::parse(text)?;
    let item = list.item(id).ok_or(ChecklistError::ItemRemoved(id))?;
    if item.done == done {
        return Ok(text.to_owned());
    }
    let mut next = String::with_capacity(text.len());
    next.push_str(&text[..item.mark]);
    next.push(if done { 'x' } else { ' ' });
    // A mark is one byte.
    next.push_str(&text[item.mark + 1..]);
    Ok(next)
}

/// Adds items at the end, as an agent may: `added` of them were added to this plan before.
///
/// # Errors
/// [`ChecklistError::TooManyAdded`], [`ChecklistError::InvalidText`] if a text is empty or more
/// than one line, and what [`Checklist::parse`] says of the whole.
pub fn append(text: &str, items: &[&str], added: usize) -> Result<String, ChecklistError> {
    let all = added.saturating_add(items.len());
    if all > AGENT_ITEMS {
        return Err(ChecklistError::TooManyAdded { added: all });
    }
    let before = Checklist::parse(text)?;
    let ending = if text.contains("\r\n") { "\r\n" } else { "\n" };
    let mut next = text.to_owned();
    if !next.is_empty() && !next.ends_with('\n') {
        next.push_str(ending);
    }
    for item in items {
        let invalid = || ChecklistError::InvalidText(item.chars().take(ERROR_TEXT_CHARS).collect());
        if item.trim().is_empty() || item.contains(['\n', '\r']) {
            return Err(invalid());
        }
        next.push_str("- [ ] ");
        next.push_str(item.trim());
        next.push_str(ending);
    }
    let after = Checklist::parse(&next)?;
    // In an open code fence they would be no items.
    if after.items.len() != before.items.len() + items.len() {
        return Err(ChecklistError::InvalidText(
            items
                .first()
                .copied()
                .unwrap_or_default()
                .chars()
                .take(ERROR_TEXT_CHARS)
                .collect(),
        ));
    }
    Ok(next)
}

/// A list item's line that is open: what is indented as far as its content belongs to it.
struct OpenItem {
    /// The column of its content.
    content: usize,
    /// Whether it is an item of the checklist.
    is_item: bool,
}

#[derive(Default)]
struct Parser {
    items: Vec<ChecklistItem>,
    open: Vec<OpenItem>,
    /// The character and the length of the fence that is open, and the column of its list's content.
    fence: Option<(u8, usize, usize)>,
    /// How often each text was met.
    text_counts: HashMap<[u8; 8], u32>,
    /// The line before has text that this one may go on with.
    in_paragraph: bool,
}

impl Parser {
    fn read_line(&mut self, at: usize, number: usize, line: &str) {
        let line = line.strip_suffix('\n').unwrap_or(line);
        let line = line.strip_suffix('\r').unwrap_or(line);
        let (column, start) = indent(line, 0);
        let rest = &line[start..];
        if rest.is_empty() {
            self.in_paragraph = false;
            return;
        }
        if let Some((kind, length, content)) = self.fence {
            // Text that leaves the list of a fence ends the fence with it.
            if column >= content {
                let closes = parse_fence(rest).is_some_and(|(other, long, info)| {
                    other == kind && long >= length && info.is_empty()
                });
                if closes && column - content < CODE_INDENT {
                    self.fence = None;
                }
                return;
            }
            self.fence = None;
        }
        self.close_lists(column, rest);
        let base = self.open.last().map_or(0, |open| open.content);
        if column >= base + CODE_INDENT {
            // Code, or the next line of a paragraph: no item in either.
            return;
        }
        if let Some((kind, length, info)) = parse_fence(rest)
            && (kind == b'~' || !info.contains('`'))
        {
            self.fence = Some((kind, length, base));
            self.in_paragraph = false;
            return;
        }
        self.read_bullets(at, number, line, start, column);
    }

    /// Closes the lists that a line with this indentation does not belong to.
    fn close_lists(&mut self, column: usize, rest: &str) {
        let lazy = self.in_paragraph && bullet_width(rest).is_none() && parse_fence(rest).is_none();
        while let Some(open) = self.open.last() {
            // A line that only goes on with a paragraph may stand further left.
            if column >= open.content || lazy {
                break;
            }
            self.open.pop();
        }
    }

    /// Reads the marks at the beginning of a line, of which there may be several (`- - [ ] text`).
    fn read_bullets(&mut self, at: usize, number: usize, line: &str, start: usize, column: usize) {
        let (mut start, mut column) = (start, column);
        self.in_paragraph = true;
        while let Some(width) = bullet_width(&line[start..]) {
            let marked = start + width;
            let (after, text) = indent_from(line, marked, column + width);
            if text == line.len() {
                // A list item that begins with an empty line.
                self.push_open(column + width + 1, false);
                self.in_paragraph = false;
                return;
            }
            let gap = after - (column + width);
            // More than four blanks: the content begins after one, and is code.
            let content = if gap > CODE_INDENT {
                column + width + 1
            } else {
                after
            };
            if gap > CODE_INDENT {
                self.push_open(content, false);
                self.in_paragraph = false;
                return;
            }
            if let Some((done, label)) = parse_task(&line[text..]) {
                let depth = self.open.iter().filter(|open| open.is_item).count();
                self.add_item(at + text + 1, number, label, done, depth);
                self.push_open(content, true);
                return;
            }
            self.push_open(content, false);
            if let Some((kind, length, info)) = parse_fence(&line[text..])
                && (kind == b'~' || !info.contains('`'))
            {
                self.fence = Some((kind, length, content));
                self.in_paragraph = false;
                return;
            }
            (start, column) = (text, after);
        }
    }

    fn push_open(&mut self, content: usize, is_item: bool) {
        self.open.push(OpenItem { content, is_item });
    }

    fn add_item(&mut self, mark: usize, line: usize, label: &str, done: bool, depth: usize) {
        let hash = Sha256::digest(label.as_bytes());
        let mut digest = [0; 8];
        digest.copy_from_slice(&hash[..8]);
        let met = self.text_counts.entry(digest).or_default();
        *met += 1;
        self.items.push(ChecklistItem {
            id: ItemId { digest, nth: *met },
            text: label.to_owned(),
            done,
            depth,
            line,
            mark,
        });
    }
}

/// The column of the first character that is no blank, and where it is.
fn indent(line: &str, from: usize) -> (usize, usize) {
    indent_from(line, from, 0)
}

fn indent_from(line: &str, from: usize, column: usize) -> (usize, usize) {
    let mut column = column;
    for (at, byte) in line.bytes().enumerate().skip(from) {
        match byte {
            b' ' => column += 1,
            b'\t' => column += 4 - column % 4,
            _ => return (column, at),
        }
    }
    (column, line.len())
}

/// The length of the mark of a list item at the beginning of a text.
fn bullet_width(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let width = match bytes.first()? {
        b'-' | b'*' | b'+' => 1,
        b'0'..=b'9' => {
            let digits = bytes
                .iter()
                .take_while(|byte| byte.is_ascii_digit())
                .count();
            let ends = matches!(bytes.get(digits), Some(b'.' | b')'));
            (digits <= 9 && ends).then_some(digits + 1)?
        }
        _ => return None,
    };
    matches!(bytes.get(width), None | Some(b' ' | b'\t')).then_some(width)
}

/// The character, the length and the rest of a code fence's line.
fn parse_fence(text: &str) -> Option<(u8, usize, &str)> {
    let kind = *text
        .as_bytes()
        .first()
        .filter(|byte| b"`~".contains(byte))?;
    let length = text.bytes().take_while(|byte| *byte == kind).count();
    (length >= 3).then(|| (kind, length, text[length..].trim()))
}

/// Whether a text is `[ ] label` or `[x] label`, and the label.
fn parse_task(text: &str) -> Option<(bool, &str)> {
    let rest = text.strip_prefix('[')?;
    let done = match rest.as_bytes().first()? {
        b' ' => false,
        b'x' | b'X' => true,
        _ => return None,
    };
    let label = rest[1..]
        .strip_prefix(']')?
        .strip_prefix([' ', '\t'])?
        .trim();
    (!label.is_empty()).then_some((done, label))
}

#[cfg(test)]
#[path = "checklist_tests.rs"]
mod tests;
