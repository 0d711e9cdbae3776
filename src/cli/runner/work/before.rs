//! What an earlier life in the directory left.

use serde_json::json;

use super::super::dir::{Found, Part, SessionDir};
use super::super::record::{Record, now};
use super::super::running::{Why, result};
use crate::skillpilot::{CONTROL_BYTES, CommandName, StateFile, Stats, Status, is_id};

/// Commands that were claimed and whose result is not kept: the exit reason.
const RESTARTED: &str = "tool_died: runner restarted";

/// The id of the session: that of an earlier life in this directory, or a new one.
pub(in crate::cli::runner) fn session_id(dir: &SessionDir) -> String {
    let earlier = match dir.read(Part::State, "state.json", CONTROL_BYTES) {
        Ok(Found::Content(content)) => serde_json::from_slice::<StateFile>(&content).ok(),
        _ => None,
    };
    if let Some(state) = earlier.filter(|state| is_id(&state.session_id)) {
        return state.session_id;
    }
    let random = uuid::Uuid::new_v4().simple().to_string();
    let day = jiff::Timestamp::now().strftime("%Y%m%d_%H%M%S");
    format!("session_{day}_{}", random.get(..8).unwrap_or(&random))
}

/// Removes what an earlier life left: temporary files, and what controlled it. `stdio`: the Master is there and
/// brings a lease of its own.
pub(super) fn tidy(dir: &SessionDir, record: &mut Record, stdio: bool) -> std::io::Result<()> {
    for part in [Part::Queue, Part::Result, Part::Log, Part::Ctl, Part::State] {
        dir.sweep(part)?;
    }
    for name in ["cancel.json", "stop.json"] {
        if dir.has(Part::Ctl, name)? {
            gone(dir, Part::Ctl, name)?;
            record.note(dir, "stale_control", json!({ "file": name }));
        }
    }
    if stdio {
        gone(dir, Part::State, "lease.json")?;
    }
    Ok(())
}

/// Has nothing at a name, whatever was there.
fn gone(dir: &SessionDir, part: Part, name: &str) -> std::io::Result<()> {
    dir.remove(part, name).or_else(|error| {
        if dir.reject(part, name) {
            Ok(())
        } else {
            Err(error)
        }
    })
}

/// Ends what a Runner before this one had begun: nothing is run twice.
pub(super) fn recover(dir: &SessionDir, record: &mut Record) -> std::io::Result<()> {
    for file in dir.names(Part::Inflight)? {
        let Some(name) = CommandName::read(&file) else {
            dir.reject(Part::Inflight, &file);
            continue;
        };
        if !dir.has(Part::Result, &file)? {
            let why = Why {
                status: Status::Error,
                reason: RESTARTED.to_owned(),
            };
            let result = result(&name, why, now(), Stats::default());
            dir.put(Part::Result, &file, &serde_json::to_vec(&result)?, true)?;
            record.note(
                dir,
                "recovered",
                json!({ "cmd_id": name.id, "seq": name.seq }),
            );
        }
        gone(dir, Part::Inflight, &file)?;
    }
    Ok(())
}
