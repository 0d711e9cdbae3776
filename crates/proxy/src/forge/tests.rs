//! The requests and answers of each server. The fixtures have the fields that its documentation
//! names, with values of our own.

use super::*;

const NEW: NewPullRequest<'_> = NewPullRequest {
    repository: "owner/name",
    head: "marshal/r/t",
    base: "main",
    title: "Fix the parser",
    text: "Two lines.",
};

fn fixture(name: &str) -> Vec<u8> {
    let path = format!(
        "{}/src/forge/fixtures/{name}.json",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read(path).expect(name)
}

#[test]
fn each_server_gets_the_form_of_its_documentation() {
    let check = |forge: Forge, repository: &str, open: (&str, Value), list: &str| {
        let new = NewPullRequest { repository, ..NEW };
        let request = new.open(forge);
        assert_eq!((request.method, &*request.target), ("POST", open.0));
        let body: Value = serde_json::from_str(&request.body).expect("JSON");
        assert_eq!(body, open.1);
        let request = new.list(forge);
        assert_eq!(
            (request.method, &*request.target, &*request.body),
            ("GET", list, "")
        );
    };
    let like_github = json!({
        "title": "Fix the parser", "head": "marshal/r/t", "base": "main", "body": "Two lines.",
    });
    check(
        Forge::Github,
        "owner/name",
        ("/repos/owner/name/pulls", like_github.clone()),
        "/repos/owner/name/pulls?state=open&head=owner%3Amarshal%2Fr%2Ft&base=main",
    );
    check(
        Forge::Gitea,
        "owner/name",
        ("/repos/owner/name/pulls", like_github),
        "/repos/owner/name/pulls?state=open&sort=recentupdate&limit=50",
    );
    check(
        Forge::Gitlab,
        "group/sub/name",
        (
            "/projects/group%2Fsub%2Fname/merge_requests",
            json!({
                "title": "Fix the parser", "source_branch": "marshal/r/t", "target_branch": "main",
                "description": "Two lines.",
            }),
        ),
        "/projects/group%2Fsub%2Fname/merge_requests?state=opened&source_branch=marshal%2Fr%2Ft&target_branch=main",
    );
    let strange = NewPullRequest {
        repository: "o w/a?b#c",
        ..NEW
    };
    assert_eq!(
        strange.open(Forge::Gitea).target,
        "/repos/o%20w/a%3Fb%23c/pulls"
    );
}

#[test]
fn what_is_open_is_named_and_a_conflict_is_told_apart() {
    for (forge, name, conflict) in [
        (Forge::Github, "github", 422),
        (Forge::Gitlab, "gitlab", 409),
        (Forge::Gitea, "gitea", 409),
    ] {
        let opened = NewPullRequest::read_opened(forge, 201, &fixture(&format!("{name}_opened")));
        let opened = opened.expect(name);
        assert_eq!(opened.number, 12);
        assert!(opened.address.starts_with("https://") && opened.address.ends_with("/12"));
        let exists = fixture(&format!("{name}_exists"));
        let exists = NewPullRequest::read_opened(forge, conflict, &exists);
        let Err(ForgeFault::Conflict { message, .. }) = exists else {
            panic!("{name}: {exists:?}");
        };
        assert!(message.contains("already exists"), "{message}");
        let listed = fixture(&format!("{name}_listed"));
        let listed_one = NEW.read_listed(forge, 200, &listed).expect(name);
        assert_eq!(listed_one, Some(opened), "{name}");
        let other = NewPullRequest {
            base: "elsewhere",
            ..NEW
        };
        assert_eq!(other.read_listed(forge, 200, &listed), Ok(None), "{name}");
    }
}

#[test]
fn an_error_is_shown_with_the_message_of_the_server_and_without_its_control_characters() {
    let read = |status: u16, body: &str| {
        let fault = NewPullRequest::read_opened(Forge::Github, status, body.as_bytes());
        fault.expect_err("an error").to_string()
    };
    let unauthorized = read(401, r#"{"message":"Bad credentials"}"#);
    assert!(
        unauthorized.contains("(401): Bad credentials; check the token"),
        "{unauthorized}"
    );
    assert!(read(403, "{}").contains("it does not say why; the token may not"));
    assert!(read(301, "").contains("no redirect is followed"));
    assert!(read(500, "<html>").contains("(500): it does not say why"));
    let field = read(422, r#"{"message":{"base":["does not exist"]}}"#);
    assert!(field.contains("does not exist"), "{field}");
    let evil = read(400, "{\"message\":\"a\\u001b]0;x\\u0007b\\u202e\"}");
    assert!(!evil.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{evil:?}");
    let long = read(400, &json!({"message": "x".repeat(100_000)}).to_string());
    assert!(long.len() < 1_000, "{}", long.len());
    let deep = format!("{{\"message\":{}1{}}}", "[".repeat(100), "]".repeat(100));
    assert!(read(400, &deep).contains("does not say why"));
    for bad in [
        "",
        "[]",
        "{}",
        r#"{"number":"12","html_url":"x"}"#,
        r#"{"number":1}"#,
    ] {
        let fault = NewPullRequest::read_opened(Forge::Github, 201, bad.as_bytes());
        assert_eq!(fault, Err(ForgeFault::Unreadable(201)), "{bad}");
    }
    let not_a_list = NEW.read_listed(Forge::Gitlab, 200, b"{}");
    assert_eq!(not_a_list, Err(ForgeFault::Unreadable(200)));
}
