//! The names of the built-in policies that can stand alone.

/// The names of these policies. `guard` is only for `extends`.
pub fn policy_names() -> impl Iterator<Item = &'static str> {
    let names = super::BUILTIN.iter().map(|(name, _)| *name);
    names.filter(|name| *name != "guard")
}
