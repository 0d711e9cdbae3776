//! What becomes of connections from a sandbox to hosts outside, as metrics, journal and tables say
//! it.

use super::string_enum;

string_enum!(
    /// How a connection through the egress proxy ended.
    EgressResult {
        /// It passed, and one of its ends closed it.
        Passed = "passed",
        /// It passed, and nothing came for too long.
        Idle = "idle",
        /// It passed, and was open for as long as it may be.
        Time = "time",
        /// It passed, and carried as many bytes as it may.
        Bytes = "bytes",
        /// It passed, and ended with its child.
        Cut = "cut",
        /// Whoever opened it left before it asked for anything whole.
        Gone = "gone",
        /// The slot, or all of them, have as many as they may.
        Connections = "connections",
        /// The slot opened as many in a minute as it may.
        Rate = "rate",
        /// What it had to say first did not come in time.
        Slow = "slow",
        /// Two servers could read its head differently.
        Head = "head",
        /// It asks for something else than CONNECT.
        Method = "method",
        /// What it asks for is no plain host and port.
        Target = "target",
        /// The host is not on the list.
        NotAllowed = "not_allowed",
        /// The host's name has no address, or the name servers do not answer.
        Lookup = "lookup",
        /// The host's name leads to an address that is not a public one.
        Address = "address",
        /// Nobody answers at the host's addresses.
        Unreachable = "unreachable",
        /// What it sends is no TLS, or hides the server's name.
        Tls = "tls",
        /// The server's name in TLS is another one than it asked for.
        Name = "name",
    }
);

impl EgressResult {
    /// Whether bytes passed.
    #[must_use]
    pub const fn has_passed(self) -> bool {
        matches!(
            self,
            Self::Passed | Self::Idle | Self::Time | Self::Bytes | Self::Cut
        )
    }
}
