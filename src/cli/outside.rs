//! Lists the files that take effect outside of the sandbox.
//!
//! Must not know which files these are.

use super::streams::Output;
use marshal_model::untrusted::escape_for_display;

/// Columns of a path.
const PATH: usize = 400;

/// Lists such files, before anything else is said of the changes.
pub(super) fn list<'f>(files: impl Iterator<Item = (&'f str, &'static str)>, output: &mut Output) {
    let mut files = files.peekable();
    if files.peek().is_none() {
        return;
    }
    output.line("takes effect outside of the sandbox:");
    for (path, what) in files {
        output.line(&format!("    {}: {what}", escape_for_display(path, PATH)));
    }
}
