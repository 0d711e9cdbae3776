//! The changes of a session for its result: from the overlay's metadata alone, without opening a
//! file.

use std::collections::BTreeMap;
use std::io;

use super::Overlay;
use super::bases::{is_below, kind_at, paths_below};
use super::upper_walk::{self, EntryForm, WalkDetail};
use crate::workspace::foreign_path;
use crate::workspace::manifest::{Change, ChangeKind, Changes, Manifest};
use crate::workspace::tree::{Kind, Root, TreeError};
use marshal_model::limits;

impl Overlay {
    /// The differences from the workspace, except those that `before` recorded; also records their
    /// bases.
    ///
    /// # Errors
    /// The system error.
    pub fn changes(&self, before: &Manifest) -> Result<Changes, TreeError> {
        let failed = |error: io::Error| TreeError::at_path("compare", &self.path, error);
        let lower = self
            .lower()
            .map_err(|error| failed(io::Error::other(error)))?;
        let upper = self.upper()?;
        let mut record = self
            .record()
            .map_err(|error| failed(io::Error::other(error)))?;
        if record.note_bases(&upper, &lower).map_err(failed)? {
            self.save_record(&record)
                .map_err(|error| failed(io::Error::other(error)))?;
        }
        compare(&upper, &lower, before).map_err(failed)
    }
}

fn compare(upper: &Root, lower: &Root, before: &Manifest) -> io::Result<Changes> {
    let mut kinds: BTreeMap<Vec<u8>, ChangeKind> = BTreeMap::new();
    // Opaque directories, and the workspace's paths that they hide.
    let mut hidden: Vec<(Vec<u8>, Vec<String>)> = Vec::new();
    let mut cut = false;
    let mut remaining = limits::OVERLAY_PATHS_BYTES;
    let walked = upper_walk::walk(upper, WalkDetail::Names, &mut |it| {
        let text = std::str::from_utf8(it.path).ok();
        let below = match text {
            Some(text) => kind_at(lower, text)?,
            None => None,
        };
        let mut hides = |path: &[u8], text: &str| -> io::Result<()> {
            let paths = paths_below(lower, text)?;
            let bytes = |paths: &Vec<String>| paths.iter().map(String::len).sum();
            let rest = paths
                .as_ref()
                .and_then(|paths| remaining.checked_sub(bytes(paths)));
            if let (Some(paths), Some(rest)) = (paths, rest) {
                remaining = rest;
                hidden.push((path.to_vec(), paths));
            } else {
                cut = true;
            }
            Ok(())
        };
        let kind = match (&it.form, below, text) {
            (
                EntryForm::Dir { opaque: true, .. } | EntryForm::Gone,
                Some(Kind::Dir),
                Some(text),
            ) => {
                hides(it.path, text)?;
                None
            }
            (EntryForm::Dir { .. }, Some(Kind::Dir), _) | (EntryForm::Gone, None, _) => None,
            (EntryForm::Gone, Some(_), _) => Some(ChangeKind::Deleted),
            (_, None, _) => Some(ChangeKind::Added),
            (_, Some(_), _) => Some(ChangeKind::Modified),
        };
        let is_old = match it.form {
            EntryForm::Gone => before.has_special(it.path),
            _ => before.contains_unchanged(it.path, it.stat),
        };
        if let Some(kind) = kind.filter(|_| !is_old) {
            kinds.insert(it.path.to_vec(), kind);
        }
        Ok(())
    })?;
    for (top, paths) in hidden {
        let is_gone = paths.iter().all(|path| path.ends_with('/'));
        if is_gone && !before.has(&top) {
            kinds.entry(top.clone()).or_insert(ChangeKind::Deleted);
        }
        for path in paths.iter().filter(|path| !path.ends_with('/')) {
            let path = path.as_bytes();
            let is_new = !before.has(&top);
            if is_new && !kinds.contains_key(path) && is_below(path, &top) {
                kinds.insert(path.to_vec(), ChangeKind::Deleted);
            }
        }
    }
    // A directory with listed entries is not listed itself.
    let implied: Vec<Vec<u8>> = kinds
        .iter()
        .filter(|(path, kind)| {
            **kind == ChangeKind::Added
                && kinds
                    .range(path_after(path)..)
                    .next()
                    .is_some_and(|(next, _)| is_below(next, path))
        })
        .map(|(path, _)| path.clone())
        .collect();
    for path in implied {
        kinds.remove(&path);
    }
    let total = kinds.len() as u64;
    let list = kinds.into_iter().take(limits::CHANGES_LISTED);
    Ok(Changes {
        moved: Vec::new(),
        list: list
            .map(|(path, kind)| Change {
                path: foreign_path(&path),
                kind,
            })
            .collect(),
        total,
        is_truncated: cut || walked.is_some() || total > limits::CHANGES_LISTED as u64,
    })
}

/// The first path that sorts after everything below a directory.
fn path_after(path: &[u8]) -> Vec<u8> {
    [path, b"/"].concat()
}
