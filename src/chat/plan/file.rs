//! The file of a plan in its workspace: read as a checklist, and ticked over whatever was written to it
//! meanwhile.
//!
//! Must not know members or items' states.

use crate::fleet::{FileWrite, FilesError, FleetHandle, Parents};
use crate::limits;
use crate::model::{SessionId, WorkspaceName};
use crate::plan::checklist::{ItemId, TEXT_BYTES, tick};
use crate::plan::{Checklist, ChecklistError};
use crate::store::{Author, AuthorKind, Base, Origin, StoreError};

/// A plan as it stands on the disk.
#[derive(Debug, Clone)]
pub(super) struct PlanText {
    pub(super) text: String,
    pub(super) list: Checklist,
    /// The SHA-256 of the text, in hexadecimal.
    pub(super) sha256: String,
    version: Option<u64>,
}

/// Why there is no plan.
#[derive(Debug)]
pub(super) enum NoPlan {
    /// Somebody must write it: in our words.
    Not(String),
    /// It may be there, and cannot be read now.
    Unread(String),
}

/// Where a plan is.
#[derive(Debug, Clone)]
pub(super) struct PlanFile {
    pub(super) fleet: FleetHandle,
    pub(super) workspace: WorkspaceName,
    pub(super) path: String,
    pub(super) chat: SessionId,
}

impl PlanFile {
    /// Reads it; a file without items is no plan.
    pub(super) async fn read(&self) -> Result<PlanText, NoPlan> {
        let path = &self.path;
        let read = self.fleet.read_file(&self.workspace, path).await;
        let file = read.map_err(|error| match error {
            FilesError::NoFile(_) => NoPlan::Not(format!("there is no file {path}")),
            FilesError::Stopping | FilesError::Store(_) | FilesError::Workspace(_) => {
                NoPlan::Unread(error.to_string())
            }
            error => NoPlan::Not(error.to_string()),
        })?;
        if file.bytes.len() > TEXT_BYTES {
            let bytes = file.bytes.len();
            return Err(NoPlan::Not(ChecklistError::TooLarge { bytes }.to_string()));
        }
        let text = String::from_utf8(file.bytes.to_vec());
        let text = text.map_err(|_| NoPlan::Not(format!("{path} is no UTF-8 text")))?;
        let list = Checklist::parse(&text).map_err(|error| NoPlan::Not(error.to_string()))?;
        if list.items().is_empty() {
            let why = format!("{path} has no item, a line like \"- [ ] text\"");
            return Err(NoPlan::Not(why));
        }
        Ok(PlanText {
            text,
            list,
            sha256: file.sha256,
            version: file.version,
        })
    }

    /// Ticks items, each by one byte, in the file as it is now. Those that are not in it any more are
    /// left out.
    pub(super) async fn tick(&self, items: &[ItemId]) -> Result<PlanText, NoPlan> {
        let mut again = 0;
        loop {
            let found = self.read().await?;
            let mut text = found.text.clone();
            for item in items {
                if let Ok(ticked) = tick(&text, *item) {
                    text = ticked;
                }
            }
            if text == found.text {
                return Ok(found);
            }
            let write = FileWrite {
                base: found.version.map_or(Base::Any, Base::At),
                bytes: text.into_bytes().into(),
                origin: Origin::of(Author::new(AuthorKind::Session, self.chat.as_str())),
                parents: Parents::Need,
            };
            let written = self.fleet.write_file(&self.workspace, &self.path, write);
            match written.await {
                // What stands there now is read, as everybody sees it.
                Ok(_) => {}
                Err(FilesError::Store(StoreError::Stale { .. }) | FilesError::Disk { .. })
                    if again < limits::PLAN_TICKS => {}
                Err(error) => return Err(NoPlan::Unread(error.to_string())),
            }
            again += 1;
            if again > limits::PLAN_TICKS * 2 {
                return Err(NoPlan::Unread(format!(
                    "{} changes all the time: it could not be ticked",
                    self.path
                )));
            }
        }
    }
}
