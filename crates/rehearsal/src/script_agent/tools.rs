//! The tools: what the agent really does in its workspace.
//!
//! Every path is used exactly as in the script; the sandbox and the controller decide what may be
//! accessed. Must not know the protocol.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use regex::Regex;

use super::agent::{Agent, Halt};
use super::bash;
use super::step::ToolCall;
use marshal_model::limits::{
    AGENT_OUTPUT_BYTES, AGENT_SEARCH_DEPTH, AGENT_SEARCH_FILE_BYTES, AGENT_SEARCH_FILES,
};

/// The result of a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ToolOutcome {
    /// The text for the model: at most [`AGENT_OUTPUT_BYTES`], and a remark if it was cut.
    pub(super) output: String,
    pub(super) is_error: bool,
    /// A success in one sentence, for a person.
    pub(super) summary: String,
    /// The exit code of a command.
    pub(super) code: Option<i32>,
    pub(super) has_run: bool,
}

impl ToolOutcome {
    pub(super) fn success(output: String, summary: String) -> Self {
        Self {
            output,
            is_error: false,
            summary,
            code: None,
            has_run: true,
        }
    }

    pub(super) fn error(output: impl Into<String>) -> Self {
        Self {
            output: output.into(),
            is_error: true,
            summary: String::new(),
            code: None,
            has_run: true,
        }
    }

    /// The same result, for a call that was not allowed to run.
    pub(super) fn without_running(self) -> Self {
        Self {
            has_run: false,
            ..self
        }
    }

    pub(super) fn interrupted() -> Self {
        Self::error("interrupted")
    }
}

/// Executes a call. A failure of the tool is a result, not an error.
pub(super) fn execute(agent: &mut Agent, call: &ToolCall) -> Result<ToolOutcome, Halt> {
    let end = match call {
        ToolCall::ReadFile { path } => read_file(path),
        ToolCall::WriteFile { path, content } => write_file(path, content),
        ToolCall::ListDir { path } => list_dir(path),
        ToolCall::GrepSearch { pattern, path } => {
            return grep_search(agent, pattern, path.as_deref().unwrap_or("."));
        }
        ToolCall::Bash { command } => return bash::run(agent, command),
    };
    Ok(end.unwrap_or_else(ToolOutcome::error))
}

fn read_file(path: &str) -> Result<ToolOutcome, String> {
    let failed = |error: io::Error| format!("{path}: {error}");
    // Checked first: opening a named pipe would wait for its other end.
    let metadata = fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err(format!("{path}: is not a file"));
    }
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| {
            file.take(AGENT_OUTPUT_BYTES as u64 + 1)
                .read_to_end(&mut bytes)
        })
        .map_err(failed)?;
    let total = metadata.len().max(bytes.len() as u64);
    Ok(ToolOutcome::success(
        truncate_output(&bytes, total),
        format!("`{path}` has {total} bytes."),
    ))
}

fn write_file(path: &str, content: &str) -> Result<ToolOutcome, String> {
    let failed = |error: io::Error| format!("{path}: {error}");
    if let Some(parent) = Path::new(path).parent() {
        fs::create_dir_all(parent).map_err(failed)?;
    }
    fs::write(path, content).map_err(failed)?;
    let wrote = format!("wrote {} bytes to {path}", content.len());
    let summary = format!("I {wrote}.");
    Ok(ToolOutcome::success(wrote, summary))
}

fn list_dir(path: &str) -> Result<ToolOutcome, String> {
    let names = entries(Path::new(path)).map_err(|error| format!("{path}: {error}"))?;
    let mut listing = String::new();
    for (name, entry) in &names {
        listing.push_str(name);
        if entry.is_dir() && !entry.is_symlink() {
            listing.push('/');
        }
        listing.push('\n');
    }
    Ok(ToolOutcome::success(
        truncate_output(listing.as_bytes(), listing.len() as u64),
        format!("`{path}` has {} entries.", names.len()),
    ))
}

/// The entries of a directory, sorted by name, so that the agent is deterministic.
fn entries(path: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)?.take(AGENT_SEARCH_FILES) {
        let entry = entry?;
        names.push((
            entry.file_name().to_string_lossy().into_owned(),
            entry.path(),
        ));
    }
    names.sort();
    Ok(names)
}

fn grep_search(agent: &mut Agent, pattern: &str, path: &str) -> Result<ToolOutcome, Halt> {
    let regex = match Regex::new(pattern) {
        Ok(regex) => regex,
        Err(error) => return Ok(ToolOutcome::error(format!("{pattern}: {error}"))),
    };
    let root = Path::new(path);
    if let Err(error) = fs::symlink_metadata(root) {
        return Ok(ToolOutcome::error(format!("{path}: {error}")));
    }
    let mut hits = String::new();
    let mut found = 0_usize;
    let mut files = 0_usize;
    let mut open = vec![(root.to_owned(), 0_usize)];
    while let Some((at, depth)) = open.pop() {
        if at.is_dir() && (depth == 0 || !at.is_symlink()) {
            if depth < AGENT_SEARCH_DEPTH
                && let Ok(names) = entries(&at)
            {
                let below = names.into_iter().rev().filter(|(name, _)| name != ".git");
                open.extend(below.map(|(_, path)| (path, depth + 1)));
            }
            continue;
        }
        files += 1;
        if files > AGENT_SEARCH_FILES || hits.len() > AGENT_OUTPUT_BYTES {
            break;
        }
        found += search_file(&regex, &at, &mut hits);
        agent.poll_input()?;
        if agent.is_cancelled() {
            return Ok(ToolOutcome::interrupted());
        }
    }
    let total = hits.len() as u64;
    Ok(ToolOutcome::success(
        truncate_output(hits.as_bytes(), total),
        format!("`{pattern}` is on {found} lines."),
    ))
}

/// Appends the matching lines of one text file. Returns their number.
fn search_file(regex: &Regex, path: &Path, hits: &mut String) -> usize {
    let searchable = fs::metadata(path)
        .is_ok_and(|meta| meta.is_file() && meta.len() <= AGENT_SEARCH_FILE_BYTES);
    let Some(text) = searchable.then(|| fs::read_to_string(path).ok()).flatten() else {
        return 0;
    };
    let shown = path.strip_prefix(".").unwrap_or(path).display();
    let mut found = 0;
    for (at, line) in text.lines().enumerate() {
        if hits.len() > AGENT_OUTPUT_BYTES {
            break;
        }
        if regex.is_match(line) {
            found += 1;
            let _ = writeln!(hits, "{shown}:{}: {line}", at + 1);
        }
    }
    found
}

/// The beginning of an output of `total` bytes as text, with a remark if it was cut.
pub(super) fn truncate_output(bytes: &[u8], total: u64) -> String {
    let shown = &bytes[..bytes.len().min(AGENT_OUTPUT_BYTES)];
    let mut text = String::from_utf8_lossy(shown).into_owned();
    if total > shown.len() as u64 {
        let _ = writeln!(text, "\n… cut: {} of {total} bytes", shown.len());
    }
    text
}
