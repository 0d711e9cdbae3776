//! Requests, redirects and pages of registries: what passes, what is refused, what is rewritten.

use super::*;
use hyper::header::HeaderValue;
use marshal_config::{Config, Origin};

fn route(registry: &str, keys: &str) -> Route {
    let text = format!(
        "[pool.demo]\nagent = \"script\"\n[route.own]\nkind = \"registry\"\nregistry = \"{registry}\"\nport = 9000\n{keys}\n"
    );
    let config = Config::parse(&text, &Origin::built_in("/".into())).expect("good");
    config.routes["own"].clone()
}

fn ask(route: &Route, method: &str, target: &str) -> Result<RegistryTarget, Refusal> {
    let uri: Uri = target.parse().expect("a path");
    check_registry_request(route, method, &uri, false)
}

/// The URL outside and what is read there, or the reason.
fn outcome(route: &Route, target: &str) -> String {
    match ask(route, "GET", target) {
        Ok(to) => format!("{} {}", REGISTRY_CONTENTS[to.content.index()], to.url()),
        Err(refusal) => refusal.reason_code().to_owned(),
    }
}

#[test]
fn pages_and_files_of_packages_pass_and_keep_their_paths() {
    let npm = route("npm", "upstream = \"https://n.example/api/npm\"");
    let pypi = route("pypi", "");
    let crates = route("crates", "");
    let debian = route("debian", "");
    for (route, target, expect) in [
        (
            &npm,
            "/api/npm/is-odd",
            "page https://n.example/api/npm/is-odd",
        ),
        (
            &npm,
            "/api/npm/is-odd/3.0.1",
            "page https://n.example/api/npm/is-odd/3.0.1",
        ),
        (
            &npm,
            "/api/npm/@types%2fnode",
            "page https://n.example/api/npm/@types%2fnode",
        ),
        (
            &npm,
            "/api/npm/%40types%2Fnode",
            "page https://n.example/api/npm/%40types%2Fnode",
        ),
        (
            &npm,
            "/api/npm/@types/node",
            "page https://n.example/api/npm/@types/node",
        ),
        (
            &npm,
            "/api/npm/is-odd/-/is-odd-3.0.1.tgz",
            "file https://n.example/api/npm/is-odd/-/is-odd-3.0.1.tgz",
        ),
        (
            &npm,
            "/-/host/registry.npmjs.org/is-odd/-/is-odd-3.0.1.tgz",
            "host",
        ),
        (
            &route("npm", ""),
            "/-/host/registry.npmjs.org/is-odd/-/is-odd-3.0.1.tgz",
            "file https://registry.npmjs.org/is-odd/-/is-odd-3.0.1.tgz",
        ),
        (
            &npm,
            "/-/host/n.example/x/a.tgz",
            "file https://n.example/x/a.tgz",
        ),
        (&pypi, "/simple/six/", "page https://pypi.org/simple/six/"),
        (&pypi, "/simple/six", "page https://pypi.org/simple/six"),
        (
            &pypi,
            "/-/host/files.pythonhosted.org/packages/a/b/torch-2.0%2Bcpu-py3-none-any.whl.metadata",
            "file https://files.pythonhosted.org/packages/a/b/torch-2.0%2Bcpu-py3-none-any.whl.metadata",
        ),
        (
            &crates,
            "/config.json",
            "page https://index.crates.io/config.json",
        ),
        (
            &crates,
            "/it/oa/itoa",
            "page https://index.crates.io/it/oa/itoa",
        ),
        (&crates, "/3/s/syn", "page https://index.crates.io/3/s/syn"),
        (&crates, "/1/a", "page https://index.crates.io/1/a"),
        (
            &crates,
            "/-/host/static.crates.io/crates/itoa/1.0.0+x/download",
            "file https://static.crates.io/crates/itoa/1.0.0+x/download",
        ),
        (
            &debian,
            "/debian/dists/bookworm/InRelease",
            "file https://deb.debian.org/debian/dists/bookworm/InRelease",
        ),
        (
            &debian,
            "/debian/pool/main/g/gcc/libstdc%2b%2b6_12.2.0-14%2bdeb12u1_amd64.deb",
            "file https://deb.debian.org/debian/pool/main/g/gcc/libstdc%2b%2b6_12.2.0-14%2bdeb12u1_amd64.deb",
        ),
        (
            &debian,
            "/-/host/security.debian.org/debian-security/dists/x/InRelease",
            "file https://security.debian.org/debian-security/dists/x/InRelease",
        ),
    ] {
        assert_eq!(outcome(route, target), expect, "{target}");
    }
}

#[test]
fn what_is_no_package_is_refused() {
    let npm = route("npm", "");
    let pypi = route("pypi", "");
    let crates = route("crates", "");
    let debian = route("debian", "");
    for (route, target, reason) in [
        (&npm, "/-/whoami", "not_allowed"),
        (&npm, "/-/npm/v1/tokens", "not_allowed"),
        (&npm, "/-/v1/login", "not_allowed"),
        (&npm, "/-/user/org.couchdb.user:me", "not_allowed"),
        (&npm, "/-/package/is-odd/dist-tags", "not_allowed"),
        (&npm, "/-/host/registry.npmjs.org/-/whoami", "not_allowed"),
        (&npm, "/-/host/registry.npmjs.org", "not_allowed"),
        (&npm, "/_session", "not_allowed"),
        (&npm, "/.env", "not_allowed"),
        (&npm, "/", "not_allowed"),
        (&npm, "/a/b/c", "not_allowed"),
        (&npm, "/is-odd?write=true", "query"),
        (&npm, "/@a%2f..%2fb", "path"),
        (&npm, "/@a%2fb%2fc", "path"),
        (&npm, "/a%2fb", "path"),
        (&npm, "/%2e%2e/x", "path"),
        (&npm, "/a/../b", "path"),
        (&npm, "/a//b", "path"),
        (&npm, "/a;b", "path"),
        (&npm, "/a%00", "path"),
        (&npm, "/a%+5", "path"),
        (&npm, "/a%2", "path"),
        (&npm, "/-/host/evil.example/a.tgz", "host"),
        (&npm, "/-/host/user@registry.npmjs.org/a.tgz", "path"),
        (&npm, "/-/host/127.0.0.1:80/a.tgz", "host"),
        (&npm, "/-/host/registry.npmjs.org:8443/a.tgz", "host"),
        (&pypi, "/manage/projects/", "not_allowed"),
        (&pypi, "/simple/", "not_allowed"),
        (&pypi, "/simple/six/x/", "not_allowed"),
        (&pypi, "/legacy/", "not_allowed"),
        (&pypi, "/simple/six%2f", "path"),
        (&crates, "/api/v1/me", "not_allowed"),
        (&crates, "/-/host/crates.io/api/v1/crates", "not_allowed"),
        (&crates, "/it/ob/itoa", "not_allowed"),
        (&crates, "/me", "not_allowed"),
        (&debian, "/debian/", "not_allowed"),
        (&debian, "/debian/dists/", "not_allowed"),
        (&debian, "/admin/x", "not_allowed"),
    ] {
        assert_eq!(outcome(route, target), reason, "{target}");
    }
    let long = format!("/-/host/{}.example/a.tgz", "a".repeat(300));
    assert_eq!(outcome(&npm, &long), "path");
    let refusal = ask(&npm, "GET", "/-/host/evil.example/a.tgz").expect_err("refused");
    assert_eq!(refusal.denied_host.as_deref(), Some("evil.example"));
    assert!(
        refusal.message.contains("evil.example") && refusal.message.contains("route.own.hosts")
    );
    for method in [
        "PUT", "POST", "DELETE", "PATCH", "OPTIONS", "PROPFIND", "get",
    ] {
        let refusal = ask(&npm, method, "/is-odd").expect_err(method);
        assert_eq!(refusal.status, 405);
        assert!(
            refusal.message.contains("publishing is not possible"),
            "{}",
            refusal.message
        );
        assert!(refusal.message.contains("route own"), "{}", refusal.message);
    }
    let uri: Uri = "/is-odd".parse().expect("a path");
    let refusal = check_registry_request(&npm, "GET", &uri, true).expect_err("a body");
    assert_eq!(refusal.reason, Some(Why::Body));
}

#[test]
fn redirects_lead_to_hosts_of_the_route_over_tls_and_nowhere_else() {
    let pypi = route("pypi", "");
    let from = ask(&pypi, "GET", "/simple/Six/").expect("allowed");
    let follow = |location: &str| match follow_redirect(&pypi, &from, Some(location.as_bytes())) {
        Ok(to) => format!("{} {}", to.url(), to.gets_key(&pypi)),
        Err(refusal) => refusal.reason_code().to_owned(),
    };
    for (location, expect) in [
        (
            "https://files.pythonhosted.org/a?x=1&y=%2f#z",
            "https://files.pythonhosted.org/a?x=1&y=%2f false",
        ),
        (
            "HTTPS://PyPI.org:443/simple/six/",
            "https://pypi.org/simple/six/ true",
        ),
        (
            "//files.pythonhosted.org",
            "https://files.pythonhosted.org/ false",
        ),
        ("/simple/six/", "https://pypi.org/simple/six/ true"),
        ("../six/", "https://pypi.org/simple/six/ true"),
        ("../../../../x/./y/..", "https://pypi.org/x/ false"),
        ("?a=b", "https://pypi.org/simple/Six/?a=b false"),
        (
            "/packages/six.whl",
            "https://pypi.org/packages/six.whl true",
        ),
        (
            "/packages/six.whl?token=1",
            "https://pypi.org/packages/six.whl?token=1 false",
        ),
        ("https://evil.example/a", "host"),
        ("https://pypi.org.evil.example/a", "host"),
        ("https://pypi.org:8443/a", "host"),
        ("https://127.0.0.1/a", "host"),
        ("https://pypi.org@evil.example/a", "path"),
        ("https://user:pw@pypi.org/a", "path"),
        ("http://pypi.org/a", "redirect"),
        ("http://evil.example/a", "host"),
        ("file:///etc/passwd", "redirect"),
        ("javascript:x", "redirect"),
        ("", "redirect"),
        ("/a b", "redirect"),
        ("/a\r\nb", "redirect"),
    ] {
        assert_eq!(follow(location), expect, "{location}");
    }
    assert!(follow_redirect(&pypi, &from, None).is_err());
    // On this host only from an upstream that is there, too.
    let here = route(
        "npm",
        "upstream = \"http://127.0.0.1:8001\"\nhosts = [\"127.0.0.1:8002\"]",
    );
    let from = ask(&here, "GET", "/a").expect("allowed");
    let to = follow_redirect(&here, &from, Some(b"http://127.0.0.1:8002/a.tgz")).expect("allowed");
    assert_eq!(
        (to.url().as_str(), to.gets_key(&here)),
        ("http://127.0.0.1:8002/a.tgz", false)
    );
    assert!(follow_redirect(&here, &from, Some(b"http://127.0.0.1:8003/")).is_err());
}

#[test]
fn the_key_is_for_the_packages_of_one_registry_and_not_for_its_whole_host() {
    let at = |registry: &str, base: &str, target: &str| {
        let own = route(
            registry,
            &format!("upstream = \"https://forge.example{base}\"\nsecret = \"env:KEY\""),
        );
        let to = ask(&own, "GET", target);
        to.map(|to| to.gets_key(&own)).ok()
    };
    let npm = "/api/npm/team-a";
    for (registry, base, target, expect) in [
        ("npm", npm, "/api/npm/team-a/left-pad", Some(true)),
        ("npm", npm, "/api/npm/team-a/a/-/a-1.0.0.tgz", Some(true)),
        ("npm", npm, "/api/npm/team-b/a/-/a-1.0.0.tgz", Some(false)),
        ("npm", npm, "/releases/product-src.tgz", Some(false)),
        ("npm", npm, "/api/npm/team-b/left-pad", None),
        (
            "pypi",
            "/p/1/pypi/simple",
            "/p/1/pypi/files/a.whl",
            Some(true),
        ),
        (
            "pypi",
            "/p/1/pypi/simple",
            "/p/2/pypi/files/a.whl",
            Some(false),
        ),
        (
            "pypi",
            "/p/1/pypi/simple",
            "/p/1/repository/archive.zip",
            Some(false),
        ),
        (
            "crates",
            "/c/index",
            "/c/api/v1/crates/a/1.0.0/download",
            Some(true),
        ),
        (
            "crates",
            "/c/index",
            "/d/api/v1/crates/a/1.0.0/download",
            Some(false),
        ),
        ("debian", "/debian", "/debian/pool/main/a/a.deb", Some(true)),
        (
            "debian",
            "/debian",
            "/private/pool/main/a/a.deb",
            Some(false),
        ),
        ("npm", "", "/a/-/a-1.0.0.tgz", Some(true)),
    ] {
        assert_eq!(at(registry, base, target), expect, "{registry} {target}");
    }
}

/// A page, rewritten whole and in pieces of any size.
fn rewritten(route: &Route, page: &str) -> String {
    let in_pieces = |size: usize| {
        let mut rewriter = PageRewriter::new(route, RegistryContent::Page).expect("a page");
        let mut out = Vec::new();
        for piece in page.as_bytes().chunks(size) {
            out.extend(rewriter.feed(piece).expect("a page"));
            assert!(
                rewriter.pending.len() <= LOOK_AHEAD,
                "{}",
                rewriter.pending.len()
            );
        }
        out.extend(rewriter.finish().expect("a page"));
        String::from_utf8(out).expect("UTF-8")
    };
    let whole = in_pieces(page.len().max(1));
    for size in [1, 2, 7, 64] {
        assert_eq!(in_pieces(size), whole, "in pieces of {size}");
    }
    whole
}

#[test]
fn pages_lead_back_through_the_route() {
    const INSIDE: &str = "http://127.0.0.1:9000";
    let npm = route("npm", "");
    for (page, expect) in [
        (
            "{\"dist\":{\"tarball\":\"https://registry.npmjs.org/a/-/a-1.tgz\"}}",
            format!("{{\"dist\":{{\"tarball\":\"{INSIDE}/a/-/a-1.tgz\"}}}}"),
        ),
        (
            "\"tarball\" : \"https://REGISTRY.npmjs.org:443/a.tgz\"",
            format!("\"tarball\" : \"{INSIDE}/a.tgz\""),
        ),
        (
            "\"tarball\":\"http://evil.example/a.tgz\"",
            format!("\"tarball\":\"{INSIDE}/-/host/evil.example/a.tgz\""),
        ),
        (
            "\"homepage\":\"https://registry.npmjs.org/a\"",
            "\"homepage\":\"https://registry.npmjs.org/a\"".to_owned(),
        ),
        (
            "\"readme\":\"\\\"tarball\\\":\\\"https://a.example/\\\"\"",
            "\"readme\":\"\\\"tarball\\\":\\\"https://a.example/\\\"\"".to_owned(),
        ),
        (
            "\"tarball\":\"https://u:p@a.example/x\"",
            "\"tarball\":\"https://u:p@a.example/x\"".to_owned(),
        ),
        (
            "\"tarball\":\"ftp://a.example/x\",\"tarball\":7,\"tarball\"",
            "\"tarball\":\"ftp://a.example/x\",\"tarball\":7,\"tarball\"".to_owned(),
        ),
        ("", String::new()),
    ] {
        assert_eq!(rewritten(&npm, page), expect);
    }
    // A mirror's pages that still name the public registry.
    let public = "\"tarball\":\"https://registry.npmjs.org/a/-/a-1.tgz\"";
    let mirror = "upstream = \"https://n.example/api/npm\"";
    let inside = |path: &str| format!("\"tarball\":\"{INSIDE}{path}/a/-/a-1.tgz\"");
    assert_eq!(rewritten(&route("npm", mirror), public), inside("/api/npm"));
    let hosts = format!("{mirror}\nhosts = [\"registry.npmjs.org\"]");
    let beside = inside("/-/host/registry.npmjs.org");
    assert_eq!(rewritten(&route("npm", &hosts), public), beside);
    let long = format!("\"tarball\":\"https://{}", "a".repeat(2000));
    assert_eq!(rewritten(&npm, &long), long);
    let pypi = route("pypi", "");
    assert_eq!(
        rewritten(
            &pypi,
            "<a href=\"https://files.pythonhosted.org/p/six.whl#sha256=1\">six</a><a href='../../p/x.whl'>x</a>{\"url\": \"https://pypi.org/x.whl\"}"
        ),
        format!(
            "<a href=\"{INSIDE}/-/host/files.pythonhosted.org/p/six.whl#sha256=1\">six</a><a href='../../p/x.whl'>x</a>{{\"url\": \"{INSIDE}/x.whl\"}}"
        )
    );
    assert!(PageRewriter::new(&npm, RegistryContent::File).is_none());
    assert!(PageRewriter::new(&route("crates", ""), RegistryContent::Page).is_none());
}

#[test]
fn a_cargo_registry_says_only_where_its_files_are() {
    let crates = route("crates", "");
    let read = |page: &str| {
        let mut rewriter =
            PageRewriter::new(&crates, RegistryContent::CargoConfig).expect("a page");
        for byte in page.as_bytes() {
            assert!(rewriter.feed(&[*byte])?.is_empty());
        }
        Ok(String::from_utf8(rewriter.finish()?).expect("UTF-8"))
    };
    assert_eq!(
        read(
            "{\"dl\":\"https://static.crates.io/crates/{crate}\",\"api\":\"https://crates.io\",\"auth-required\":true}"
        ),
        Ok("{\"dl\":\"http://127.0.0.1:9000/-/host/static.crates.io/crates/{crate}\"}".to_owned())
    );
    assert_eq!(
        read("{\"dl\":\"https://index.crates.io:443/api/v1/crates\"}"),
        Ok("{\"dl\":\"http://127.0.0.1:9000/api/v1/crates\"}".to_owned())
    );
    for bad in [
        "",
        "[]",
        "{}",
        "{\"dl\":7}",
        "{\"dl\":\"/crates\"}",
        "{\"dl\":\"https://a@b/c\"}",
    ] {
        assert_eq!(read(bad), Err(PageError), "{bad}");
    }
    assert_eq!(read(&" ".repeat(REGISTRY_CONFIG_BYTES + 1)), Err(PageError));
}

#[test]
fn few_headers_pass() {
    let mut headers = HeaderMap::new();
    for name in [
        "accept",
        "user-agent",
        "if-none-match",
        "if-modified-since",
        "range",
        "if-range",
        "authorization",
        "cookie",
        "npm-otp",
        "npm-session",
        "x-forwarded-host",
        "accept-encoding",
        "content-type",
        "proxy-authorization",
        "pragma",
    ] {
        headers.append(name, HeaderValue::from_static("x"));
    }
    let names = |may_be_part| {
        let passed = registry_headers(&headers, may_be_part);
        let mut names: Vec<String> = passed.keys().map(ToString::to_string).collect();
        names.sort_unstable();
        names.join(" ")
    };
    assert_eq!(
        names(false),
        "accept if-modified-since if-none-match user-agent"
    );
    assert_eq!(
        names(true),
        "accept if-modified-since if-none-match if-range range user-agent"
    );
}

proptest::proptest! {
    #[test]
    fn no_page_and_no_path_panics(page in "[\"a-z:/ =']{0,80}", path in "/[a-z0-9%/@.-]{0,40}") {
        let npm = route("npm", "");
        rewritten(&npm, &format!("\"tarball\"{page}"));
        if let Ok(uri) = path.parse::<Uri>() {
            let _ = check_registry_request(&npm, "GET", &uri, false);
        }
    }
}
