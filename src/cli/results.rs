//! The results file: JSON Lines, one task per line, written as tasks end.
//!
//! The file is opened before the run starts, so that an unwritable path is an error before any
//! work. It is emptied when the run has begun. Each line is written at once and with one write, so
//! the file has all ended tasks even after a crash. Must not know the fleet.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use marshal_engine::api::json_lines;
use marshal_fleet::TaskReport;
use marshal_model::untrusted::{escape_for_display, escape_json_for_terminal};

/// Why results cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The file cannot be created or opened.
    #[error("cannot write results to {}: {source}; choose another --results FILE", display_path(.path))]
    Open {
        /// The file's path.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A line could not be written.
    #[error("the results in {} are incomplete: {source}", display_path(.path))]
    Write {
        /// The file's path.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
}

fn display_path(path: &Path) -> String {
    escape_for_display(&path.to_string_lossy(), 400)
}

/// An open results file.
#[derive(Debug)]
pub struct Results {
    path: PathBuf,
    file: File,
}

impl Results {
    /// Opens or creates the file, without changing its contents.
    ///
    /// # Errors
    /// [`ResultsError::Open`].
    pub fn open(path: &Path) -> Result<Self, ResultsError> {
        let failed = |source| ResultsError::Open {
            path: path.to_owned(),
            source,
        };
        if path.as_os_str() == "-" {
            let hint = "\"-\" is not a file; use `--json` for standard output";
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, hint)));
        }
        let file = OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .map_err(failed)?;
        Ok(Self {
            path: path.to_owned(),
            file,
        })
    }

    /// Empties the file for the results of this run.
    ///
    /// # Errors
    /// [`ResultsError::Write`].
    pub fn begin(&mut self) -> Result<(), ResultsError> {
        // A pipe or a terminal cannot be truncated.
        let is_file = self.file.metadata().is_ok_and(|meta| meta.is_file());
        let emptied = if is_file {
            self.file.set_len(0)
        } else {
            Ok(())
        };
        emptied.map_err(|source| self.failed(source))
    }

    /// Writes one task's line. Characters that could act on a terminal are written as `\u`: the
    /// document is the same, and safe to view.
    ///
    /// # Errors
    /// [`ResultsError::Write`].
    pub fn write(&mut self, report: &TaskReport) -> Result<(), ResultsError> {
        let mut line = escape_json_for_terminal(&json_lines::report_json(report));
        line.push('\n');
        let written = self.file.write_all(line.as_bytes());
        written.map_err(|source| self.failed(source))
    }

    /// Syncs the file to disk.
    ///
    /// # Errors
    /// [`ResultsError::Write`].
    pub fn finish(&self) -> Result<(), ResultsError> {
        match self.file.sync_data() {
            // A pipe or a terminal cannot be synced.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
            synced => synced.map_err(|source| self.failed(source)),
        }
    }

    fn failed(&self, source: io::Error) -> ResultsError {
        ResultsError::Write {
            path: self.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use marshal_engine::api::test_fixtures::{EVIL, hostile_items, report};
    use marshal_model::untrusted::is_unsafe;
    use marshal_model::{RunId, TaskId, TaskOutcome};

    #[test]
    fn old_results_stay_until_the_run_begins() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("out.jsonl");
        std::fs::write(&path, "old\n").expect("written");
        let mut results = Results::open(&path).expect("opened");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "old\n");
        results.begin().expect("begun");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), "");
        let run = RunId::new("r").expect("id");
        let row = report(&run, &TaskId::new("a").expect("id"), TaskOutcome::Done);
        results.write(&row).expect("written");
        let text = std::fs::read_to_string(&path).expect("read");
        let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["id"], "a");
        assert_eq!(value["outcome"], "done");
        assert_eq!(value["requests"]["allowed"], 0);
        assert_eq!(value["duration_ms"], 1200);
        results.finish().expect("synced");
    }

    #[test]
    fn what_cannot_be_written_is_said_before_the_run() {
        let dir = tempfile::tempdir().expect("directory");
        let missing = dir.path().join("none/out.jsonl");
        let error = Results::open(&missing).expect_err("no directory");
        assert!(error.to_string().contains("none/out.jsonl"), "{error}");
        assert!(Results::open(dir.path()).is_err(), "a directory");
        let error = Results::open(Path::new("-")).expect_err("no file");
        assert!(error.to_string().contains("--json"), "{error}");
    }

    #[test]
    fn a_device_takes_results_too() {
        let mut results = Results::open(Path::new("/dev/null")).expect("opened");
        results.begin().expect("begun");
        let (row, _) = hostile_items("x");
        results.write(&row).expect("written");
        results.finish().expect("finished");
    }

    #[test]
    fn nothing_that_acts_on_a_terminal_is_in_the_file_and_nothing_is_lost() {
        for evil in EVIL {
            let dir = tempfile::tempdir().expect("directory");
            let path = dir.path().join("out.jsonl");
            let mut results = Results::open(&path).expect("opened");
            let (row, _) = hostile_items(evil);
            results.write(&row).expect("written");
            let text = std::fs::read_to_string(&path).expect("read");
            assert!(!text.chars().any(|c| c != '\n' && is_unsafe(c)), "{text:?}");
            assert_eq!(text.lines().count(), 1);
            let value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(value["detail"], *evil);
            assert_eq!(value["denied_by"][0], *evil);
        }
    }
}
