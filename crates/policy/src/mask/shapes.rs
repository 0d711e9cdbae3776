//! The shapes of well-known keys: the beginning and the extent of each.
//!
//! `docs/secrets.md` lists the same, and a test compares them. Must not know what happens to a
//! secret.

/// The shape of one kind of key.
#[derive(Debug)]
pub(super) struct Shape {
    /// The name in the mark.
    pub(super) name: &'static str,
    /// The key's beginning.
    pub(super) begins: &'static str,
    rest: Rest,
}

/// What follows the beginning.
#[derive(Debug)]
enum Rest {
    /// At least this many letters, digits and these characters, with a digit and a letter among
    /// them.
    Run(usize, &'static [u8]),
    /// Two more parts of a JSON web token behind the first.
    Token,
    /// A PEM block with a private key, to its end, or to the end of the text.
    Pem,
}

const fn run(name: &'static str, begins: &'static str, least: usize) -> Shape {
    let rest = Rest::Run(least, b"-_");
    Shape { name, begins, rest }
}

/// Every shape. A beginning inside a longer word is not a key: `task-…` does not contain `sk-`.
pub(super) const SHAPES: &[Shape] = &[
    run("sk-key", "sk-", 20),
    run("stripe-key", "sk_live_", 16),
    run("stripe-key", "rk_live_", 16),
    run("github-token", "ghp_", 30),
    run("github-token", "gho_", 30),
    run("github-token", "ghu_", 30),
    run("github-token", "ghs_", 30),
    run("github-token", "ghr_", 30),
    run("github-token", "github_pat_", 30),
    run("gitlab-token", "glpat-", 20),
    run("aws-key-id", "AKIA", 16),
    run("aws-key-id", "ASIA", 16),
    run("google-key", "AIza", 35),
    run("slack-token", "xoxb-", 20),
    run("slack-token", "xoxp-", 20),
    run("slack-token", "xoxa-", 20),
    run("slack-token", "xoxr-", 20),
    run("slack-token", "xoxs-", 20),
    run("npm-token", "npm_", 36),
    run("pypi-token", "pypi-", 50),
    run("huggingface-token", "hf_", 30),
    run("docker-token", "dckr_pat_", 20),
    run("digitalocean-token", "dop_v1_", 60),
    Shape {
        name: "json-web-token",
        begins: "eyJ",
        rest: Rest::Token,
    },
    Shape {
        name: "private-key",
        begins: "-----BEGIN ",
        rest: Rest::Pem,
    },
];

/// Minimum bytes of each part of a JSON web token.
const TOKEN_PART: usize = 10;
/// Maximum bytes of a PEM block's label.
const PEM_LABEL: usize = 60;

impl Shape {
    /// The end of the key that begins there; `None` if it is not one.
    pub(super) fn find_end(&self, text: &str, start: usize) -> Option<usize> {
        let bytes = text.as_bytes();
        let before = start.checked_sub(1).and_then(|at| bytes.get(at));
        let after = start + self.begins.len();
        match self.rest {
            Rest::Run(least, also) => {
                let fits = |b: u8| b.is_ascii_alphanumeric() || also.contains(&b);
                if before.is_some_and(|b| fits(*b)) {
                    return None;
                }
                let end = run_end(bytes, after, fits);
                let rest = bytes.get(after..end)?;
                let is_key = rest.len() >= least
                    && rest.iter().any(u8::is_ascii_digit)
                    && rest.iter().any(u8::is_ascii_alphabetic);
                is_key.then_some(end)
            }
            Rest::Token => {
                let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
                if before.is_some_and(|b| fits(*b)) {
                    return None;
                }
                let mut end = run_end(bytes, after, fits);
                if end - start < TOKEN_PART {
                    return None;
                }
                for _ in 0..2 {
                    if bytes.get(end) != Some(&b'.') {
                        return None;
                    }
                    let part = end + 1;
                    end = run_end(bytes, part, fits);
                    if end - part < TOKEN_PART {
                        return None;
                    }
                }
                Some(end)
            }
            Rest::Pem => {
                let rest = text.get(after..)?;
                let most = rest.len().min(PEM_LABEL);
                let label = rest.as_bytes().get(..most)?;
                let dashes = memchr::memmem::find(label, b"-----")?;
                let label = rest.get(..dashes)?;
                if !label.contains("PRIVATE KEY") {
                    return None;
                }
                let end = format!("-----END {label}-----");
                let ends = rest.find(&end).map(|at| after + at + end.len());
                Some(ends.unwrap_or(text.len()))
            }
        }
    }
}

fn run_end(bytes: &[u8], from: usize, fits: impl Fn(u8) -> bool) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    from + rest.iter().position(|b| !fits(*b)).unwrap_or(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documentation_lists_exactly_these_shapes() {
        let listed: Vec<(String, String)> = include_str!("../../../../docs/secrets.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .map(|line| {
                let mut cells = line.split(" | ");
                let name = cells.next().unwrap_or_default().trim_end_matches('`');
                let begins = cells.next().unwrap_or_default().trim_matches('`');
                (name.to_owned(), begins.to_owned())
            })
            .collect();
        let known: Vec<(String, String)> = SHAPES
            .iter()
            .map(|shape| (shape.name.to_owned(), shape.begins.to_owned()))
            .collect();
        assert_eq!(listed, known);
    }
}
