//! The keys of a `[route.NAME]` with `kind = "git"`: the repositories below its upstream, and the
//! refs that may be pushed.
//!
//! Must not know git's protocol.

use super::error::quote;
use super::route::{AllowedRequest, METHODS, RouteKind, Upstream, is_path_byte};
use super::route_table::UPSTREAM_PATTERN;
use super::settings::{Optional, Pattern, Size, settings};
use super::table::{Entry, Section, keywords};
use super::types::Secret;
use marshal_model::{limits, string_enum};

settings! {
    /// What a route to a git server has beside other routes.
    #[derive(Debug, Clone)]
    pub struct GitRoute {
        /// The user before the key, which makes the header that of HTTP's basic authentication.
        user: Option<String> = None, Optional(Pattern(USER_PATTERN));
        /// The largest pack of a push, in bytes.
        push_max: u64 = 64 << 20, Size(1 << 10..=limits::PUSH_BYTES);
        ;
        /// The paths of repositories below the upstream; empty: the upstream is the one repository.
        repositories: Vec<String> = Vec::new();
        /// Where `marshal land --pr` opens pull requests; `None`: nowhere.
        pull_requests: Option<PullRequests> = None;
        /// The refs that may be pushed; empty: none.
        push: Vec<RefPattern> = vec![RefPattern("refs/heads/marshal/*".to_owned())];
    }
}

/// The JSON-schema pattern of a user.
const USER_PATTERN: &str = r"^[A-Za-z0-9._@+-]{1,64}$";
/// The JSON-schema pattern of a repository's path.
const REPOSITORY_PATTERN: &str = r"^(?!.*(^|/)\.\.?(/|$))(?!.*\*[^/]*\*)[A-Za-z0-9._~:@!$&'()+,=*-]+(/[A-Za-z0-9._~:@!$&'()+,=*-]+)*$";
/// The JSON-schema pattern of a branch.
const BASE_PATTERN: &str =
    r"^(?!.*(//|\.\.|/\.|@\{|\.lock(/|$)|/$|\.$))[A-Za-z0-9_][^ ~^:?*\[\\]*$";
/// The JSON-schema pattern of a pattern of refs.
const REF_PATTERN: &str =
    r"^refs/heads/(?!.*(//|\.\.|/\.|@\{|\.lock(/|$)))[A-Za-z0-9_][^ ~^:?*\[\\]*(/\*)?$";

string_enum!(
    /// The software of a git server, and with it the form of its API.
    Forge {
        /// GitHub, also GitHub Enterprise Server.
        Github = "github",
        /// GitLab.
        Gitlab = "gitlab",
        /// Gitea, and Forgejo.
        Gitea = "gitea",
    }
);

keywords!(Forge);

/// How pull requests are opened. Only the supervisor does that, never an agent.
#[derive(Debug, Clone)]
pub struct PullRequests {
    /// The form of the API.
    pub forge: Forge,
    /// Where the API is.
    pub api: Upstream,
    /// The token of the API; `None`: the key of the route.
    pub secret: Option<Secret>,
    /// The branch that the requests are for.
    pub base: String,
}

impl Forge {
    /// Where the API of a server is, whose repositories are below `path`.
    fn api_of(self, upstream: &Upstream, path: &str) -> Upstream {
        let is_github_com = self == Self::Github && upstream.authority == "github.com";
        let below = match self {
            Self::Github if is_github_com => "",
            Self::Github => "/api/v3",
            Self::Gitlab => "/api/v4",
            Self::Gitea => "/api/v1",
        };
        let (authority, path) = if is_github_com {
            ("api.github.com", "")
        } else {
            (&*upstream.authority, path)
        };
        Upstream {
            tls: upstream.tls,
            authority: authority.to_owned(),
            base_path: format!("{path}{below}"),
        }
    }
}

/// A ref, or with `/*` at its end all refs below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefPattern(String);

impl RefPattern {
    /// Reads a pattern of branches.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let plain = text.strip_suffix("/*").unwrap_or(text);
        let is_branch = text.starts_with("refs/heads/") && plain != "refs/heads";
        (is_branch && is_plain_ref(plain)).then(|| Self(text.to_owned()))
    }

    /// Whether it is, or matches, this ref.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        match self.0.strip_suffix('*') {
            Some(above) => name.len() > above.len() && name.starts_with(above),
            None => name == self.0,
        }
    }

    /// Its text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Whether a name is a ref that every server reads alike: the rules of git-check-ref-format(1), and
/// ASCII alone.
#[must_use]
pub fn is_plain_ref(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_graphic() && !b"~^:?*[\\".contains(&b);
    let is_part = |part: &str| {
        !part.is_empty() && !part.starts_with('.') && part.strip_suffix(".lock").is_none()
    };
    name.starts_with("refs/")
        && name.len() <= 255
        && name.bytes().all(is_plain)
        && name.split('/').all(is_part)
        && !name.contains("..")
        && !name.contains("@{")
        && !name.ends_with('.')
}

impl GitRoute {
    /// Whether pushes are refused in any case.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.push.is_empty()
    }

    /// The repositories by the names that the server's API has for them; `None` is a pattern.
    pub fn repository_names<'a>(
        &'a self,
        upstream: &'a Upstream,
    ) -> impl Iterator<Item = Option<&'a str>> {
        let is_one = self.repositories.is_empty();
        let one = is_one.then(|| upstream.base_path.trim_start_matches('/'));
        let paths = self.repositories.iter().map(String::as_str).chain(one);
        paths.map(|path| {
            let name = path.strip_suffix(".git").unwrap_or(path);
            (!name.contains('*')).then_some(name)
        })
    }

    /// Reads the keys of pull requests of a git route's table.
    pub(super) fn read_pull_requests(
        &mut self,
        section: &Section<'_>,
        (kind, upstream): (RouteKind, &Upstream),
        read_secret: impl Fn(&Entry<'_>) -> Option<Secret>,
    ) {
        let forge = section.keyword::<Forge>("pull_request", &[]);
        let report = |key: &'static str, message: String| {
            let place = section.place_of(key);
            section
                .diagnostics
                .report(place.as_ref().unwrap_or(&section.place), message, None);
        };
        let api = section
            .get("api")
            .and_then(|item| item.text_like(UPSTREAM_PATTERN));
        let api = api.and_then(|found| match Upstream::parse(&found.value) {
            Ok(api) => Some(api),
            Err(fault) => {
                report("api", format!("{fault}, found {}", quote(&found.value)));
                None
            }
        });
        let secret = section
            .get("api_secret")
            .and_then(|item| read_secret(&item));
        let base = section
            .get("pull_request_base")
            .and_then(|item| item.text_like(BASE_PATTERN));
        let base = base.map_or_else(|| "main".to_owned(), |found| found.value);
        if !is_plain_ref(&format!("refs/heads/{base}")) {
            report(
                "pull_request_base",
                format!("expected the name of a branch, found {}", quote(&base)),
            );
        }
        let Some(forge) = forge else {
            for key in ["api", "api_secret", "pull_request_base"] {
                if section.get("pull_request").is_none() && section.get(key).is_some() {
                    report(
                        key,
                        format!("{key} needs pull_request = \"github\", \"gitlab\" or \"gitea\""),
                    );
                }
            }
            return;
        };
        if kind != RouteKind::Git {
            // The key itself is refused there.
            return;
        }
        if self.is_read_only() {
            let message = "a pull request needs a branch that is pushed, and the list of refs (push) is empty";
            report("pull_request", message.to_owned());
        }
        let needs_two = forge.value != Forge::Gitlab;
        for name in self.repository_names(upstream).flatten() {
            if !upstream.authority.is_empty()
                && (!name.contains('/') || needs_two && name.matches('/').count() > 1)
            {
                let message = format!(
                    "pull_request = \"{}\" needs repositories of the form \"owner/name\", found {}",
                    forge.value.as_str(),
                    quote(name)
                );
                report("pull_request", message);
            }
        }
        let path = if self.repositories.is_empty() {
            ""
        } else {
            &*upstream.base_path
        };
        self.pull_requests = Some(PullRequests {
            forge: forge.value,
            api: api.unwrap_or_else(|| forge.value.api_of(upstream, path)),
            secret,
            base,
        });
    }

    /// Reads the keys of a git route's table.
    pub(super) fn read(section: &Section<'_>, base: &Self) -> Self {
        let mut git = Self::read_keys(section, base);
        if let Some(user) = section
            .get("user")
            .and_then(|item| item.text_like(USER_PATTERN))
        {
            let is_name = |b: u8| b.is_ascii_alphanumeric() || b"._@+-".contains(&b);
            if !(1..=64).contains(&user.value.len()) || !user.value.bytes().all(is_name) {
                let message = format!(
                    "expected 1 to 64 letters, digits and \"._@+-\", found {}",
                    quote(&user.value)
                );
                section.diagnostics.report(&user.place, message, None);
            }
        }
        git.repositories = read_list(
            section,
            ("repositories", REPOSITORY_PATTERN),
            "the path of a repository below the upstream, such as \"owner/name\", each segment with at most one \"*\"",
            |text| is_repository(text).then(|| text.to_owned()),
        )
        .unwrap_or_default();
        let form = "a branch such as \"refs/heads/next\", or all below one such as \"refs/heads/marshal/*\"";
        if let Some(patterns) = read_list(section, ("push", REF_PATTERN), form, RefPattern::parse) {
            git.push = patterns;
        }
        git
    }

    /// The requests that git's smart protocol makes (gitprotocol-http(5)).
    pub(super) fn requests(&self) -> Vec<AllowedRequest> {
        let mut below: Vec<String> = Vec::new();
        for path in &self.repositories {
            below.push(format!("/{path}"));
            // Servers and people name a repository both ways.
            if path.strip_suffix(".git").is_none() {
                below.push(format!("/{path}.git"));
            }
        }
        if below.is_empty() {
            below.push(String::new());
        }
        let [get, _, post, ..] = METHODS;
        let of_one = |path: String| {
            let lines = [
                format!("{get} {path}/info/refs"),
                format!("{post} {path}/git-upload-pack"),
                format!("{post} {path}/git-receive-pack"),
            ];
            lines.map(|line| AllowedRequest::parse(&line))
        };
        below.into_iter().flat_map(of_one).flatten().collect()
    }
}

/// Reads a list of texts of one form; `None`: the key is absent.
fn read_list<T>(
    section: &Section<'_>,
    (key, pattern): (&'static str, &'static str),
    form: &str,
    read: impl Fn(&str) -> Option<T>,
) -> Option<Vec<T>> {
    let list = section.texts_like(key, pattern)?;
    if list.value.len() > limits::GIT_ROUTE_ENTRIES {
        let message = format!(
            "expected at most {} entries, found {}",
            limits::GIT_ROUTE_ENTRIES,
            list.value.len()
        );
        section.diagnostics.report(&list.place, message, None);
    }
    let mut entries = Vec::new();
    for text in list.value {
        if let Some(entry) = read(&text.value) {
            entries.push(entry);
            continue;
        }
        let message = format!("expected {form}, found {}", quote(&text.value));
        section.diagnostics.report(&text.place, message, None);
    }
    Some(entries)
}

fn is_repository(text: &str) -> bool {
    let is_segment = |segment: &str| {
        let stars = segment.bytes().filter(|b| *b == b'*').count();
        stars <= 1
            && !matches!(segment, "" | "." | "..")
            && segment.bytes().all(|b| b == b'*' || is_path_byte(b))
    };
    text.split('/').all(is_segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_a_branch_or_all_below_one() {
        let check = |pattern: &str, name: &str, expect: bool| {
            let pattern = RefPattern::parse(pattern).expect("a pattern");
            assert_eq!(pattern.matches(name), expect, "{pattern:?} {name}");
        };
        check("refs/heads/marshal/*", "refs/heads/marshal/a", true);
        check("refs/heads/marshal/*", "refs/heads/marshal/a/b", true);
        check("refs/heads/marshal/*", "refs/heads/marshal/", false);
        check("refs/heads/marshal/*", "refs/heads/marshal", false);
        check("refs/heads/marshal/*", "refs/heads/marshals/a", false);
        check("refs/heads/next", "refs/heads/next", true);
        check("refs/heads/next", "refs/heads/next/a", false);
        for bad in [
            "",
            "main",
            "refs/heads",
            "refs/heads/",
            "refs/tags/*",
            "refs/*",
            "refs/heads/*",
            "refs/heads/a*",
            "refs/heads/*/a",
            "refs/heads/**",
            "refs/heads/a/../b/*",
            "refs/heads/a.lock",
            "refs/heads/.a",
            "refs/heads/a b",
            "refs/heads/a@{1}",
            "refs/heads/\u{e9}",
        ] {
            assert_eq!(RefPattern::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_api_of_a_server_follows_from_its_software() {
        let api = |forge: Forge, upstream: &str, path: &str| {
            let upstream = Upstream::parse(upstream).expect("good");
            forge.api_of(&upstream, path).to_string()
        };
        assert_eq!(
            api(Forge::Github, "https://github.com", ""),
            "https://api.github.com"
        );
        assert_eq!(
            api(Forge::Github, "https://git.example.com", ""),
            "https://git.example.com/api/v3"
        );
        assert_eq!(
            api(Forge::Gitlab, "https://gitlab.com", ""),
            "https://gitlab.com/api/v4"
        );
        assert_eq!(
            api(Forge::Gitea, "http://127.0.0.1:3000/git", "/git"),
            "http://127.0.0.1:3000/git/api/v1"
        );
    }

    #[test]
    fn a_repository_has_three_requests_under_each_of_its_names() {
        let route = |repositories: &[&str]| GitRoute {
            repositories: repositories.iter().map(|&path| path.to_owned()).collect(),
            ..GitRoute::default()
        };
        let lines = |git: &GitRoute| -> Vec<String> {
            git.requests().iter().map(ToString::to_string).collect()
        };
        assert_eq!(
            lines(&route(&[])),
            [
                "GET /info/refs",
                "POST /git-upload-pack",
                "POST /git-receive-pack"
            ]
        );
        assert_eq!(lines(&route(&["a/b.git"])).len(), 3);
        let both = lines(&route(&["a/b"]));
        assert_eq!(both.len(), 6);
        assert!(both.contains(&"POST /a/b.git/git-receive-pack".to_owned()));
        assert!(["a/b", "a/*", "x.git"].into_iter().all(is_repository));
        for bad in ["", "/a", "a/", "a//b", "a/../b", "a/**", "a b", "a%2fb"] {
            assert!(!is_repository(bad), "{bad}");
        }
    }
}
