//! The ids of one command in a sandbox: for root, a uid that nothing else uses.

use marshal_config::UidRange;
use marshal_sandbox::HostIds;
use marshal_sandbox::uids::{self, LockedBlock, Sources, UidError};

/// Takes a uid until the block is dropped; an ordinary user has its own.
///
/// # Errors
/// [`UidError`]
pub(super) fn acquire() -> Result<(HostIds, Option<LockedBlock>), UidError> {
    let (uid, gid) = (
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    if uid != 0 {
        return Ok((HostIds::Own { uid, gid }, None));
    }
    let guard = uids::acquire(&Sources::host(), 1, UidRange::Auto)?;
    let slot_uid = guard.block().first;
    Ok((HostIds::Root { slot_uid }, Some(guard)))
}
