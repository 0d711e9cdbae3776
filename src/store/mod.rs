//! The store of workspaces' files: identity, immutable versions, content kept once.
//!
//! Floor 3. A workspace is a registered id, a file has an id that survives a rename, a version is
//! never changed. A write names the version that it was made from and is refused if there is a newer
//! one, which is named in turn; so of two writers with one base exactly one wins, also on two hosts
//! with one database. An answer to a write means that it is durable.
//!
//! What a change does is written once (`change`, `sweep`), and what is read too (`look`), over rows of either
//! database (`rows`): a file of SQLite's (`sqlite`) or a PostgreSQL server (`postgres`).
//!
//! Who keeps it in agreement with the disk, and finds what was written past it: `fleet/files/`.

mod change;
mod diff;
mod error;
mod look;
mod name;
mod owner;
mod postgres;
mod rows;
mod schema;
mod server;
mod sqlite;
mod sweep;
mod version;

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use self::change::{Change, Done, Place, Weighed, What};
use self::error::Trouble;
use self::look::{Found, Look};
use self::postgres::Postgres;
use self::sqlite::Sqlite;
use crate::limits;

pub use self::diff::Diff;
pub use self::error::StoreError;
pub use self::look::{Fetched, Page, Which};
pub use self::name::{Digest, FileId, FilePath, NameError, WorkspaceId};
pub use self::owner::{Claim, owner};
pub use self::server::Server;
pub use self::sqlite::FILE;
pub use self::version::{
    Author, AuthorKind, Base, Cause, Content, File, Given, Held, Origin, Retention, Swept, Version,
};

#[derive(Debug)]
enum Database {
    Sqlite(Sqlite),
    Postgres(Box<Postgres>),
}

/// The store of workspaces' files, in either database.
///
/// A future of it that is dropped leaves its write done or not done, never half done.
#[derive(Debug)]
pub struct Store(Database);

impl Store {
    /// Opens the store in a state directory, and makes it if there is none.
    ///
    /// # Errors
    /// [`StoreError::Private`] if others may touch it, and whatever the database says.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Ok(Self(Database::Sqlite(Sqlite::open(dir, now_ms())?)))
    }

    /// Connects to a PostgreSQL server, and makes the store's tables if there are none.
    ///
    /// # Errors
    /// [`StoreError::Connection`] if the connection string cannot be used,
    /// [`StoreError::Gone`] if the server cannot be reached, and whatever it says.
    pub async fn connect(server: &Server) -> Result<Self, StoreError> {
        let store = Postgres::connect(server, now_ms()).await?;
        Ok(Self(Database::Postgres(Box::new(store))))
    }

    /// Registers a workspace; one that is registered already stays as it is.
    ///
    /// # Errors
    /// Whatever the database says.
    pub async fn register(&self, workspace: &WorkspaceId) -> Result<(), StoreError> {
        self.change(What::Register(workspace.clone(), None)).await?;
        Ok(())
    }

    /// Registers a workspace for one supervisor and its directory; the first who comes has it.
    ///
    /// # Errors
    /// [`StoreError::Taken`] if it is another supervisor's and not said to be shared, and whatever
    /// the database says.
    pub async fn claim(&self, workspace: &WorkspaceId, claim: Claim) -> Result<(), StoreError> {
        self.change(What::Register(workspace.clone(), Some(claim)))
            .await?;
        Ok(())
    }

    /// Whether other supervisors may have the same store.
    #[must_use]
    pub fn is_served(&self) -> bool {
        matches!(self.0, Database::Postgres(_))
    }

    /// The registered workspaces, by their ids.
    ///
    /// # Errors
    /// Whatever the database says.
    pub async fn workspaces(&self) -> Result<Vec<WorkspaceId>, StoreError> {
        match self.look(Look::Workspaces).await? {
            Found::Workspaces(ids) => Ok(ids),
            other => Err(mixed(&other)),
        }
    }

    /// Writes a file: the next version of it, made from `base`.
    ///
    /// # Errors
    /// [`StoreError::Stale`] if there is another version than `base`, [`StoreError::NoBase`] if there
    /// is no file at all, [`StoreError::NoWorkspace`], and whatever the database says.
    pub async fn put(
        &self,
        workspace: &WorkspaceId,
        path: &FilePath,
        base: Base,
        given: Given,
        origin: Origin,
        cause: Cause,
    ) -> Result<Version, StoreError> {
        origin.check()?;
        if !matches!(cause, Cause::Write | Cause::Edit) {
            return Err(StoreError::Request(
                "a put is a write or an edit; other causes have operations of their own",
            ));
        }
        let at = place(workspace, path);
        let given = weigh(given).await?;
        let what = What::Write {
            at,
            base,
            given,
            origin,
            cause,
        };
        self.made(what).await
    }

    /// Tells what was found on disk; `None` if nothing was. Gives the version that it made, none if
    /// the store knew that already.
    ///
    /// # Errors
    /// [`StoreError::NoWorkspace`], and whatever the database says.
    pub async fn observe(
        &self,
        workspace: &WorkspaceId,
        path: &FilePath,
        given: Option<Given>,
        origin: Origin,
    ) -> Result<Option<Version>, StoreError> {
        origin.check()?;
        let at = place(workspace, path);
        let given = match given {
            Some(given) => Some(weigh(given).await?),
            None => None,
        };
        match self.change(What::Observe { at, given, origin }).await? {
            Done::Made(version) => Ok(Some(version)),
            _ => Ok(None),
        }
    }

    /// Removes a file: its next version says that it is gone.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], [`StoreError::Stale`], and whatever the database says.
    pub async fn delete(
        &self,
        workspace: &WorkspaceId,
        path: &FilePath,
        base: Base,
        origin: Origin,
    ) -> Result<Version, StoreError> {
        origin.check()?;
        let at = place(workspace, path);
        self.made(What::Delete { at, base, origin }).await
    }

    /// Gives a file another path; its id and its versions stay.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], [`StoreError::Stale`], [`StoreError::Exists`] if another file is
    /// there, and whatever the database says.
    pub async fn rename(
        &self,
        workspace: &WorkspaceId,
        from: &FilePath,
        to: &FilePath,
        base: Base,
        origin: Origin,
    ) -> Result<Version, StoreError> {
        origin.check()?;
        let (at, to) = (place(workspace, from), to.clone());
        let what = What::Rename {
            at,
            to,
            base,
            origin,
        };
        self.made(what).await
    }

    /// Makes a new version with the content of version `v`.
    ///
    /// # Errors
    /// [`StoreError::NoVersion`], [`StoreError::NoContent`] if it holds none, [`StoreError::Stale`],
    /// and whatever the database says.
    pub async fn restore(
        &self,
        workspace: &WorkspaceId,
        path: &FilePath,
        v: u64,
        base: Base,
        origin: Origin,
    ) -> Result<Version, StoreError> {
        origin.check()?;
        let at = place(workspace, path);
        let what = What::Restore {
            at,
            v,
            base,
            origin,
        };
        self.made(what).await
    }

    /// A file with its current version; also one that is gone.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], and whatever the database says.
    pub async fn file(&self, which: Which) -> Result<File, StoreError> {
        match self.look(Look::File(which)).await? {
            Found::File(file) => Ok(file),
            other => Err(mixed(&other)),
        }
    }

    /// A version with its content: this one, or the current one.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], [`StoreError::NoVersion`], [`StoreError::Corrupt`] if the content is
    /// not the one that was written, and whatever the database says.
    pub async fn get(&self, which: Which, v: Option<u64>) -> Result<Fetched, StoreError> {
        match self.look(Look::Fetch(which, v)).await? {
            Found::Fetched(fetched) => {
                self.apart(fetched.version.bytes, move || {
                    fetched.check()?;
                    Ok(fetched)
                })
                .await
            }
            other => Err(mixed(&other)),
        }
    }

    /// The versions of a file before one, the newest first.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], and whatever the database says.
    pub async fn history(
        &self,
        which: Which,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Page<Version, u64>, StoreError> {
        check_limit(limit)?;
        match self.look(Look::History(which, before, limit)).await? {
            Found::History(page) => Ok(page),
            other => Err(mixed(&other)),
        }
    }

    /// The files that are there, by their paths: those that begin with `prefix`, behind `after`.
    ///
    /// # Errors
    /// [`StoreError::NoWorkspace`], and whatever the database says.
    pub async fn list(
        &self,
        workspace: &WorkspaceId,
        prefix: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Page<File, String>, StoreError> {
        check_limit(limit)?;
        for text in [Some(prefix), after].into_iter().flatten() {
            if text.len() > limits::STORE_PATH_BYTES || text.contains('\0') {
                return Err(StoreError::Request(
                    "a prefix or cursor of a list has at most 1024 bytes and no NUL",
                ));
            }
        }
        let question = Look::List {
            workspace: workspace.clone(),
            prefix: prefix.to_owned(),
            after: after.map(str::to_owned),
            limit,
        };
        match self.look(question).await? {
            Found::List(page) => Ok(page),
            other => Err(mixed(&other)),
        }
    }

    /// What differs between two versions of a file.
    ///
    /// # Errors
    /// [`StoreError::NoFile`], [`StoreError::NoVersion`], and whatever the database says.
    pub async fn diff(&self, which: Which, old: u64, new: u64) -> Result<Diff, StoreError> {
        match self.look(Look::Diff(which, old, new)).await? {
            Found::Sides(sides) => {
                self.apart(u64::MAX, move || compared(&sides.0, &sides.1))
                    .await
            }
            other => Err(mixed(&other)),
        }
    }

    /// Removes a bounded number of versions that are kept no longer, and content that no version has.
    ///
    /// # Errors
    /// Whatever the database says.
    pub async fn sweep(&self, retention: Retention) -> Result<Swept, StoreError> {
        match self.change(What::Sweep(retention)).await? {
            Done::Swept(swept) => Ok(swept),
            _ => Ok(Swept::default()),
        }
    }

    /// Lets nothing in any more and waits for what was accepted.
    pub async fn close(&self) {
        match &self.0 {
            Database::Sqlite(store) => store.close().await,
            Database::Postgres(store) => store.close(),
        }
    }

    /// Does what takes its time with so many bytes where nothing waits for it.
    async fn apart<T: Send + 'static>(
        &self,
        bytes: u64,
        work: impl FnOnce() -> Result<T, Trouble> + Send + 'static,
    ) -> Result<T, StoreError> {
        let done = apart(bytes, work).await?;
        done.map_err(|trouble| trouble.at(self.place(), false))
    }

    fn place(&self) -> &str {
        match &self.0 {
            Database::Sqlite(store) => store.place(),
            Database::Postgres(store) => store.place(),
        }
    }

    async fn made(&self, what: What) -> Result<Version, StoreError> {
        match self.change(what).await? {
            Done::Made(version) => Ok(version),
            Done::Nothing | Done::Swept(_) => Err(StoreError::Request("nothing was to be changed")),
        }
    }

    async fn change(&self, what: What) -> Result<Done, StoreError> {
        let change = Change {
            id: Uuid::now_v7(),
            file: Uuid::now_v7(),
            at_ms: now_ms(),
            what,
        };
        match &self.0 {
            Database::Sqlite(store) => store.change(change).await,
            Database::Postgres(store) => store.change(&change).await,
        }
    }

    async fn look(&self, question: Look) -> Result<Found, StoreError> {
        match &self.0 {
            Database::Sqlite(store) => store.look(question).await,
            Database::Postgres(store) => store.look(&question).await,
        }
    }
}

/// Runs work over so many bytes: in a thread that may take its time, unless that is not worth it.
async fn apart<T: Send + 'static>(
    bytes: u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StoreError> {
    if bytes <= limits::STORE_AT_ONCE_BYTES {
        return Ok(work());
    }
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| StoreError::Closed)
}

async fn weigh(given: Given) -> Result<Weighed, StoreError> {
    let bytes = match &given.content {
        Content::Whole(content) => content.len() as u64,
        Content::Measured { .. } => 0,
    };
    apart(bytes, move || Weighed {
        digest: given.content.digest(),
        given,
    })
    .await
}

fn compared(old: &Fetched, new: &Fetched) -> Result<Diff, Trouble> {
    if [old, new]
        .iter()
        .any(|of| of.version.held == Held::Measured)
    {
        return Ok(Diff::NotHeld);
    }
    old.check()?;
    new.check()?;
    // What is gone is compared as what is empty.
    let content = |of: &Fetched| of.content.clone().unwrap_or_default();
    Ok(diff::compare(&content(old), &content(new)))
}

fn place(workspace: &WorkspaceId, path: &FilePath) -> Place {
    Place {
        workspace: workspace.clone(),
        path: path.clone(),
    }
}

fn check_limit(limit: u32) -> Result<(), StoreError> {
    if (1..=limits::STORE_PAGE).contains(&limit) {
        Ok(())
    } else {
        Err(StoreError::Request("a page has 1 to 200 rows"))
    }
}

/// A question got another one's answer: a fault of this program.
fn mixed(found: &Found) -> StoreError {
    tracing::error!(?found, "the store answered another question");
    StoreError::Request("the store answered another question")
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_store_does_may_be_awaited_in_any_task() {
        fn send(_: impl Send) {}
        #[allow(dead_code, reason = "it is enough that it compiles")]
        fn all(store: &Store, retention: Retention) {
            send(store.workspaces());
            send(store.sweep(retention));
        }
    }
}
