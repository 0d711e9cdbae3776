//! Bringing the branch of a task into its repository, under its own name, when the task has ended.
//!
//! Only what takes no effect outside of the sandbox comes in by itself, and nothing is overwritten.
//! Made again after a kill, it finds its own branch there. Must not know how a task ends.

use std::sync::Arc;

use super::bundle_git::{BundleGit, Refused, Scratch, find_refused};
use super::landing::{LandingError, list_files};
use super::prepare::blocking;
use crate::setup::{PoolShared, Shared};
use marshal_model::SlotId;
use marshal_sandbox::workspace::Root;
use marshal_sandbox::workspace::branch::git::{self, UnpackOutcome};
use marshal_sandbox::workspace::branch::{self, CloneId, CloneRecord, Repository, land};

/// Files that a command names.
const ALLOWED: usize = 8;
/// Columns of a branch's name.
const BRANCH: usize = 200;

/// Why the branch of a task is not in its repository.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImportError {
    /// Files that other programs run or obey, and the command that brings it in all the same.
    #[error(
        "it changes what takes effect outside of the sandbox: {files}; look at it (marshal diff), \
         then bring it in: {command}"
    )]
    Outside {
        /// The files.
        files: String,
        /// The command.
        command: String,
    },
    /// Files of secrets.
    #[error("its commits have files of secrets, which no --allow takes: {0}")]
    Secrets(String),
    /// The repository has another branch of that name.
    #[error(
        "the repository has that branch already, at {0}; bring it in under another name (marshal land --into NAME)"
    )]
    Exists(String),
    /// A branch stands where a directory would have to be, or the other way round.
    #[error("the repository has a branch {0}, so none can have that name: rename it")]
    Blocked(String),
    /// The repository or the bundle cannot be used.
    #[error(transparent)]
    Landing(#[from] LandingError),
}

/// Brings the stored bundle of a clone into its repository.
///
/// # Errors
/// [`ImportError`]; the repository has no new branch.
pub(crate) async fn import_branch(
    shared: &Arc<Shared>,
    pool: &Arc<PoolShared>,
    slot: &SlotId,
    (id, record): (&CloneId, &CloneRecord),
) -> Result<(), ImportError> {
    let (state, of, source) = (Arc::clone(shared), id.clone(), record.clone());
    let opened = blocking(&shared.ambient, move || {
        let clones = Root::open_resolved(state.state.copies().path())?;
        let head = branch::stored_header(&clones, &of, &source)?;
        let path = branch::bundle_path(&clones, &of);
        Ok::<_, LandingError>((path, head, Repository::find(&source.source)?))
    });
    let (bundle, head, repository) = opened.await.map_err(LandingError::from)??;
    let git = BundleGit {
        shared,
        pool,
        slot,
        bundle: &bundle,
        repository: &repository,
    };
    let name = record.branch_of(&id.session);
    let ends = (&record.base, &head.tip);
    let scratch = git.create_scratch().await?;
    let command = git::unpack(head.pack_offset, ends, &name);
    let imported = match git.run(&scratch, command).await {
        Ok(output) => finish(&git, &scratch, (&name, &record.at), (&output, &head.tip)).await,
        Err(error) => Err(error.into()),
    };
    scratch.remove(shared).await?;
    imported
}

/// Brings the checked objects and the branch into the repository.
async fn finish(
    git: &BundleGit<'_>,
    scratch: &Scratch,
    (name, at): (&str, &str),
    (output, tip): (&[u8], &branch::bundle_header::ObjectId),
) -> Result<(), ImportError> {
    let outcome = UnpackOutcome::parse(output).map_err(LandingError::from)?;
    let (pack, has, changes) = match outcome {
        UnpackOutcome::Checked { pack, has, changes } => (pack, has, changes),
        UnpackOutcome::Blocked { by } => {
            return Err(ImportError::Blocked(by.escape_for_display(BRANCH)));
        }
        UnpackOutcome::Reftable => return Err(LandingError::Reftable.into()),
    };
    match has {
        Some(has) if has == *tip => return Ok(()),
        Some(has) => return Err(ImportError::Exists(has.to_string())),
        None => {}
    }
    match find_refused(git.pool, &changes, at, &[]) {
        None => {}
        Some(Refused::Secrets(files)) => {
            let files = list_files(files.iter().map(String::as_str));
            return Err(ImportError::Secrets(files));
        }
        Some(Refused::Outside(files)) => {
            let files = files.iter().map(|(path, _)| path.as_str());
            let command = land_command(name, files.clone());
            let files = list_files(files);
            return Err(ImportError::Outside { files, command });
        }
    }
    git.add_pack(scratch.path.join(git::UNPACKED_PACK), pack)
        .await?;
    let (common, name, tip) = (git.repository.common.clone(), name.to_owned(), tip.clone());
    let made = blocking(&git.shared.ambient, move || {
        let git_dir = Root::open_resolved(&common)?;
        Ok::<_, LandingError>(land::make_branch(&git_dir, &name, &tip)?)
    });
    made.await.map_err(LandingError::from)??;
    Ok(())
}

/// The command that brings a branch in with these files.
fn land_command<'p>(name: &str, files: impl ExactSizeIterator<Item = &'p str>) -> String {
    let is_plain = |path: &&str| {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"._/-+@".contains(&b);
        !path.starts_with('-') && path.bytes().all(is_plain)
    };
    let count = files.len();
    let named: Vec<&str> = files.take(ALLOWED).filter(is_plain).collect();
    // What a shell could read otherwise, and a long list, are left to the reader.
    let allowed = if named.len() == count {
        [&[""], &named[..]].concat().join(" --allow ")
    } else {
        " --allow PATH for each file or directory".to_owned()
    };
    format!("marshal land {name}{allowed}")
}

#[cfg(test)]
mod tests {
    use super::land_command;

    #[test]
    fn the_command_names_what_it_allows_unless_a_shell_would_read_it_otherwise() {
        let command = |files: &[&str]| land_command("marshal/r/t", files.iter().copied());
        assert_eq!(
            command(&["package.json", ".github/x"]),
            "marshal land marshal/r/t --allow package.json --allow .github/x"
        );
        let any = "marshal land marshal/r/t --allow PATH for each file or directory";
        assert_eq!(command(&["a;b", "package.json"]), any);
        assert_eq!(command(&["-x"]), any);
        assert_eq!(command(&["Makefile"; 9]), any);
    }
}
