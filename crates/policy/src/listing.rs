//! What there is: the policies that come with the program and can stand alone.

/// Their names. `guard` is only for `extends`.
pub fn policy_names() -> impl Iterator<Item = &'static str> {
    let names = super::BUILTIN.iter().map(|(name, _)| *name);
    names.filter(|name| *name != "guard")
}
