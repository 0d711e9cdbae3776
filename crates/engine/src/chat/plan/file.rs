//! The file of a plan in its workspace: parsed as a checklist, and ticked without overwriting
//! concurrent changes.
//!
//! Must not know members or items' states.

use std::collections::HashSet;

use marshal_fleet::{FileWrite, FilesError, FleetHandle, Parents};
use marshal_model::limits;
use marshal_model::{SessionId, WorkspaceName};
use marshal_store::{Author, AuthorKind, Base, Digest, Origin, StoreError};
use marshal_wire::plan::checklist::{ItemId, TEXT_BYTES, tick};
use marshal_wire::plan::{Checklist, ChecklistError};

/// The current content of a plan.
#[derive(Debug, Clone)]
pub(super) struct PlanText {
    pub(super) text: String,
    pub(super) list: Checklist,
    /// The SHA-256 of the text, in hexadecimal.
    pub(super) sha256: String,
    digest: Digest,
}

/// Why there is no plan.
#[derive(Debug)]
pub(super) enum NoPlan {
    /// The plan must be written first; the reason for the planner.
    Missing(String),
    /// The file cannot be read now.
    Unreadable(String),
}

/// The location of a plan.
#[derive(Debug, Clone)]
pub(super) struct PlanFile {
    pub(super) fleet: FleetHandle,
    pub(super) workspace: WorkspaceName,
    pub(super) path: String,
    pub(super) chat: SessionId,
}

impl PlanFile {
    /// Reads the plan; a file without items is not a plan.
    pub(super) async fn read(&self) -> Result<PlanText, NoPlan> {
        let path = &self.path;
        let read = self.fleet.read_file(&self.workspace, path).await;
        let file = read.map_err(|error| match error {
            FilesError::NoFile(_) => NoPlan::Missing(format!("there is no file {path}")),
            FilesError::Stopping | FilesError::Store(_) | FilesError::Workspace(_) => {
                NoPlan::Unreadable(error.to_string())
            }
            error => NoPlan::Missing(error.to_string()),
        })?;
        if file.bytes.len() > TEXT_BYTES {
            let bytes = file.bytes.len();
            return Err(NoPlan::Missing(
                ChecklistError::TooLarge { bytes }.to_string(),
            ));
        }
        let text = String::from_utf8(file.bytes.to_vec());
        let text = text.map_err(|_| NoPlan::Missing(format!("{path} is not UTF-8 text")))?;
        let list = Checklist::parse(&text).map_err(|error| NoPlan::Missing(error.to_string()))?;
        if list.items().is_empty() {
            let why = format!("{path} has no item, a line like \"- [ ] text\"");
            return Err(NoPlan::Missing(why));
        }
        Ok(PlanText {
            text,
            list,
            sha256: file.digest.to_string(),
            digest: file.digest,
        })
    }

    /// Ticks items in the current file, one byte each. Items that are no longer in it are skipped.
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
                base: Base::Any,
                expected_digest: Some(found.digest),
                bytes: text.into_bytes().into(),
                origin: Origin::new(Author::new(AuthorKind::Session, self.chat.as_str())),
                parents: Parents::Require,
            };
            let written = self.fleet.write_file(&self.workspace, &self.path, write);
            match written.await {
                // Read the file again, so that the result is what others see.
                Ok(_) => {}
                Err(
                    FilesError::Store(StoreError::Stale { .. })
                    | FilesError::Changed(_)
                    | FilesError::Disk { .. },
                ) if again < limits::PLAN_TICK_RETRIES => {}
                Err(error) => return Err(NoPlan::Unreadable(error.to_string())),
            }
            again += 1;
            if again > limits::PLAN_TICK_RETRIES * 2 {
                return Err(NoPlan::Unreadable(format!(
                    "{} keeps changing, so its items could not be ticked",
                    self.path
                )));
            }
        }
    }

    /// Returns which of these items a person wrote: those whose line first appears in a version
    /// that a person wrote over HTTP. Items in no version count as nobody's.
    pub(super) async fn items_by_people(
        &self,
        items: &HashSet<ItemId>,
    ) -> Result<HashSet<ItemId>, FilesError> {
        let (workspace, path) = (&self.workspace, self.path.as_str());
        let mut left: HashSet<ItemId> = items.clone();
        let mut found = HashSet::new();
        // Whether a person wrote the oldest version read so far; the remaining items are in it.
        let mut by_person = false;
        let page = self
            .fleet
            .file_history(workspace, path, None, limits::PLAN_HISTORY);
        let page = match page.await {
            Ok(page) => page,
            Err(FilesError::NoStore | FilesError::Store(StoreError::NoFile(_))) => {
                return Ok(found);
            }
            Err(error) => return Err(error),
        };
        for version in &page.rows {
            let fetched = self
                .fleet
                .file_version(workspace, path, Some(version.v))
                .await?;
            let text = fetched
                .content
                .map(|bytes| bytes.to_vec())
                .and_then(|bytes| String::from_utf8(bytes).ok());
            let list = text.and_then(|text| Checklist::parse(&text).ok());
            let is_in =
                |item: &ItemId| list.as_ref().is_some_and(|list| list.item(*item).is_some());
            let came: HashSet<ItemId> =
                left.iter().copied().filter(|entry| !is_in(entry)).collect();
            left.retain(|item| !came.contains(item));
            found.extend(came.into_iter().filter(|_| by_person));
            if left.is_empty() {
                return Ok(found);
            }
            by_person = version.origin.author.kind == AuthorKind::Person;
        }
        // They were in the first version; a longer history is not searched.
        if page.next.is_none() && by_person {
            found.extend(left);
        }
        Ok(found)
    }
}
