//! The workspace files of a prompt: looked up, and read where the prompt embeds them.
//!
//! Nothing is opened by a whole path: each component is looked up below the one before, and links
//! are not followed. Must not know which agent takes what.

use std::ffi::CString;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::OFlags;

use marshal_dialect::Attachment;
use marshal_model::{UntrustedText, limits, untrusted};
use marshal_sandbox::workspace::tree::{self, Kind};
use marshal_sandbox::workspace::{MergedView, Root};

/// The files of a task: paths relative to the workspace root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PromptFiles {
    /// Files that the prompt names.
    pub(crate) named: Arc<[String]>,
    /// Files that the prompt embeds.
    pub(crate) embedded: Arc<[String]>,
}

/// Why a file cannot be attached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttachError {
    /// It does not exist, or a component of its path is a link.
    #[error("the file {path} of the prompt is not in the workspace: {source}")]
    Missing {
        /// The path, escaped for display.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// It is a directory, a link or a device.
    #[error("{0}, which the prompt names, is not a file")]
    NoFile(String),
    /// It is not UTF-8 text.
    #[error("the file {0} of the prompt is not UTF-8 text: name it in files instead of embed")]
    NoText(String),
    /// The embedded files together exceed the limit of a prompt.
    #[error("the files to embed in the prompt have more than {most} bytes in total: name them in files instead of embed", most = limits::EMBEDDED_BYTES)]
    TooLong,
}

impl PromptFiles {
    /// From the lists of a task.
    pub(crate) fn new(named: &[String], embedded: &[String]) -> Self {
        Self {
            named: named.into(),
            embedded: embedded.into(),
        }
    }

    /// Looks up all files below `root`, which the agent sees as `inside`. Blocks.
    ///
    /// # Errors
    /// [`AttachError`] for the first file that cannot be attached.
    pub(crate) fn attach(
        &self,
        root: &Root,
        view: Option<&MergedView>,
        inside: &str,
    ) -> Result<Arc<[Attachment]>, AttachError> {
        let mut attached = Vec::with_capacity(self.named.len() + self.embedded.len());
        let path_inside = |path: &str| format!("{}/{path}", inside.trim_end_matches('/'));
        for path in &*self.named {
            let handle = find(root, view, path)?;
            let meta = tree::meta_of(&handle).map_err(|source| missing(path, source))?;
            if !matches!(meta.kind, Kind::File | Kind::Dir) {
                return Err(AttachError::NoFile(untrusted::escape_for_display(
                    path, 200,
                )));
            }
            attached.push(Attachment {
                path: path_inside(path),
                text: None,
            });
        }
        let mut remaining = limits::EMBEDDED_BYTES;
        for path in &*self.embedded {
            let text = read(root, view, path, remaining)?;
            remaining -= text.len();
            attached.push(Attachment {
                path: path_inside(path),
                text: Some(UntrustedText::new(text)),
            });
        }
        Ok(attached.into())
    }
}

fn missing(path: &str, source: std::io::Error) -> AttachError {
    AttachError::Missing {
        path: untrusted::escape_for_display(path, 200),
        source,
    }
}

/// Opens a handle on the last component of a path.
fn find(root: &Root, view: Option<&MergedView>, path: &str) -> Result<OwnedFd, AttachError> {
    let bad = |source| missing(path, source);
    if let Some(merged) = view {
        return merged
            .open_handle(path.split('/').map(str::as_bytes))
            .map_err(bad);
    }
    let mut parts = path.split('/').peekable();
    let mut dir: Option<OwnedFd> = None;
    while let Some(part) = parts.next() {
        let name = CString::new(part).map_err(|error| bad(error.into()))?;
        let last = parts.peek().is_none();
        let next = match (&dir, last) {
            (Some(dir), true) => tree::open_handle_at(dir, &name),
            (Some(dir), false) => tree::open_dir_at(dir, &name),
            (None, true) => tree::open_handle_at(root, &name),
            (None, false) => tree::open_dir_at(root, &name),
        };
        let next = next.map_err(bad)?;
        if last {
            return Ok(next);
        }
        dir = Some(next);
    }
    Err(bad(std::io::ErrorKind::NotFound.into()))
}

/// Reads the text of a file of at most `room` bytes.
fn read(
    root: &Root,
    view: Option<&MergedView>,
    path: &str,
    remaining: usize,
) -> Result<String, AttachError> {
    let bad = |source| missing(path, source);
    let handle = find(root, view, path)?;
    let meta = tree::meta_of(&handle).map_err(bad)?;
    if meta.kind != Kind::File {
        return Err(AttachError::NoFile(untrusted::escape_for_display(
            path, 200,
        )));
    }
    // The handle is of a regular file, so opening it does not block.
    let file = File::from(tree::reopen(&handle, OFlags::RDONLY).map_err(bad)?);
    let limit = u64::try_from(remaining)
        .unwrap_or(u64::MAX)
        .saturating_add(1);
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes).map_err(bad)?;
    if bytes.len() > remaining {
        return Err(AttachError::TooLong);
    }
    String::from_utf8(bytes)
        .map_err(|_| AttachError::NoText(untrusted::escape_for_display(path, 200)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attach(
        dir: &std::path::Path,
        named: &[&str],
        embedded: &[&str],
    ) -> Result<Vec<String>, String> {
        let own = |paths: &[&str]| {
            paths
                .iter()
                .map(|path| (*path).to_owned())
                .collect::<Vec<_>>()
        };
        let root = Root::open(dir).expect("root");
        let files = PromptFiles::new(&own(named), &own(embedded));
        let attached = files.attach(&root, None, "/workspace");
        let shown = |one: &Attachment| {
            let text = one.text.as_ref().map_or("-", |text| text.raw());
            format!("{} {text}", one.path)
        };
        attached
            .map(|all| all.iter().map(shown).collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn files_are_named_or_held_and_nothing_outside_of_the_workspace_is() {
        let dir = tempfile::tempdir().expect("a directory");
        let work = dir.path().join("work");
        std::fs::create_dir_all(work.join("src")).expect("src");
        std::fs::write(work.join("src/a b.rs"), "fn").expect("file");
        std::fs::write(work.join("binary"), b"\xff").expect("file");
        std::fs::write(dir.path().join("secret"), "s").expect("file");
        std::os::unix::fs::symlink("../secret", work.join("link")).expect("link");
        std::os::unix::fs::symlink("..", work.join("up")).expect("link");
        assert_eq!(
            attach(&work, &["src", "src/a b.rs"], &["src/a b.rs"]),
            Ok(vec![
                "/workspace/src -".to_owned(),
                "/workspace/src/a b.rs -".to_owned(),
                "/workspace/src/a b.rs fn".to_owned(),
            ])
        );
        for path in ["link", "up/secret", "none", "src/a b.rs/x"] {
            assert!(attach(&work, &[], &[path]).is_err(), "{path}");
            assert!(attach(&work, &[path], &[]).is_err(), "{path}");
        }
        assert!(attach(&work, &[], &["src"]).is_err_and(|why| why.contains("is not a file")));
        assert!(attach(&work, &[], &["binary"]).is_err_and(|why| why.contains("is not UTF-8")));
        let long = "x".repeat(limits::EMBEDDED_BYTES / 2 + 1);
        std::fs::write(work.join("long"), long).expect("file");
        assert!(attach(&work, &[], &["long"]).is_ok());
        assert!(attach(&work, &[], &["long", "long"]).is_err_and(|why| why.contains("more than")));
    }
}
