//! `workspace.branches` and `workspace.author` of a pool: where the branches of tasks go, and who the
//! author of the commits is that no agent made.
//!
//! Must not know git.

use super::error::quote;
use super::table::Section;
use super::types::{Pool, SessionScope, WorkspaceMode};

/// The author of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    /// The name.
    pub name: String,
    /// The mail address.
    pub mail: String,
}

/// The JSON-schema pattern of an author. Git cuts these characters off at the ends of a name.
const AUTHOR: &str = r"^[^\x00-\x20<>.,:;\x22'\\][^\x00-\x1f<>\x7f]{0,198} <[^\x00-\x20<>\x7f@]{1,100}@[^\x00-\x20<>\x7f@]{1,100}>$";

impl Author {
    /// Reads `Name <mail>`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (name, mail) = text.strip_suffix('>')?.split_once(" <")?;
        let is_plain = |text: &str| {
            let is_bad = |c: char| c.is_control() || matches!(c, '<' | '>');
            !text.is_empty() && text.len() <= 200 && !text.contains(is_bad)
        };
        let is_cut = |c: char| c.is_whitespace() || ".,:;\"'\\".contains(c);
        let (user, host) = mail.split_once('@')?;
        let is_mail = !user.is_empty()
            && !host.is_empty()
            && !host.contains('@')
            && !mail.contains(char::is_whitespace);
        let is_name = !name.starts_with(is_cut) && !name.ends_with(char::is_whitespace);
        (is_plain(name) && is_plain(mail) && is_mail && is_name).then(|| Self {
            name: name.to_owned(),
            mail: mail.to_owned(),
        })
    }
}

impl std::fmt::Display for Author {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} <{}>", self.name, self.mail)
    }
}

/// Reads both keys of a workspace.
pub(super) fn read(table: &Section<'_>, mode: WorkspaceMode) -> (bool, Option<Author>) {
    for key in ["branches", "author"] {
        if let Some(item) = table.get(key).filter(|_| mode != WorkspaceMode::Worktree) {
            let message = format!("only clones have branches, so {key} is for mode \"worktree\"");
            let help = format!("set mode = \"worktree\", or remove {key}");
            table.diagnostics.report(&item.place, message, Some(help));
        }
    }
    let branches = table.get("branches").and_then(|item| item.boolean_value());
    let found = table.get("author").and_then(|item| item.text_like(AUTHOR));
    let author = found.and_then(|found| {
        let author = Author::parse(&found.value);
        if author.is_none() {
            let message = format!(
                "expected a name and a mail address, such as \"Ada <ada@example.com>\", found {}",
                quote(&found.value)
            );
            table.diagnostics.report(&found.place, message, None);
        }
        author
    });
    (branches.unwrap_or(false), author)
}

/// Refuses branches of sessions that have several tasks.
pub(super) fn check_consistency(section: &Section<'_>, pool: &Pool) {
    if pool.workspace.branches && pool.options.session == SessionScope::Slot {
        let message = "workspace.branches with session = \"slot\": the tasks of a session share one branch, which is not complete before the session ends; remove one of both";
        section.diagnostics.report(&section.place, message, None);
    }
}

#[cfg(test)]
mod tests {
    use super::Author;

    #[test]
    fn an_author_has_a_name_and_a_mail_address() {
        let author = Author::parse("Ada L. <ada@example.com>").expect("an author");
        assert_eq!(
            (&*author.name, &*author.mail),
            ("Ada L.", "ada@example.com")
        );
        assert_eq!(author.to_string(), "Ada L. <ada@example.com>");
        let long = format!("{} <a@b>", "x".repeat(201));
        for bad in [
            "",
            "Ada",
            "<a@b>",
            " <a@b>",
            "Ada <>",
            "Ada <a>",
            "Ada <@b>",
            "Ada <a@>",
            "Ada <a@b",
            "Ada <a@b> x",
            "A <x> <a@b>",
            "A\nB <a@b>",
            "Ada <a b@c>",
            "Ada <a@b@c>",
            ".Ada <a@b>",
            &long,
        ] {
            assert_eq!(Author::parse(bad), None, "{bad:?}");
        }
    }
}
