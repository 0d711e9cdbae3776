//! What an apply would do: every change that a session made, compared with the workspace as it is
//! now, with everything that speaks against it.
//!
//! Reads what was written through a process of the agent's own user and the workspace with the
//! caller's rights, and changes nothing. One change that is refused refuses all. Must not know the
//! policy: what it says of a path is asked of the caller.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::Path;

use super::bases::{self, Base, Record, is_below, kind_at, look, paths_below};
use super::forms::Form;
use super::{Overlay, OverlayError};
use crate::limits;
use crate::model::Foreign;
use crate::model::words;
use crate::sandbox::upper::{Reader, Written};
use crate::sandbox::workspace::tree::{FileId, Kind, Root, TreeError, meta_of};

/// Names in a workspace that an apply uses for itself begin so.
pub(super) const STAGING: &str = ".marshal-apply-";
/// Stands for anything in a directory where the directory itself is judged.
pub(super) const ANYTHING: &str = "/-";

/// What a policy says of a change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may be.
    Allow,
    /// A person decides; why.
    Ask(String),
    /// It may not be; why.
    Deny(String),
}

/// Judges the writing of a path below the workspace.
pub type Judge<'j> = dyn Fn(&str) -> Verdict + 'j;

words!(
    /// What happens to a path.
    ItemKind {
        /// It is new.
        Added = "added",
        /// It is another.
        Modified = "modified",
        /// It goes.
        Deleted = "deleted",
        /// A directory gets other rights.
        Mode = "mode",
    }
);

/// One change.
#[derive(Debug, Clone)]
pub struct Item {
    /// Its path below the workspace.
    pub path: Foreign,
    /// What happens to it.
    pub kind: ItemKind,
    /// Why it is refused, if it is.
    pub refused: Option<String>,
    /// The workspace has changed under it: why it is refused, if for that.
    pub conflict: Option<String>,
    /// Why a person is to decide, if one is.
    pub asks: Option<String>,
    /// Its permission bits before and after, where they differ.
    pub modes: Option<(u32, u32)>,
    /// Its content before and after, where both are kept and it is a plain file: nothing is empty.
    pub texts: Option<(Vec<u8>, Vec<u8>)>,
}

/// Something that an apply makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// A plain file.
    File {
        /// The SHA-256 of its content.
        sha256: String,
        /// Its permission bits.
        mode: u32,
    },
    /// A symbolic link and its target.
    Link(String),
    /// A directory and its permission bits.
    Dir(u32),
}

/// What an apply does to one path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Puts something where nothing is.
    New,
    /// Puts something in the place of something.
    Replace,
    /// Takes something away.
    Remove,
    /// Gives a directory other rights.
    Mode {
        /// Which it is.
        id: FileId,
        /// Its permission bits now.
        old: u32,
        /// And then.
        new: u32,
    },
}

/// Everything that an apply would do.
#[derive(Debug, Default)]
pub struct Plan {
    /// Every change, sorted by path.
    pub items: Vec<Item>,
    /// What is done, by path.
    pub acts: BTreeMap<String, Act>,
    /// What is made, by path: what the acts put into their place, with what is in it.
    pub nodes: BTreeMap<String, Node>,
    /// The directory that the place of each act is in.
    pub above: BTreeMap<String, FileId>,
    /// Why not everything was seen, if so.
    pub cut: Option<String>,
}

impl Plan {
    /// Everything that speaks against it, as a sentence each.
    #[must_use]
    pub fn refusals(&self) -> Vec<String> {
        let mut why: Vec<String> = self.cut.iter().cloned().collect();
        for item in &self.items {
            for reason in item.refused.iter().chain(&item.conflict) {
                why.push(format!("{}: {reason}", item.path.show(300)));
            }
        }
        why
    }
}

/// Looks at everything that a session wrote. `program` is this binary; with `texts` the contents of
/// small files are kept.
///
/// # Errors
/// What the overlay, its reader or the workspace says.
pub fn survey(
    overlay: &Overlay,
    program: &Path,
    judge: &Judge<'_>,
    texts: bool,
) -> Result<Plan, OverlayError> {
    let lower = overlay.lower()?;
    let upper = overlay.upper()?;
    let mut record = overlay.record()?;
    let failed =
        |error: io::Error| TreeError::at_path("read what was written in", overlay.path(), error);
    if record.note(&upper, &lower).map_err(failed)? {
        overlay.keep(&record)?;
    }
    let mut reader = start(overlay, &upper, program).map_err(failed)?;
    let mut looker = Looker {
        lower: &lower,
        record: &record,
        judge,
        room: if texts { limits::OVERLAY_TEXT_BYTES } else { 0 },
        cover: None,
        plan: Plan::default(),
    };
    let cut = reader
        .read(&mut |written, content| looker.one(&written, content))
        .map_err(failed)?;
    looker.uncover();
    let mut plan = looker.plan;
    plan.cut = cut.map(|why| format!("not all of it can be looked at: {why}"));
    for path in plan.acts.keys() {
        // Where there is none, the place has changed, and the apply will say so.
        if let Ok(above) = bases::parent(&lower, path).and_then(|(dir, _)| meta_of(dir)) {
            plan.above.insert(path.clone(), above.id);
        }
    }
    plan.items.sort_by(|a, b| a.path.raw().cmp(b.path.raw()));
    Ok(plan)
}

/// Starts a reader of what was written, as its owner.
pub(super) fn start(overlay: &Overlay, upper: &Root, program: &Path) -> io::Result<Reader> {
    let is_root = rustix::process::geteuid().is_root();
    let owner = overlay.owner().map_err(io::Error::other)?;
    Reader::start(program, upper, is_root.then_some(owner))
}

/// A file or a link: what it will be, its content before and after, its rights if they change.
type Leaf = (Node, Option<(Vec<u8>, Vec<u8>)>, Option<(u32, u32)>);

/// A directory that is made as a whole.
struct Cover {
    top: String,
    /// What is in its place.
    below: Option<Kind>,
    /// What it hides of the workspace: paths of files.
    hides: Vec<String>,
    seen: BTreeSet<String>,
    /// Something in it is not what is there.
    differs: bool,
}

pub(super) struct Looker<'l> {
    pub(super) lower: &'l Root,
    record: &'l Record,
    pub(super) judge: &'l Judge<'l>,
    /// Bytes of texts that may still be kept.
    room: usize,
    cover: Option<Cover>,
    pub(super) plan: Plan,
}

fn item(path: &str, kind: ItemKind) -> Item {
    Item {
        path: Foreign::new(path),
        kind,
        refused: None,
        conflict: None,
        asks: None,
        modes: None,
        texts: None,
    }
}

/// The permission bits that a thing gets in the workspace: never more for others than to read and
/// execute, always everything that its owner needs, nothing special.
const fn tame(mode: u32, needed: u32) -> u32 {
    mode & 0o777 & !0o022 | needed
}

/// What a file or a link is, beside one that is there or without.
const fn made_or_changed(now: Option<&Base>) -> ItemKind {
    match now {
        Some(_) => ItemKind::Modified,
        None => ItemKind::Added,
    }
}

/// Whether exactly this is in the workspace.
fn is_there(node: &Node, now: Option<&Base>) -> io::Result<bool> {
    Ok(match (node, now) {
        (
            Node::File { sha256, mode },
            Some(Base::File {
                sha256: there,
                mode: before,
            }),
        ) => sha256 == there && *mode == before & 0o777,
        (Node::Link(target), Some(Base::Link { sha256 })) => {
            *sha256 == bases::digest(&mut target.as_bytes())?
        }
        _ => false,
    })
}

impl Looker<'_> {
    fn one(&mut self, written: &Written, content: &mut dyn Read) -> io::Result<()> {
        let Some(path) = &written.plain else {
            let mut odd = item("", ItemKind::Added);
            odd.path = written.path.clone();
            odd.refused = Some("its name is no UTF-8".to_owned());
            self.plan.items.push(odd);
            return Ok(());
        };
        if let Some(cover) = &mut self.cover {
            if is_below(path.as_bytes(), cover.top.as_bytes()) {
                cover.seen.insert(path.clone());
                return self.covered(path, &written.form, content);
            }
            self.uncover();
        }
        let below = kind_at(self.lower, path)?;
        match &written.form {
            Form::Odd { why } => {
                self.refuse(path, why.clone());
                Ok(())
            }
            Form::Gone => self.gone(path, below),
            Form::Dir { opaque, mode } if !opaque && below == Some(Kind::Dir) => {
                self.mode(path, *mode)
            }
            Form::Dir { mode, .. } => {
                let hides = self.replaced(path, below)?;
                self.make(path, below, Node::Dir(tame(*mode, 0o700)));
                self.cover = Some(Cover {
                    top: path.clone(),
                    below,
                    hides,
                    seen: BTreeSet::new(),
                    differs: below != Some(Kind::Dir),
                });
                Ok(())
            }
            Form::File { .. } | Form::Link { .. } => self.leaf(path, &written.form, below, content),
        }
    }

    fn refuse(&mut self, path: &str, why: String) {
        let mut odd = item(path, ItemKind::Added);
        odd.refused = Some(why);
        self.plan.items.push(odd);
    }

    /// What the policy says of it, and what is never taken over.
    fn judged(&self, mut of: Item, paths: &[&str]) -> Item {
        let names = of.path.raw().split('/').next();
        if names.is_some_and(|first| first.starts_with(STAGING)) {
            of.refused = Some("its name is one that apply itself uses".to_owned());
        }
        for path in paths {
            match (self.judge)(path) {
                Verdict::Allow => {}
                Verdict::Ask(why) => of.asks = Some(why),
                Verdict::Deny(why) => {
                    of.refused.get_or_insert(why);
                }
            }
        }
        of
    }

    /// A directory that comes, goes or changes: judged as itself and as the place of anything. It is
    /// told only if nothing else tells of it.
    fn directory(&mut self, path: &str, kind: ItemKind, below: Option<Kind>) {
        let of = self.judged(item(path, kind), &[path, &format!("{path}{ANYTHING}")]);
        let conflict = self.conflict(path);
        let is_told = kind == ItemKind::Mode || below != Some(Kind::Dir);
        if is_told || of.refused.is_some() || of.asks.is_some() || conflict.is_some() {
            let conflict = if kind == ItemKind::Mode {
                None
            } else {
                conflict
            };
            self.plan.items.push(Item { conflict, ..of });
        }
    }

    /// Whether the workspace is at this place what the session began with; if not, why.
    fn conflict(&self, path: &str) -> Option<String> {
        let now = || look(self.lower, path).map(|seen| seen.base);
        match self.record.bases.get(path) {
            None => None,
            Some(Base::Changed) => Some(
                "it, or the directory that it would be in, was changed in the workspace while the \
                 session worked"
                    .to_owned(),
            ),
            Some(Base::Other) => Some(
                "the workspace has a device, a fifo, a socket or something very large in its place"
                    .to_owned(),
            ),
            Some(then) => match now() {
                Ok(now) if now == *then => None,
                Ok(_) => Some("it was changed in the workspace after the session".to_owned()),
                Err(error) => Some(format!("the workspace cannot be read there: {error}")),
            },
        }
    }

    fn make(&mut self, path: &str, below: Option<Kind>, node: Node) {
        let act = if below.is_some() {
            Act::Replace
        } else {
            Act::New
        };
        self.plan.acts.insert(path.to_owned(), act);
        self.plan.nodes.insert(path.to_owned(), node);
    }

    /// The files of the workspace that go when something is put in the place of `path`; each is
    /// judged when it is known that it does not come again.
    fn replaced(&mut self, path: &str, below: Option<Kind>) -> io::Result<Vec<String>> {
        if below != Some(Kind::Dir) {
            return Ok(Vec::new());
        }
        let paths = paths_below(self.lower, path)?;
        if paths.is_none() {
            self.refuse(path, "the directory in its place is too large".to_owned());
        }
        Ok(paths.unwrap_or_default())
    }

    /// Tells of what goes with a directory.
    fn deleted(&mut self, paths: &[String]) {
        for path in paths {
            let of = match path.strip_suffix('/') {
                Some(dir) => {
                    let anything = format!("{dir}{ANYTHING}");
                    let of = self.judged(item(dir, ItemKind::Deleted), &[dir, &anything]);
                    if of.refused.is_none() && of.asks.is_none() && paths.len() > 1 {
                        continue;
                    }
                    of
                }
                None => self.judged(item(path, ItemKind::Deleted), &[path]),
            };
            self.plan.items.push(of);
        }
    }

    fn gone(&mut self, path: &str, below: Option<Kind>) -> io::Result<()> {
        if below.is_none() {
            return Ok(());
        }
        self.plan.acts.insert(path.to_owned(), Act::Remove);
        let conflict = self.conflict(path);
        if below == Some(Kind::Dir) {
            let paths = self.replaced(path, below)?;
            self.deleted(&paths);
            if conflict.is_some() {
                let of = item(path, ItemKind::Deleted);
                self.plan.items.push(Item { conflict, ..of });
            }
            return Ok(());
        }
        let of = self.judged(item(path, ItemKind::Deleted), &[path]);
        self.plan.items.push(Item { conflict, ..of });
        Ok(())
    }

    fn mode(&mut self, path: &str, mode: u32) -> io::Result<()> {
        let Some(held) = bases::hold(self.lower, path)? else {
            return Ok(());
        };
        let meta = meta_of(held)?;
        let (id, old) = (meta.id, u32::from(meta.mode));
        // What is special of the workspace's own directory stays.
        let new = tame(mode, 0o700) | old & 0o7000;
        if mode & 0o777 == old & 0o777 || new == old {
            return Ok(());
        }
        self.plan
            .acts
            .insert(path.to_owned(), Act::Mode { id, old, new });
        let told = self.plan.items.len();
        self.directory(path, ItemKind::Mode, Some(Kind::Dir));
        if let Some(of) = self.plan.items.get_mut(told) {
            of.modes = Some((old, new));
        }
        Ok(())
    }

    /// A file or a link at a place of its own.
    fn leaf(
        &mut self,
        path: &str,
        form: &Form,
        below: Option<Kind>,
        content: &mut dyn Read,
    ) -> io::Result<()> {
        let now = self.now(path, below)?;
        let (node, text, mode) = match self.read(path, form, now.as_ref(), content)? {
            Ok(read) => read,
            Err(why) => {
                self.refuse(path, why);
                return Ok(());
            }
        };
        if is_there(&node, now.as_ref())? {
            return Ok(());
        }
        let kind = made_or_changed(now.as_ref());
        let goes = self.replaced(path, below)?;
        self.deleted(&goes);
        let mut of = self.judged(item(path, kind), &[path]);
        of.refused = of.refused.or(self.link_refused(path, &node));
        of.conflict = self.conflict(path);
        of.modes = mode;
        of.texts = text;
        self.plan.items.push(of);
        self.make(path, below, node);
        Ok(())
    }

    /// The file or link that is there now, if there is one.
    fn now(&self, path: &str, below: Option<Kind>) -> io::Result<Option<Base>> {
        Ok(match below {
            Some(Kind::File | Kind::Link) => Some(look(self.lower, path)?.base),
            _ => None,
        })
    }

    /// Something in a directory that is made as a whole.
    fn covered(&mut self, path: &str, form: &Form, content: &mut dyn Read) -> io::Result<()> {
        let below = kind_at(self.lower, path)?;
        let (node, is_there) = match form {
            Form::Odd { why } => {
                self.refuse(path, why.clone());
                return Ok(());
            }
            Form::Gone => return Ok(()),
            Form::Dir { mode, .. } => {
                self.directory(path, ItemKind::Added, below);
                (Node::Dir(tame(*mode, 0o700)), below == Some(Kind::Dir))
            }
            Form::File { .. } | Form::Link { .. } => {
                let now = self.now(path, below)?;
                let (node, text, mode) = match self.read(path, form, now.as_ref(), content)? {
                    Ok(read) => read,
                    Err(why) => {
                        self.refuse(path, why);
                        return Ok(());
                    }
                };
                let kind = made_or_changed(now.as_ref());
                let is_there = is_there(&node, now.as_ref())?;
                let mut of = self.judged(item(path, kind), &[path]);
                of.refused = of.refused.or(self.link_refused(path, &node));
                of.modes = mode;
                of.texts = text;
                if !is_there {
                    self.plan.items.push(of);
                }
                (node, is_there)
            }
        };
        if let Some(cover) = self.cover.as_mut().filter(|_| !is_there) {
            cover.differs = true;
        }
        self.plan.nodes.insert(path.to_owned(), node);
        Ok(())
    }

    /// Tells of what a directory hid and did not have again. One that has only what is there is none
    /// at all: it was put there before.
    fn uncover(&mut self) {
        let Some(cover) = self.cover.take() else {
            return;
        };
        let is_back = |path: &String| {
            let bare = path.trim_end_matches('/');
            bare == cover.top || cover.seen.contains(bare)
        };
        let hides = cover.hides.iter();
        let goes: Vec<String> = hides.filter(|path| !is_back(path)).cloned().collect();
        if cover.differs || !goes.is_empty() {
            self.directory(&cover.top, ItemKind::Added, cover.below);
            return self.deleted(&goes);
        }
        self.plan.acts.remove(&cover.top);
        let is_of_it =
            |path: &String| *path == cover.top || is_below(path.as_bytes(), cover.top.as_bytes());
        self.plan.nodes.retain(|path, _| !is_of_it(path));
    }

    /// Reads a file or a link: what it will be, its texts, and its modes if they change.
    fn read(
        &mut self,
        path: &str,
        form: &Form,
        now: Option<&Base>,
        content: &mut dyn Read,
    ) -> io::Result<Result<Leaf, String>> {
        let (size, mode) = match form {
            Form::File { size, mode } => (*size, *mode),
            Form::Link {
                target: Some(target),
            } => {
                return Ok(Ok((Node::Link(target.clone()), None, None)));
            }
            _ => return Ok(Err("its target is no UTF-8, or too long".to_owned())),
        };
        let before = match now {
            Some(Base::File { mode, .. }) => Some(*mode),
            _ => None,
        };
        if before.is_some_and(|before| before & 0o6000 != 0) {
            return Ok(Err(
                "the workspace's own file is set-user-id or set-group-id".to_owned(),
            ));
        }
        // Rights that the agent did not touch stay as they are.
        let mode = match before {
            Some(before) if before & 0o777 == mode & 0o777 => mode & 0o777,
            _ => tame(mode, 0o600),
        };
        let most = self.room.min(limits::OVERLAY_SHOWN_BYTES) as u64;
        let (sha256, texts) = if most > 0 && size <= most {
            let mut after = Vec::new();
            content.read_to_end(&mut after)?;
            let most = limits::OVERLAY_SHOWN_BYTES;
            let then = match now {
                None => Some(Vec::new()),
                Some(_) => bases::content(self.lower, path, most)?,
            };
            let sha256 = bases::digest(&mut &after[..])?;
            let kept = after.len() + then.as_ref().map_or(0, Vec::len);
            self.room = self.room.saturating_sub(kept);
            (sha256, then.map(|then| (then, after)))
        } else {
            (bases::digest(content)?, None)
        };
        let modes = before
            .map(|before| (before & 0o777, mode))
            .filter(|(before, after)| before != after);
        Ok(Ok((Node::File { sha256, mode }, texts, modes)))
    }
}
