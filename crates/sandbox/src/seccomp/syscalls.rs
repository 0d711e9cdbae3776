//! The numbers of system calls by name, for this architecture.
//!
//! Owns the names only, not which calls an agent may use. A name that this architecture lacks has
//! no number, which is no error: profiles are written once for all architectures.

use std::str::FromStr;

use syscalls::{Sysno, aarch64, arm, mips, powerpc, powerpc64, riscv64, s390x, x86, x86_64};

/// Calls of ARM's own, which its table of numbers does not have.
const ARM_PRIVATE: &[&str] = &["breakpoint", "set_tls"];

/// The number of a system call, if this architecture has it.
pub(super) fn number(name: &str) -> Option<u32> {
    let call = Sysno::from_str(name).ok()?;
    u32::try_from(call.id()).ok()
}

/// Whether any known architecture or kernel has a call with this name.
pub(super) fn is_known(name: &str) -> bool {
    fn has<Table: FromStr>(name: &str) -> bool {
        Table::from_str(name).is_ok()
    }
    let tables = [
        has::<x86_64::Sysno>,
        has::<aarch64::Sysno>,
        has::<x86::Sysno>,
        has::<arm::Sysno>,
        has::<mips::Sysno>,
        has::<powerpc::Sysno>,
        has::<powerpc64::Sysno>,
        has::<riscv64::Sysno>,
        has::<s390x::Sysno>,
    ];
    tables.iter().any(|has| has(name)) || ARM_PRIVATE.contains(&name)
}
