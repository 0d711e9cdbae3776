//! What a search pattern may read.
//!
//! Owns the caution about patterns: every library reads `{…}`, `[…]` and `(…)` in its own way, and
//! a part that one of them could read as `..` may lead anywhere. Must not know tools.

use crate::request::ReadTarget;

/// The targets of a search: where its pattern leads, and the files with its last name. `loose`: the
/// pattern may also be a text to search for, so an absolute path in it is not a file.
pub(super) fn push_search_targets(
    path: Option<&str>,
    pattern: &str,
    loose: bool,
    out: &mut Vec<ReadTarget>,
) {
    let has_magic = pattern.contains(MAGIC);
    let is_up = || pattern.split('/').any(|part| part == "..");
    if loose && pattern.starts_with('/') && !has_magic && !is_up() {
        out.push(ReadTarget::Mentioned(pattern.to_owned()));
    } else {
        out.push(leading_target(path, pattern));
    }
}

/// The files that a pattern's last name matches: a search for a secret's name is a search for
/// secrets.
pub(super) fn push_named_targets(path: Option<&str>, pattern: &str, out: &mut Vec<ReadTarget>) {
    let below = path.map(str::to_owned);
    match expand_alternatives(pattern) {
        Some(forms) => out.extend(forms.iter().filter_map(|form| {
            let name = form.rsplit('/').find(|name| !name.is_empty())?;
            Some(ReadTarget::Search {
                below: below.clone(),
                name: name.replace('\\', ""),
            })
        })),
        // A brace that is never closed is part of a text.
        None if pattern.matches('{').count() != pattern.matches('}').count() => {}
        None => out.push(ReadTarget::Anywhere(pattern.to_owned())),
    }
}

/// Characters that stand for more than themselves in some pattern readers.
const MAGIC: [char; 7] = ['*', '?', '[', '{', '(', '!', '\\'];

/// The target of a search pattern: the directory before its first wildcard, or anything if it goes
/// up after one.
pub(super) fn leading_target(path: Option<&str>, pattern: &str) -> ReadTarget {
    let magic = pattern.find(MAGIC).unwrap_or(pattern.len());
    let (fixed, rest) = pattern.split_at(magic);
    let joined = |tail: &str| match path {
        Some(path) if !tail.starts_with(['/', '~']) => format!("{path}/{tail}"),
        _ => tail.to_owned(),
    };
    // The component with the first wildcard, and the rest.
    let open = &pattern[fixed.rfind('/').map_or(0, |slash| slash + 1)..];
    if climbs(open, rest) {
        return ReadTarget::Anywhere(joined(pattern));
    }
    if rest.is_empty() {
        return ReadTarget::Path(joined(pattern));
    }
    match fixed.rfind('/') {
        Some(slash) => ReadTarget::Path(joined(&fixed[..=slash])),
        None => path.map_or(ReadTarget::Workspace, |path| {
            ReadTarget::Path(path.to_owned())
        }),
    }
}

/// How many forms of a pattern with alternatives are expanded.
const FORMS: usize = 64;

/// Whether a pattern may go up after its first wildcard, or by it.
fn climbs(pattern: &str, rest: &str) -> bool {
    // A single name is only displayed.
    if !pattern.contains('/') {
        return false;
    }
    if rest.contains("..") || rest.contains('(') && rest.contains(['.', '[', '!']) {
        return true;
    }
    if !rest.contains(['{', '[', '\\', '?', '*']) || !pattern.contains('.') && !rest.contains('[') {
        return false;
    }
    match expand_alternatives(pattern) {
        None => true,
        Some(forms) => forms.iter().any(|form| {
            let mut components = form.split('/').peekable();
            let mut up = false;
            while let Some(component) = components.next() {
                // The last name is only displayed.
                up |= components.peek().is_some() && may_be_up(component);
            }
            up
        }),
    }
}

/// Every form of `{a,b}`; `None` if there are too many, or nested braces.
fn expand_alternatives(pattern: &str) -> Option<Vec<String>> {
    let mut forms = vec![String::new()];
    let mut rest = pattern;
    while let Some(open) = rest.find('{') {
        let close = open + rest[open..].find('}')?;
        let inside = &rest[open + 1..close];
        let choices = inside.matches(',').count() + 1;
        if inside.contains('{') || forms.len() * choices > FORMS {
            return None;
        }
        let before = &rest[..open];
        forms = forms
            .iter()
            .flat_map(|form| {
                inside
                    .split(',')
                    .map(move |choice| format!("{form}{before}{choice}"))
            })
            .collect();
        rest = &rest[close + 1..];
    }
    for form in &mut forms {
        form.push_str(rest);
    }
    Some(forms)
}

/// Whether a component of a pattern may be read as `..`; a leading wildcard never matches a dot.
fn may_be_up(component: &str) -> bool {
    let plain = simplify_classes(&component.replace('\\', ""));
    plain.len() > 1 && plain.starts_with('.') && plain.chars().all(|c| matches!(c, '.' | '?' | '*'))
}

/// The component with a dot for every class that may contain one, and a letter for the others.
fn simplify_classes(component: &str) -> String {
    let mut out = String::new();
    let mut rest = component;
    while let Some(open) = rest.find('[') {
        let (before, class) = (&rest[..open], &rest[open + 1..]);
        let first = class.chars().next().map_or(0, char::len_utf8);
        let Some(close) = class[first..].find(']').map(|at| at + first) else {
            break;
        };
        let inside = &class[..close];
        let may = inside.contains(['.', '!', '^', ':', '=']) || range_includes_dot(inside);
        out.push_str(before);
        out.push(if may { '.' } else { 'x' });
        rest = &class[close + 1..];
    }
    out.push_str(rest);
    out
}

fn range_includes_dot(class: &str) -> bool {
    let chars: Vec<char> = class.chars().collect();
    chars
        .windows(3)
        .any(|w| w[1] == '-' && w[0] <= '.' && w[2] >= '.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_some_reader_takes_for_the_parent_leads_anywhere() {
        for pattern in [
            "*/../x",
            "src/{..,x}/y",
            "{.,x}{.,y}/etc/passwd",
            "{.,a}./x",
            "src/[.][.]/x",
            "[.]?/x",
            ".?/x",
            ".*/x",
            "a/.[.]/b",
            "\\.\\./x",
            "a/\\../x",
            "@(..)/x",
            "+(.)/x",
            "{{.,a},b}./x",
            "[!a][!b]/x",
            "[a.][a.]/x",
            "[ -0][+-9]/x",
            "{.,b}{.,c}{.,d}{.,e}{.,f}{.,g}{.,h}/x",
        ] {
            assert!(
                matches!(leading_target(None, pattern), ReadTarget::Anywhere(_)),
                "{pattern}"
            );
        }
    }

    /// The decision of `developer` about a search over ACP.
    #[track_caller]
    fn verdict(raw: &str, expect: marshal_model::Decision) {
        use crate::extract::{Extractor, builtin_text};
        use crate::{FsContext, NoLinks, Policy};
        let table = Extractor::parse(builtin_text("acp").expect("acp")).expect("a table");
        let input = format!(r#"{{"rawInput": {raw}}}"#);
        let input = serde_json::value::RawValue::from_string(input).expect("json");
        let place = FsContext {
            workspace: "/repo/proj",
            home: "/home/agent",
            cwd: Some("/repo/proj"),
            resolver: &NoLinks,
        };
        let policy = Policy::builtin("developer").expect("developer");
        let request = table.extract("search", &input);
        let got = policy.decide(&request, &marshal_model::AgentClaims::default(), &place);
        assert_eq!(got.decision, expect, "{raw}: {request:?} {got:?}");
    }

    #[test]
    fn a_search_for_secrets_is_denied_and_one_for_text_is_not_taken_for_paths() {
        use marshal_model::Decision::{Allow, Ask, Deny};
        for pattern in [
            "**/.env",
            ".env",
            "*.pem",
            ".en*",
            "{.env,x}",
            "src/**/id_rsa",
            "{a,b}/*.pem",
            "**/.env/",
            "/etc/shadow",
            "[.]env",
            "*.p?m",
        ] {
            verdict(&format!(r#"{{"pattern": "{pattern}"}}"#), Deny);
        }
        for raw in [
            r#"{"pattern": "x", "glob": "**/.env"}"#,
            r#"{"pattern": "x", "glob": "{*.rs,*.pem}"}"#,
            r#"{"glob": "*.pem"}"#,
            r#"{"pattern": "x", "path": ".env"}"#,
        ] {
            verdict(raw, Deny);
        }
        for pattern in [
            "fn main\\\\(",
            "fn main\\\\(\\\\) \\\\{",
            "/api/v1",
            "**/*.rs",
            "src/**/*.{ts,tsx}",
            "TODO",
            "foo..bar",
            "a(b|c)d",
            "https?://x",
            "process\\\\.env\\\\.X",
            "*",
            "impl (A|B)/x",
        ] {
            verdict(&format!(r#"{{"pattern": "{pattern}"}}"#), Allow);
        }
        for raw in [
            r#"{"pattern": "fn main\\(", "glob": "*.rs", "path": "src", "output_mode": "content"}"#,
            r#"{"pattern": "/api/v1", "glob": "src/**/*.ts"}"#,
        ] {
            verdict(raw, Allow);
        }
        for pattern in [
            "/etc/*",
            "../x",
            "@(..)/x",
            "*/../x",
            "/etc/{a,b}",
            "/../etc/x",
            "~/x/*",
        ] {
            verdict(&format!(r#"{{"pattern": "{pattern}"}}"#), Ask);
        }
        for raw in [
            r#"{"pattern": "x", "glob": "/etc/*"}"#,
            r#"{"pattern": "x", "glob": "/etc/hosts"}"#,
            r#"{"pattern": "/etc/*", "glob": "x"}"#,
            r#"{"pattern": "x", "glob": "*/../y"}"#,
            r#"{"pattern": "x", "path": "/etc"}"#,
            r#"{"path": "src"}"#,
        ] {
            verdict(raw, Ask);
        }
    }

    #[test]
    fn ordinary_patterns_read_below_their_directory() {
        for pattern in [
            "**/*.rs",
            "src/**/*.{ts,tsx}",
            "*.{a,b}.[ch]",
            "docs/*",
            "**/.*",
            "src/[a-z]*/mod.rs",
            "a?/b.c",
            "{src,tests}/**/*.rs",
        ] {
            assert!(
                !matches!(leading_target(None, pattern), ReadTarget::Anywhere(_)),
                "{pattern}"
            );
        }
    }
}
