//! Agents at a far end: a real sshd on the loopback, with its own keys, accounts and port, seen by
//! nobody else; and `marshal sandbox exec`, by itself and at that far end.
//!
//! Needs root, which alone can show sshd a list of accounts of its own. sshd itself is Debian's,
//! unpacked beside the other tools of the tests: nothing is installed or started on this host.

mod conversations;
mod exec;
mod lost;
mod refused;
mod ssh_host;
mod work;
