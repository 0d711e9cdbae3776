//! What whoever brings a token may do.

use super::string_enum;

string_enum!(
    /// What a token is good for.
    Role {
        /// Look at everything.
        Read = "read",
        /// Look, and have work done or ended.
        Operate = "operate",
        /// Look, and answer asks.
        Approve = "approve",
        /// Everything.
        Admin = "admin",
    }
);

impl Role {
    /// Whether this role is enough where `needed` is. Answering asks and having work done are apart:
    /// whoever starts work must not be able to allow what it wants.
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
            roles.map(|role| role.word()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(enough(Role::Read), "read operate approve admin");
        assert_eq!(enough(Role::Operate), "operate admin");
        assert_eq!(enough(Role::Approve), "approve admin");
        assert_eq!(enough(Role::Admin), "admin");
    }
}
