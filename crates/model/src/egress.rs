//! Results of connections through the egress proxy, for metrics, journal and tables.

use super::string_enum;

string_enum!(
    /// How a connection through the egress proxy ended.
    EgressResult {
        /// It was allowed, and one of its ends closed it.
        Passed = "passed",
        /// It was allowed, and was idle for too long.
        Idle = "idle",
        /// It was allowed, and reached its time limit.
        Time = "time",
        /// It was allowed, and reached its limit of bytes.
        Bytes = "bytes",
        /// It was allowed, and ended with its child.
        Cut = "cut",
        /// The client closed it before its request was complete.
        Gone = "gone",
        /// The slot, or all slots together, reached the limit of connections.
        Connections = "connections",
        /// The slot reached its limit of new connections per minute.
        Rate = "rate",
        /// Its request or its first TLS message did not arrive in time.
        Slow = "slow",
        /// Two servers could parse its head differently.
        Head = "head",
        /// It is not a CONNECT request.
        Method = "method",
        /// Its target is not a plain host and port.
        Target = "target",
        /// The host is not on the allow-list.
        NotAllowed = "not_allowed",
        /// The host's name has no address, or the name servers do not answer.
        Lookup = "lookup",
        /// The host's name resolves to an address that is not public.
        Address = "address",
        /// No address of the host answers.
        Unreachable = "unreachable",
        /// It does not start with TLS, or hides the server's name.
        Tls = "tls",
        /// The server's name in TLS differs from the requested host.
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
