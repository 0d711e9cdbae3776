//! The requests of git's smart protocol (gitprotocol-http(5)); everything else is refused.

use hyper::header::{self, HeaderMap, HeaderName};

use crate::route::{AllowedRequest, Refusal, match_allow_list};
use marshal_config::Route;
use marshal_telemetry::labels::RouteRefusal as Why;

/// The header by which a client names the version of git's protocol.
const PROTOCOL: HeaderName = HeaderName::from_static("git-protocol");

/// One of the two services of a git server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Service {
    /// Fetches.
    UploadPack,
    /// Pushes.
    ReceivePack,
}

impl Service {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::UploadPack => "git-upload-pack",
            Self::ReceivePack => "git-receive-pack",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [Self::UploadPack, Self::ReceivePack]
            .into_iter()
            .find(|service| service.as_str() == name)
    }
}

/// A request that may pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitRequest {
    /// Whom it asks.
    pub service: Service,
    /// Whether it only asks for the refs; otherwise it has a body.
    pub is_refs: bool,
    /// Its target and its rule.
    pub allowed: AllowedRequest,
}

fn not_allowed(route: &Route, method: &str, path: &str) -> Refusal {
    let of = match route.git.repositories.as_slice() {
        [] => "its one repository".to_owned(),
        paths => paths.join(", "),
    };
    let what = format!(
        "{method} {path} is not allowed by the route {}: it allows fetches and pushes of {of}, by git's smart protocol alone",
        route.name
    );
    Refusal::new(Why::NotAllowed, 403, what)
}

impl GitRequest {
    /// Checks method, path and query.
    ///
    /// # Errors
    /// A [`Refusal`]
    pub fn parse(
        route: &Route,
        method: &str,
        (path, query): (&str, Option<&str>),
    ) -> Result<Self, Refusal> {
        let allowed =
            match_allow_list(route, method, path, query).map_err(|refusal| {
                match refusal.reason {
                    Some(Why::NotAllowed) => not_allowed(route, method, path),
                    _ => refusal,
                }
            })?;
        let (_, last) = path.rsplit_once('/').unwrap_or_default();
        if let Some(service) = Service::parse(last) {
            return Ok(Self {
                service,
                is_refs: false,
                allowed,
            });
        }
        let named = query.and_then(|query| query.strip_prefix("service="));
        let service = named.and_then(Service::parse).ok_or_else(|| {
            let what = format!(
                "the route {} speaks only git's smart protocol: no plain files, no LFS",
                route.name
            );
            Refusal::new(Why::NotAllowed, 403, what)
        })?;
        Ok(Self {
            service,
            is_refs: true,
            allowed,
        })
    }

    /// Checks the headers of its body.
    ///
    /// # Errors
    /// A [`Refusal`]
    pub fn check_body(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        if self.is_refs {
            return Ok(());
        }
        let is_only = |name: HeaderName, value: &str| {
            let mut values = headers.get_all(name).iter();
            values.next().is_some_and(|first| first == value) && values.next().is_none()
        };
        let name = self.service.as_str();
        if !is_only(
            header::CONTENT_TYPE,
            &format!("application/x-{name}-request"),
        ) {
            let what = format!("the content type is not that of a request to {name}");
            return Err(Refusal::new(Why::Body, 415, what));
        }
        let is_plain = !headers.contains_key(header::CONTENT_ENCODING)
            || is_only(header::CONTENT_ENCODING, "identity");
        let is_packed =
            self.service == Service::UploadPack && is_only(header::CONTENT_ENCODING, "gzip");
        if is_plain || is_packed {
            return Ok(());
        }
        let what = "the body is compressed: send it uncompressed";
        Err(Refusal::new(Why::Encoding, 415, what))
    }

    /// The content type of its response.
    #[must_use]
    pub fn response_type(&self) -> String {
        let what = if self.is_refs {
            "advertisement"
        } else {
            "result"
        };
        format!("application/x-{}-{what}", self.service.as_str())
    }

    /// The headers that pass: those that git sends. Others may mean something to a server behind a
    /// gateway. The version of the protocol passes if the proxy knows it: pushes have only one.
    #[must_use]
    pub fn headers(&self, headers: &HeaderMap) -> HeaderMap {
        const PASSED: [HeaderName; 5] = [
            header::ACCEPT,
            header::ACCEPT_LANGUAGE,
            header::USER_AGENT,
            header::CONTENT_TYPE,
            header::CONTENT_ENCODING,
        ];
        let mut passed = HeaderMap::new();
        for name in PASSED {
            if let Some(value) = headers.get(&name) {
                passed.insert(name, value.clone());
            }
        }
        let mut versions = headers.get_all(PROTOCOL).iter();
        if let (Service::UploadPack, Some(version), None) =
            (self.service, versions.next(), versions.next())
            && (version == "version=2" || version == "version=1")
        {
            passed.insert(PROTOCOL, version.clone());
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;
    use marshal_config::{Config, Origin};

    fn route(keys: &str) -> Route {
        let text = format!(
            "[pool.demo]\nagent = \"script\"\n[route.own]\nkind = \"git\"\nupstream = \"http://127.0.0.1:1\"\n{keys}\n"
        );
        let config = Config::parse(&text, &Origin::built_in("/".into())).expect("good");
        config.routes["own"].clone()
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        });
        let mut all = HeaderMap::new();
        for (name, value) in pairs {
            all.append(name, value);
        }
        all
    }

    #[test]
    fn only_the_smart_protocol_of_the_routes_repositories_passes() {
        let own = route("repositories = [\"a/b\"]");
        let ask = |method: &str, path: &str, query: Option<&str>| {
            GitRequest::parse(&own, method, (path, query))
                .map(|request| (request.service, request.is_refs, request.allowed.target))
                .map_err(|refusal| refusal.reason)
        };
        let fetch = Some("service=git-upload-pack");
        let refs = |path: &str| {
            Ok((
                Service::UploadPack,
                true,
                format!("{path}?service=git-upload-pack"),
            ))
        };
        assert_eq!(ask("GET", "/a/b/info/refs", fetch), refs("/a/b/info/refs"));
        assert_eq!(
            ask("GET", "/a/b.git/info/refs", fetch),
            refs("/a/b.git/info/refs")
        );
        let push = (
            Service::ReceivePack,
            false,
            "/a/b/git-receive-pack".to_owned(),
        );
        assert_eq!(ask("POST", "/a/b/git-receive-pack", None), Ok(push));
        for (method, path, query, why) in [
            ("GET", "/a/b/info/refs", None, Why::NotAllowed),
            (
                "GET",
                "/a/b/info/refs",
                Some("service=git-upload-archive"),
                Why::NotAllowed,
            ),
            (
                "GET",
                "/a/b/info/refs",
                Some("service=git-upload-pack&x=1"),
                Why::Query,
            ),
            ("GET", "/a/c/info/refs", fetch, Why::NotAllowed),
            ("GET", "/info/refs", fetch, Why::NotAllowed),
            ("GET", "/a/b/HEAD", None, Why::NotAllowed),
            ("GET", "/a/b/git-upload-pack", None, Why::NotAllowed),
            ("POST", "/a/b/git-upload-archive", None, Why::NotAllowed),
            (
                "POST",
                "/a/b.git/info/lfs/objects/batch",
                None,
                Why::NotAllowed,
            ),
            ("GET", "/a/b/../c/info/refs", fetch, Why::Path),
            ("GET", "/a/b/info%2frefs", fetch, Why::Path),
        ] {
            assert_eq!(ask(method, path, query), Err(Some(why)), "{method} {path}");
        }
        let one = route("");
        let asked = GitRequest::parse(&one, "GET", ("/info/refs", fetch));
        assert!(asked.is_ok_and(|request| request.is_refs));
    }

    #[test]
    fn a_body_has_its_own_type_and_only_fetches_are_compressed() {
        let own = route("");
        let check = |path: &str, pairs: &[(&'static str, &'static str)]| {
            let request = GitRequest::parse(&own, "POST", (path, None)).expect("allowed");
            request
                .check_body(&headers(pairs))
                .map_err(|refusal| refusal.reason)
        };
        let (fetch, push) = ("/git-upload-pack", "/git-receive-pack");
        let of_fetch = ("content-type", "application/x-git-upload-pack-request");
        let of_push = ("content-type", "application/x-git-receive-pack-request");
        let gzip = ("content-encoding", "gzip");
        assert_eq!(check(fetch, &[of_fetch]), Ok(()));
        assert_eq!(check(fetch, &[of_fetch, gzip]), Ok(()));
        assert_eq!(check(push, &[of_push]), Ok(()));
        assert_eq!(
            check(push, &[of_push, ("content-encoding", "identity")]),
            Ok(())
        );
        let encoding = Err(Some(Why::Encoding));
        assert_eq!(check(push, &[of_push, gzip]), encoding);
        assert_eq!(check(fetch, &[of_fetch, gzip, gzip]), encoding);
        assert_eq!(
            check(fetch, &[of_fetch, ("content-encoding", "br")]),
            encoding
        );
        for bad in [
            &[][..],
            &[of_fetch],
            &[of_push, of_push],
            &[of_push, of_fetch],
        ] {
            assert_eq!(check(push, bad), Err(Some(Why::Body)));
        }
    }

    #[test]
    fn a_push_names_no_version_of_the_protocol() {
        let own = route("");
        let check = |path: &str, pairs: &[(&'static str, &'static str)], expect: usize| {
            let request = GitRequest::parse(&own, "POST", (path, None)).expect("allowed");
            let passed = request.headers(&headers(pairs));
            assert_eq!(passed.len(), expect, "{path} {pairs:?}");
        };
        let two = ("git-protocol", "version=2");
        check("/git-upload-pack", &[two], 1);
        check("/git-upload-pack", &[two, two], 0);
        check("/git-upload-pack", &[("git-protocol", "version=2:x")], 0);
        check("/git-receive-pack", &[two], 0);
        // A gateway in front of the upstream may believe these.
        let foreign = [
            "remote-user",
            "x-client-verify",
            "git_protocol",
            "authorization",
        ];
        check("/git-upload-pack", &foreign.map(|name| (name, "admin")), 0);
        let of_git = ["accept", "accept-language", "user-agent", "content-type"];
        check("/git-receive-pack", &of_git.map(|name| (name, "x")), 4);
    }
}
