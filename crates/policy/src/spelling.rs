//! The ways in which a tool may read a text as a path: as it is, as a URL, with a variable or
//! another user's home in it, trimmed, with backslashes.
//!
//! Whoever opens the file may read it in any of these ways. Must not know rules or where paths
//! lead.

/// How many readings are tried. A text with more was made to have them.
const READINGS: usize = 24;

/// How many rounds of `%xx` are decoded.
const ROUNDS: usize = 3;

/// One kind of other spelling: adds what a text may mean.
type Step<'a> = dyn Fn(&str, &mut Vec<String>) + 'a;

/// The readings of a text, the text itself first. `escaped`: `%xx` is decoded in plain texts, too,
/// not only in URLs.
pub(super) fn readings(text: &str, escaped: bool) -> Vec<String> {
    let mut all = vec![text.to_owned()];
    let steps: [&Step<'_>; 5] = [
        &add_trimmed,
        &add_file_url_paths,
        &|text, out| add_percent_decoded(text, escaped, out),
        &add_with_slashes,
        &add_home_forms,
    ];
    for step in steps {
        for known in all.clone() {
            let mut more = Vec::new();
            step(&known, &mut more);
            more.retain(|text| !text.is_empty() && !all.contains(text));
            more.truncate(READINGS.saturating_sub(all.len()));
            all.append(&mut more);
        }
    }
    all
}

/// Whether a text has only one reading, as a path.
pub(super) fn is_plain(text: &str) -> bool {
    !text.contains(['%', '$', '`', '\\'])
        && !text.contains("://")
        && scheme(text).is_none()
        && readings(text, true).len() == 1
}

fn add_trimmed(text: &str, out: &mut Vec<String>) {
    out.push(
        text.trim_matches(|c: char| c.is_whitespace() || c.is_control())
            .to_owned(),
    );
}

/// The scheme of a URL, and what follows its colon.
fn scheme(text: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = text.split_once(':')?;
    let is_scheme = scheme.len() > 1
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
    // `src/mod.rs:12` and `mod.rs:12` are positions in files.
    let is_line = rest.starts_with(|c: char| c.is_ascii_digit()) || rest.is_empty();
    (is_scheme && !is_line).then_some((scheme, rest))
}

/// The path of a `file:` URL of any host, and the rest of it without query and fragment.
fn add_file_url_paths(text: &str, out: &mut Vec<String>) {
    let Some((_, rest)) =
        scheme(text).filter(|(scheme, _)| scheme.to_ascii_lowercase().contains("file"))
    else {
        return;
    };
    let whole = match rest.strip_prefix("//") {
        Some(behind) => {
            out.push(behind.to_owned());
            behind.find('/').map_or("", |slash| &behind[slash..])
        }
        None => rest,
    };
    out.push(whole.to_owned());
    for path in out.clone() {
        out.push(path.split(['?', '#']).next().unwrap_or_default().to_owned());
        add_percent_decoded(&path, true, out);
        add_percent_decoded(path.split(['?', '#']).next().unwrap_or_default(), true, out);
    }
}

fn add_percent_decoded(text: &str, escaped: bool, out: &mut Vec<String>) {
    let mut text = text.to_owned();
    for _ in 0..ROUNDS {
        if !escaped || !text.contains('%') {
            return;
        }
        text = percent_decode(&text);
        out.push(text.clone());
    }
}

fn percent_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|b| char::from(*b).to_digit(16));
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let pair = digit(at + 1)
            .zip(digit(at + 2))
            .filter(|_| bytes[at] == b'%');
        if let Some(byte) = pair.and_then(|(high, low)| u8::try_from(high * 16 + low).ok()) {
            out.push(byte);
            at += 3;
        } else {
            out.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn add_with_slashes(text: &str, out: &mut Vec<String>) {
    out.push(text.replace('\\', "/"));
}

/// The home by its variable, or by its owner's name.
fn add_home_forms(text: &str, out: &mut Vec<String>) {
    for name in ["$HOME", "${HOME}"] {
        if let Some(rest) = text
            .strip_prefix(name)
            .filter(|r| r.is_empty() || r.starts_with('/'))
        {
            out.push(format!("~{rest}"));
        }
    }
    if let Some(named) = text.strip_prefix('~') {
        let (user, rest) = named.split_at(named.find('/').unwrap_or(named.len()));
        if !user.is_empty()
            && user
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        {
            out.push(format!("~{rest}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_in_every_way_that_a_tool_may_read_it() {
        for (text, meant) in [
            ("file://localhost/home/agent/x", "/home/agent/x"),
            ("FILE:///a/%2eb", "/a/.b"),
            ("file:/a/%252eb", "/a/.b"),
            ("file:///a/.env?x", "/a/.env"),
            ("file:.env#x", ".env"),
            ("src\\..\\.env", "src/../.env"),
            (" /etc/x\t", "/etc/x"),
            ("$HOME/.aws", "~/.aws"),
            ("${HOME}", "~"),
            ("~agent/x", "~/x"),
        ] {
            let all = readings(text, true);
            assert!(all.iter().any(|one| one == meant), "{text}: {all:?}");
            assert!(!is_plain(text), "{text}");
        }
        assert_eq!(readings("100%25", false), ["100%25"]);
        for plain in ["src/a b.rs", "/x/y", "~/x", "src/mod.rs:12", "a+b@c"] {
            assert!(is_plain(plain), "{plain}");
        }
        let many = "%25".repeat(2000);
        assert!(readings(&many, true).len() <= READINGS);
    }
}
