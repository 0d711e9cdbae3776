//! What an apply would do: every change of a session, compared with the current workspace, with all
//! reasons against it.
//!
//! It reads the changes through a process of the agent's own user and the workspace with the
//! caller's permissions, and changes nothing. One refused change refuses all. Must not know the
//! policy: it calls the caller's check for each path.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;

use super::bases::{self, Base, OverlayRecord, is_below, kind_at, paths_below, read_state};
use super::upper_walk::EntryForm;
use super::{Overlay, OverlayError};
use crate::upper_reader::{UpperReader, WrittenEntry};
use crate::workspace::tree::{FileId, Kind, Root, TreeError, meta_of};
use marshal_model::UntrustedText;
use marshal_model::limits;
use marshal_model::string_enum;
use marshal_model::untrusted::escape_for_display;

/// Prefix of names in a workspace that an apply uses itself.
pub(super) const STAGING: &str = ".marshal-apply-";
/// Stands for any name in a directory, when the directory itself is evaluated.
pub(super) const ANYTHING: &str = "/-";

/// A policy's decision about a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeDecision {
    /// The change is allowed.
    Allow,
    /// A person must approve it; the reason.
    Ask(String),
    /// The change is denied; the reason.
    Deny(String),
}

/// A file that other programs run or obey outside of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutsideFile {
    /// What it is, in a few words.
    pub what: &'static str,
    /// Whether a person allowed this path.
    pub is_allowed: bool,
}

impl OutsideFile {
    /// Why the path is refused, if it is.
    #[must_use]
    pub fn refusal(&self, path: &str) -> Option<String> {
        let path = escape_for_display(path, 300);
        let what = self.what;
        (!self.is_allowed).then(|| {
            format!("{what} would take effect outside of the sandbox; look at it, and add --allow {path}")
        })
    }
}

/// The review of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangeReview {
    /// The policy's decision.
    pub decision: ChangeDecision,
    /// Set if other programs run or obey the file.
    pub outside: Option<OutsideFile>,
}

/// Reviews writing a path below the workspace; the flag says that it is a directory.
pub type PolicyCheck<'j> = dyn Fn(&str, bool) -> ChangeReview + 'j;

string_enum!(
    /// How a path changes.
    PlannedChangeKind {
        /// It is created.
        Added = "added",
        /// It is replaced.
        Modified = "modified",
        /// It is removed.
        Deleted = "deleted",
        /// A directory's permissions change.
        Mode = "mode",
    }
);

/// One planned change.
#[derive(Debug, Clone)]
pub struct PlannedChange {
    /// Its path below the workspace.
    pub path: UntrustedText,
    /// How the path changes.
    pub kind: PlannedChangeKind,
    /// Why it is refused, if it is.
    pub refused: Option<String>,
    /// Why it conflicts with a change in the workspace, if it does.
    pub conflict: Option<String>,
    /// Why it needs a person's approval, if it does.
    pub approval_reason: Option<String>,
    /// What it is, if other programs run or obey it outside of the sandbox.
    pub outside: Option<&'static str>,
    /// Its permission bits before and after, if they differ.
    pub modes: Option<(u32, u32)>,
    /// Content before and after of a regular file, if both were read; empty for a missing file.
    pub texts: Option<(Vec<u8>, Vec<u8>)>,
}

/// A new file, link or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NewNode {
    /// A regular file.
    File {
        /// The SHA-256 of its content.
        sha256: String,
        /// Its permission bits.
        mode: u32,
    },
    /// A symbolic link with this target.
    Link(String),
    /// A directory with these permission bits.
    Dir(u32),
}

/// What an apply does at one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApplyAction {
    /// Creates something where nothing exists.
    New,
    /// Replaces something.
    Replace,
    /// Removes something.
    Remove,
    /// Changes a directory's permissions.
    Mode {
        /// Identity of the directory.
        id: FileId,
        /// Its current permission bits.
        old: u32,
        /// Its new permission bits.
        new: u32,
    },
}

/// A complete plan.
#[derive(Debug, Default)]
pub struct ApplyPlan {
    /// Every change, sorted by path.
    pub changes: Vec<PlannedChange>,
    /// The actions, by path.
    pub actions: BTreeMap<String, ApplyAction>,
    /// The files, links and directories to create, by path, content of directories included.
    pub nodes: BTreeMap<String, NewNode>,
    /// The parent directory of each action's path.
    pub parents: BTreeMap<String, FileId>,
    /// Why the plan is incomplete, if it is.
    pub incomplete: Option<String>,
}

impl ApplyPlan {
    /// All reasons against the apply, as a sentence each.
    #[must_use]
    pub fn refusals(&self) -> Vec<String> {
        let mut why: Vec<String> = self.incomplete.iter().cloned().collect();
        for item in &self.changes {
            for reason in item.refused.iter().chain(&item.conflict) {
                why.push(format!("{}: {reason}", item.path.escape_for_display(300)));
            }
        }
        why
    }
}

/// Plans the apply of everything that a session wrote. `program` is this binary; with `texts` the
/// contents of small files are stored.
///
/// # Errors
/// The error of the overlay, its reader or the workspace.
pub fn plan_apply(
    overlay: &Overlay,
    program: &Path,
    judge: &PolicyCheck<'_>,
    texts: bool,
) -> Result<ApplyPlan, OverlayError> {
    let lower = overlay.lower()?;
    let upper = overlay.upper()?;
    let mut record = overlay.record()?;
    let failed =
        |error: io::Error| TreeError::at_path("read the changes in", overlay.path(), error);
    if record.note_bases(&upper, &lower).map_err(failed)? {
        overlay.save_record(&record)?;
    }
    let mut reader = start_reader(overlay, &upper, program).map_err(failed)?;
    let mut looker = Planner {
        lower: &lower,
        record: &record,
        policy: judge,
        text_budget: if texts { limits::OVERLAY_TEXT_BYTES } else { 0 },
        replaced: None,
        plan: ApplyPlan::default(),
    };
    let cut = reader
        .read(&mut |written, content| looker.add_written(&written, content))
        .map_err(failed)?;
    looker.finish_replaced();
    let mut plan = looker.plan;
    plan.incomplete = cut.map(|why| format!("not all changes can be read: {why}"));
    for path in plan.actions.keys() {
        // If the parent is missing, the path changed, and the apply will report that.
        if let Ok(above) = bases::open_parent(&lower, path).and_then(|(dir, _)| meta_of(dir)) {
            plan.parents.insert(path.clone(), above.id);
        }
    }
    plan.changes.sort_by(|a, b| a.path.raw().cmp(b.path.raw()));
    Ok(plan)
}

/// Starts a reader of the changes, as their owner.
pub(super) fn start_reader(
    overlay: &Overlay,
    upper: &Root,
    program: &Path,
) -> io::Result<UpperReader> {
    let is_root = rustix::process::geteuid().is_root();
    let owner = overlay.owner().map_err(io::Error::other)?;
    UpperReader::start(program, upper, is_root.then_some(owner))
}

/// Why a file or link is not applied.
#[derive(Debug, thiserror::Error)]
enum LeafError {
    /// A link has a target that no text can hold.
    #[error("its target is not UTF-8, or too long")]
    Target,
    /// The workspace's file runs with other permissions.
    #[error("the file in the workspace is set-user-id or set-group-id")]
    SetId,
}

/// A file or link: the new node, its content before and after, and its permissions if they change.
type NewLeaf = (NewNode, Option<(Vec<u8>, Vec<u8>)>, Option<(u32, u32)>);

/// A directory that replaces another one completely.
struct ReplacedDirectory {
    top: String,
    /// The kind of what it replaces.
    below: Option<Kind>,
    /// The workspace's files that it hides.
    hides: Vec<String>,
    seen: BTreeSet<String>,
    /// Whether its content differs from the workspace's directory.
    differs: bool,
}

pub(super) struct Planner<'l> {
    pub(super) lower: &'l Root,
    record: &'l OverlayRecord,
    pub(super) policy: &'l PolicyCheck<'l>,
    /// Bytes of texts that may still be stored.
    text_budget: usize,
    replaced: Option<ReplacedDirectory>,
    pub(super) plan: ApplyPlan,
}

fn new_change(path: &str, kind: PlannedChangeKind) -> PlannedChange {
    PlannedChange {
        path: UntrustedText::new(path),
        kind,
        refused: None,
        conflict: None,
        approval_reason: None,
        outside: None,
        modes: None,
        texts: None,
    }
}

/// The permission bits in the workspace: others never get more than read and execute, the owner
/// always gets what it needs, special bits are removed.
const fn safe_mode(mode: u32, needed: u32) -> u32 {
    mode & 0o777 & !0o022 | needed
}

/// How a file or link changes, given what is there now.
const fn leaf_kind(now: Option<&Base>) -> PlannedChangeKind {
    match now {
        Some(_) => PlannedChangeKind::Modified,
        None => PlannedChangeKind::Added,
    }
}

/// Whether the workspace already has exactly this node.
fn is_unchanged(node: &NewNode, now: Option<&Base>) -> io::Result<bool> {
    Ok(match (node, now) {
        (
            NewNode::File { sha256, mode },
            Some(Base::File {
                sha256: there,
                mode: before,
            }),
        ) => sha256 == there && *mode == before & 0o777,
        (NewNode::Link(target), Some(Base::Link { sha256 })) => {
            *sha256 == bases::digest(&mut target.as_bytes())?
        }
        _ => false,
    })
}

impl Planner<'_> {
    fn add_written(&mut self, written: &WrittenEntry, content: &mut dyn Read) -> io::Result<()> {
        let Some(path) = &written.utf8_path else {
            let mut odd = new_change("", PlannedChangeKind::Added);
            odd.path = written.path.clone();
            odd.refused = Some("its name is not UTF-8".to_owned());
            self.plan.changes.push(odd);
            return Ok(());
        };
        if let Some(cover) = &mut self.replaced {
            if is_below(path.as_bytes(), cover.top.as_bytes()) {
                cover.seen.insert(path.clone());
                return self.add_below_replaced(path, &written.form, content);
            }
            self.finish_replaced();
        }
        let below = kind_at(self.lower, path)?;
        match &written.form {
            EntryForm::Odd { why } => {
                self.refuse(path, why.clone());
                Ok(())
            }
            EntryForm::Gone => self.add_deletion(path, below),
            EntryForm::Dir { opaque, mode } if !opaque && below == Some(Kind::Dir) => {
                self.add_mode_change(path, *mode)
            }
            EntryForm::Dir { mode, .. } => {
                let hides = self.paths_replaced(path, below)?;
                self.add_node(path, below, NewNode::Dir(safe_mode(*mode, 0o700)));
                self.replaced = Some(ReplacedDirectory {
                    top: path.clone(),
                    below,
                    hides,
                    seen: BTreeSet::new(),
                    differs: below != Some(Kind::Dir),
                });
                Ok(())
            }
            EntryForm::File { .. } | EntryForm::Link { .. } => {
                self.add_leaf(path, &written.form, below, content)
            }
        }
    }

    fn refuse(&mut self, path: &str, why: String) {
        let mut odd = new_change(path, PlannedChangeKind::Added);
        odd.refused = Some(why);
        self.plan.changes.push(odd);
    }

    /// Applies the policy, and refuses names that an apply uses itself. A directory has two paths.
    fn apply_policy(&self, mut of: PlannedChange, paths: &[&str]) -> PlannedChange {
        let names = of.path.raw().split('/').next();
        if names.is_some_and(|first| first.starts_with(STAGING)) {
            of.refused = Some("its name is reserved for apply".to_owned());
        }
        for path in paths {
            let review = (self.policy)(path, paths.len() > 1);
            match review.decision {
                ChangeDecision::Allow => {}
                ChangeDecision::Ask(why) => of.approval_reason = Some(why),
                ChangeDecision::Deny(why) => {
                    of.refused.get_or_insert(why);
                }
            }
            if let Some(outside) = review.outside {
                of.outside = Some(outside.what);
                if let Some(why) = outside.refusal(of.path.raw()) {
                    of.refused.get_or_insert(why);
                }
            }
        }
        of
    }

    /// A directory that is created, removed or changed: evaluated both as itself and as the parent
    /// of anything. It is listed only if no other change implies it.
    fn add_directory(&mut self, path: &str, kind: PlannedChangeKind, below: Option<Kind>) {
        let of = self.apply_policy(
            new_change(path, kind),
            &[path, &format!("{path}{ANYTHING}")],
        );
        let conflict = self.find_conflict(path);
        let is_told = kind == PlannedChangeKind::Mode || below != Some(Kind::Dir);
        if is_told || of.refused.is_some() || of.approval_reason.is_some() || conflict.is_some() {
            let conflict = if kind == PlannedChangeKind::Mode {
                None
            } else {
                conflict
            };
            self.plan.changes.push(PlannedChange { conflict, ..of });
        }
    }

    /// Why the workspace no longer has at this path what the session started from, if so.
    fn find_conflict(&self, path: &str) -> Option<String> {
        let now = || read_state(self.lower, path).map(|seen| seen.base);
        match self.record.bases.get(path) {
            None => None,
            Some(Base::Changed) => Some(
                "it, or its directory, was changed in the workspace while the session worked"
                    .to_owned(),
            ),
            Some(Base::Other) => Some(
                "the workspace has a device, a fifo, a socket or something too large at this path"
                    .to_owned(),
            ),
            Some(then) => match now() {
                Ok(now) if now == *then => None,
                Ok(_) => Some("it was changed in the workspace after the session".to_owned()),
                Err(error) => Some(format!(
                    "the workspace cannot be read at this path: {error}"
                )),
            },
        }
    }

    fn add_node(&mut self, path: &str, below: Option<Kind>, node: NewNode) {
        let act = if below.is_some() {
            ApplyAction::Replace
        } else {
            ApplyAction::New
        };
        self.plan.actions.insert(path.to_owned(), act);
        self.plan.nodes.insert(path.to_owned(), node);
    }

    /// The workspace's files that disappear when `path` is replaced; each is evaluated once it is
    /// clear that the session did not write it again.
    fn paths_replaced(&mut self, path: &str, below: Option<Kind>) -> io::Result<Vec<String>> {
        if below != Some(Kind::Dir) {
            return Ok(Vec::new());
        }
        let paths = paths_below(self.lower, path)?;
        if paths.is_none() {
            self.refuse(
                path,
                "the directory that it replaces is too large".to_owned(),
            );
        }
        Ok(paths.unwrap_or_default())
    }

    /// Adds the deletions of a directory's content.
    fn add_deletions(&mut self, paths: &[String]) {
        for path in paths {
            let of = match path.strip_suffix('/') {
                Some(dir) => {
                    let anything = format!("{dir}{ANYTHING}");
                    let of = self.apply_policy(
                        new_change(dir, PlannedChangeKind::Deleted),
                        &[dir, &anything],
                    );
                    if of.refused.is_none() && of.approval_reason.is_none() && paths.len() > 1 {
                        continue;
                    }
                    of
                }
                None => self.apply_policy(new_change(path, PlannedChangeKind::Deleted), &[path]),
            };
            self.plan.changes.push(of);
        }
    }

    fn add_deletion(&mut self, path: &str, below: Option<Kind>) -> io::Result<()> {
        if below.is_none() {
            return Ok(());
        }
        self.plan
            .actions
            .insert(path.to_owned(), ApplyAction::Remove);
        let conflict = self.find_conflict(path);
        if below == Some(Kind::Dir) {
            let paths = self.paths_replaced(path, below)?;
            self.add_deletions(&paths);
            if conflict.is_some() {
                let of = new_change(path, PlannedChangeKind::Deleted);
                self.plan.changes.push(PlannedChange { conflict, ..of });
            }
            return Ok(());
        }
        let of = self.apply_policy(new_change(path, PlannedChangeKind::Deleted), &[path]);
        self.plan.changes.push(PlannedChange { conflict, ..of });
        Ok(())
    }

    fn add_mode_change(&mut self, path: &str, mode: u32) -> io::Result<()> {
        let Some(handle) = bases::open_handle(self.lower, path)? else {
            return Ok(());
        };
        let meta = meta_of(handle)?;
        let (id, old) = (meta.id, u32::from(meta.mode));
        // Special bits of the workspace's own directory are preserved.
        let new = safe_mode(mode, 0o700) | old & 0o7000;
        if mode & 0o777 == old & 0o777 || new == old {
            return Ok(());
        }
        self.plan
            .actions
            .insert(path.to_owned(), ApplyAction::Mode { id, old, new });
        let index = self.plan.changes.len();
        self.add_directory(path, PlannedChangeKind::Mode, Some(Kind::Dir));
        if let Some(of) = self.plan.changes.get_mut(index) {
            of.modes = Some((old, new));
        }
        Ok(())
    }

    /// Adds a file or link that is not below a replaced directory.
    fn add_leaf(
        &mut self,
        path: &str,
        form: &EntryForm,
        below: Option<Kind>,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let now = self.current_base(path, below)?;
        let (node, text, mode) = match self.read_leaf(path, form, now.as_ref(), content)? {
            Ok(read) => read,
            Err(why) => {
                self.refuse(path, why.to_string());
                return Ok(());
            }
        };
        if is_unchanged(&node, now.as_ref())? {
            return Ok(());
        }
        let kind = leaf_kind(now.as_ref());
        let goes = self.paths_replaced(path, below)?;
        self.add_deletions(&goes);
        let mut of = self.apply_policy(new_change(path, kind), &[path]);
        of.refused = of.refused.or(self.link_refusal(path, &node));
        of.conflict = self.find_conflict(path);
        of.modes = mode;
        of.texts = text;
        self.plan.changes.push(of);
        self.add_node(path, below, node);
        Ok(())
    }

    /// The current file or link, if there is one.
    fn current_base(&self, path: &str, below: Option<Kind>) -> io::Result<Option<Base>> {
        Ok(match below {
            Some(Kind::File | Kind::Link) => Some(read_state(self.lower, path)?.base),
            _ => None,
        })
    }

    /// Adds an entry below a replaced directory.
    fn add_below_replaced(
        &mut self,
        path: &str,
        form: &EntryForm,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let below = kind_at(self.lower, path)?;
        let (node, is_there) = match form {
            EntryForm::Odd { why } => {
                self.refuse(path, why.clone());
                return Ok(());
            }
            EntryForm::Gone => return Ok(()),
            EntryForm::Dir { mode, .. } => {
                self.add_directory(path, PlannedChangeKind::Added, below);
                (
                    NewNode::Dir(safe_mode(*mode, 0o700)),
                    below == Some(Kind::Dir),
                )
            }
            EntryForm::File { .. } | EntryForm::Link { .. } => {
                let now = self.current_base(path, below)?;
                let (node, text, mode) = match self.read_leaf(path, form, now.as_ref(), content)? {
                    Ok(read) => read,
                    Err(why) => {
                        self.refuse(path, why.to_string());
                        return Ok(());
                    }
                };
                let kind = leaf_kind(now.as_ref());
                let is_there = is_unchanged(&node, now.as_ref())?;
                let mut of = self.apply_policy(new_change(path, kind), &[path]);
                of.refused = of.refused.or(self.link_refusal(path, &node));
                of.modes = mode;
                of.texts = text;
                if !is_there {
                    self.plan.changes.push(of);
                }
                (node, is_there)
            }
        };
        if let Some(cover) = self.replaced.as_mut().filter(|_| !is_there) {
            cover.differs = true;
        }
        self.plan.nodes.insert(path.to_owned(), node);
        Ok(())
    }

    /// Adds the deletions of what a replaced directory hid and did not contain again. One that
    /// equals the workspace's directory is dropped: it was applied before.
    fn finish_replaced(&mut self) {
        let Some(cover) = self.replaced.take() else {
            return;
        };
        let is_back = |path: &String| {
            let bare = path.trim_end_matches('/');
            bare == cover.top || cover.seen.contains(bare)
        };
        let hides = cover.hides.iter();
        let goes: Vec<String> = hides.filter(|path| !is_back(path)).cloned().collect();
        if cover.differs || !goes.is_empty() {
            self.add_directory(&cover.top, PlannedChangeKind::Added, cover.below);
            return self.add_deletions(&goes);
        }
        self.plan.actions.remove(&cover.top);
        let is_of_it =
            |path: &String| *path == cover.top || is_below(path.as_bytes(), cover.top.as_bytes());
        self.plan.nodes.retain(|path, _| !is_of_it(path));
    }

    /// Reads a file or link: the new node, its texts, and its modes if they change.
    fn read_leaf(
        &mut self,
        path: &str,
        form: &EntryForm,
        now: Option<&Base>,
        content: &mut dyn Read,
    ) -> io::Result<Result<NewLeaf, LeafError>> {
        let (size, mode) = match form {
            EntryForm::File { size, mode } => (*size, *mode),
            EntryForm::Link {
                target: Some(target),
            } => {
                return Ok(Ok((NewNode::Link(target.clone()), None, None)));
            }
            _ => return Ok(Err(LeafError::Target)),
        };
        let before = match now {
            Some(Base::File { mode, .. }) => Some(*mode),
            _ => None,
        };
        if before.is_some_and(|before| before & 0o6000 != 0) {
            return Ok(Err(LeafError::SetId));
        }
        // Permissions that the agent did not change are preserved.
        let mode = match before {
            Some(before) if before & 0o777 == mode & 0o777 => mode & 0o777,
            _ => safe_mode(mode, 0o600),
        };
        let most = self.text_budget.min(limits::OVERLAY_SHOWN_BYTES) as u64;
        let (sha256, texts) = if most > 0 && size <= most {
            let mut after = Vec::new();
            content.read_to_end(&mut after)?;
            let most = limits::OVERLAY_SHOWN_BYTES;
            let then = match now {
                None => Some(Vec::new()),
                Some(_) => bases::read_small_file(self.lower, path, most)?,
            };
            let sha256 = bases::digest(&mut &after[..])?;
            let stored = after.len() + then.as_ref().map_or(0, Vec::len);
            self.text_budget = self.text_budget.saturating_sub(stored);
            (sha256, then.map(|then| (then, after)))
        } else {
            (bases::digest(content)?, None)
        };
        let modes = before
            .map(|before| (before & 0o777, mode))
            .filter(|(before, after)| before != after);
        Ok(Ok((NewNode::File { sha256, mode }, texts, modes)))
    }
}
