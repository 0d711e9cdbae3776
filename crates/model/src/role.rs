//! The roles of tokens.

use super::string_enum;

string_enum!(
    /// What the holder of a token may do.
    Role {
        /// Read everything.
        Read = "read",
        /// Read, and start or end work.
        Operate = "operate",
        /// Read, and answer permission requests.
        Approve = "approve",
        /// Everything.
        Admin = "admin",
    }
);

impl Role {
    /// Whether this role includes `needed`. Approving and starting work are separate roles: a
    /// client that starts work must not be able to allow the requests of that work.
    #[must_use]
    pub const fn satisfies(self, needed: Self) -> bool {
        match needed {
            Self::Read => true,
            Self::Operate => matches!(self, Self::Operate | Self::Admin),
            Self::Approve => matches!(self, Self::Approve | Self::Admin),
            Self::Admin => matches!(self, Self::Admin),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_looks_and_nobody_else_does_what_is_the_admins() {
        let enough = |needed: Role| {
            let roles = Role::ALL.iter().filter(|role| role.satisfies(needed));
            roles
                .map(|role| role.as_str())
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(enough(Role::Read), "read operate approve admin");
        assert_eq!(enough(Role::Operate), "operate admin");
        assert_eq!(enough(Role::Approve), "approve admin");
        assert_eq!(enough(Role::Admin), "admin");
    }
}
