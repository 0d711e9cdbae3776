//! Requests that are refused, and the form of the error.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::api::api_daemon::{ApiDaemon, POOL};

#[test]
fn without_a_token_nothing_is_seen_and_an_approvers_is_for_asks_only() {
    let api = ApiDaemon::of(POOL);
    let approvers = api.drill.state().join("approvers");
    fs::create_dir(&approvers).expect("approvers");
    let file = approvers.join("ops");
    fs::write(&file, "o".repeat(40)).expect("a token");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("mode");
    let document = api.see("/openapi.json");
    let paths = document["paths"].as_object().expect("paths");
    let wrong = format!("Authorization: Bearer {}", "0".repeat(64));
    let other = format!("Authorization: Bearer {}", "o".repeat(40));
    for (path, operations) in paths {
        for method in operations.as_object().expect("operations").keys() {
            let line = format!("{} {path}", method.to_uppercase());
            api.plain(&line, &[], "").assert_problem(401);
            api.plain(&line, &[&wrong], "").assert_problem(401);
            let response = api.plain(&line, &[&other], "");
            // Who it is, is its own: a page needs that to know what to show.
            if path.starts_with("/api/v1/approvals") || path == "/api/v1/caller" {
                assert!(
                    !matches!(response.status, 401 | 403),
                    "{line}: {response:?}"
                );
            } else {
                response.assert_problem(403);
            }
        }
    }
    api.plain("GET /api/v1/nothing", &[], "")
        .assert_problem(401);
}

#[test]
fn what_is_not_there_or_not_right_is_told_as_a_problem() {
    let api = ApiDaemon::of(POOL);
    for path in [
        "/nothing",
        "/pools/none",
        "/pools/%ff",
        "/slots/demo/2",
        "/slots/demo/x",
        "/sessions/none",
        "/sessions/none/events",
        "/tasks/none",
        "/tasks/none:none",
        "/approvals/none",
    ] {
        api.get(path).assert_problem(404);
    }
    for path in [
        "/fleet?x=1",
        "/pools?limit=0",
        "/pools?limit=501",
        "/pools?limit=1&limit=2",
        "/pools?limit=%2B1",
        "/sessions?open=yes",
        "/sessions?pool=none",
        "/sessions?cursor=",
        "/sessions?cursor=%20",
        "/tasks?state=odd",
        "/tasks?cursor=x",
        "/slots?state=odd",
        "/approvals?ended=1",
        "/approvals?cursor=x",
        "/events?kind=odd",
        "/events?after=x",
    ] {
        api.get(path).assert_problem(400);
    }
    let bearer = format!("Authorization: Bearer {}", api.token);
    let wrong = api.plain("DELETE /api/v1/fleet", &[&bearer], "");
    wrong.assert_problem(405);
    assert_eq!(wrong.header("allow"), Some("GET, HEAD"));
    let head = api.plain("HEAD /api/v1/fleet", &[&bearer], "");
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    api.plain("POST /api/v1/approvals/a-1", &[&bearer], "{}")
        .assert_problem(415);
    api.post("/approvals/a-1", &" ".repeat(70_000))
        .assert_problem(413);
    for body in [
        "",
        "[]",
        "{",
        "{\"decision\":\"allow\",\"x\":1}",
        "{\"decision\":\"yes\"}",
    ] {
        api.post("/approvals/a-1", body).assert_problem(400);
    }
    api.post("/approvals/a-1", "{\"decision\":\"allow\"}")
        .assert_problem(404);
}

#[test]
fn the_file_is_read_again_and_what_needs_a_start_is_told() {
    let mut api = ApiDaemon::of(POOL);
    let reload = |api: &ApiDaemon| {
        let read = api.post("/config/reload", "");
        assert_eq!(read.status, 200, "{read:?}");
        read.json()
    };
    let keys = |read: &Value, key: &str| -> Vec<String> {
        let keys = read[key].as_array().expect("keys").iter();
        keys.map(|key| key.as_str().expect("text").to_owned())
            .collect()
    };
    let read = reload(&api);
    assert_eq!(read["config"], true, "{read}");
    assert!(keys(&read, "taken").is_empty() && keys(&read, "restart").is_empty());
    let config = api.drill.config();
    let before = fs::read_to_string(&config).expect("read");
    // What is wrong changes nothing, and is told.
    fs::write(&config, format!("{before}\n[role.bad]\npool = \"none\"\n")).expect("written");
    let refused = api.post("/config/reload", "");
    refused.assert_problem(422);
    assert!(refused.text.contains("role.bad"), "{refused:?}");
    let chat = |api: &ApiDaemon, place: &str, role: &str| {
        let body = json!({"goal": "say x", "role": role}).to_string();
        api.post(&format!("/workspaces/{place}/chats"), &body)
            .status
    };
    assert_eq!(chat(&api, "main", "late"), 422);
    assert_eq!(chat(&api, "more", "dev"), 404);
    let token = "late-late-late-late-late-late-late-late";
    // The token stands in a directory that becomes a workspace with it.
    fs::create_dir(api.drill.path("doors")).expect("made");
    let file = api.drill.path("doors/late.token");
    fs::write(&file, token).expect("written");
    let mode = fs::Permissions::from_mode(0o600);
    fs::set_permissions(&file, mode).expect("mode");
    fs::create_dir(api.drill.path("project/more")).expect("made");
    let file = |api: &ApiDaemon, path: &str| api.get(&format!("/workspaces/{path}")).status;
    assert_eq!(file(&api, "more/files"), 404);
    let after = before.replace("size = 2", "size = 1");
    let after = after.replace("guard = \"policy\"", "guard = \"policy\"\nattempts = 2");
    let more = "[role.late]\npool = \"demo\"\n[workspace.more]\npath = \"project/more\"\n\
                [workspace.doors]\npath = \"doors\"\n\
                [chat]\nidle = \"20m\"\n[token.late]\nfile = \"doors/late.token\"\nrole = \"read\"\n\
                [pool.other]\nsize = 1\nagent = \"script\"\nlauncher = \"none\"\n\
                network = \"host\"\nguard = \"policy\"\nworkspace = { path = \"project\", mode = \"copy\" }\n";
    fs::write(&config, format!("{after}\n{more}")).expect("written");
    let read = reload(&api);
    assert_eq!(read["config"], false, "{read}");
    assert_eq!(
        keys(&read, "taken"),
        [
            "chat.idle",
            "pool.demo.size",
            "role.late",
            "token",
            "workspace.doors",
            "workspace.more"
        ],
        "{read}"
    );
    assert_eq!(keys(&read, "restart"), ["pool.demo.attempts", "pool.other"]);
    assert_eq!(api.see("/pools/demo")["size"], 1);
    assert_eq!(chat(&api, "more", "late"), 201);
    assert_eq!(file(&api, "more/files"), 200);
    assert_eq!(file(&api, "doors/files/late.token"), 403);
    let held = json!({"prompt": "say x", "workspace": "doors"}).to_string();
    let held = api.post("/tasks", &held);
    assert!(
        held.text.contains("a credential of the supervisor"),
        "{held:?}"
    );
    let names = api.see("/workspaces").to_string();
    assert!(names.contains("more") && names.contains("doors"), "{names}");
    let shown = api.see("/config");
    assert_eq!(shown["chat"]["idle"], "20m", "{shown}");
    assert_eq!(shown["pool"]["demo"]["attempts"], 1, "{shown}");
    let owner = std::mem::replace(&mut api.token, token.to_owned());
    assert_eq!(api.get("/fleet").status, 200);
    api.token = owner;
    // It was taken over: only the rest differs, until it is taken back.
    assert_eq!(keys(&reload(&api), "taken"), [""; 0]);
    fs::write(&config, &before).expect("written");
    let read = reload(&api);
    assert_eq!(read["config"], true, "{read}");
    assert_eq!(chat(&api, "more", "late"), 404);
    assert_eq!(file(&api, "more/files"), 404);
    assert_eq!(api.see("/pools/demo")["size"], 2);
    api.token = token.to_owned();
    assert_eq!(api.get("/fleet").status, 401);
}

#[test]
fn policies_alone_are_read_again() {
    let api = ApiDaemon::of(POOL);
    let read = api.post("/policies/reload", "");
    assert_eq!(read.status, 200, "{read:?}");
    assert_eq!(read.json()["last_reload"]["cause"], "request");
}

#[test]
fn an_error_has_a_code_and_its_type_leads_to_the_list() {
    let api = ApiDaemon::of(POOL);
    for (path, status, code) in [
        ("/tasks/none:none", 404, "not_found"),
        ("/tasks?unknown=1", 400, "invalid_request"),
        ("/nowhere", 404, "not_found"),
    ] {
        let response = api.get(path);
        response.assert_problem(status);
        let problem = response.json();
        assert_eq!(problem["code"], code, "{problem}");
        let kind = problem["type"].as_str().expect("a type");
        let (page, name) = kind.split_once('#').expect("a place on a page");
        assert_eq!(name, code);
        let (status, text) = crate::drill::get(&api.address, page);
        assert_eq!(status, 200, "{text}");
        assert!(text.contains(&format!("| `{code}` |")), "{text}");
    }
}

#[test]
fn a_request_has_an_id_which_may_be_the_clients() {
    let api = ApiDaemon::of(POOL);
    let own = api.plain("GET /healthz", &["X-Request-Id: of.the-client_1"], "");
    assert_eq!(own.header("x-request-id"), Some("of.the-client_1"));
    let mut seen = std::collections::BTreeSet::new();
    let long = format!("X-Request-Id: {}", "x".repeat(65));
    for head in [
        &[][..],
        &["X-Request-Id: a b"],
        &["X-Request-Id: "],
        &[&long],
    ] {
        let response = api.plain("GET /healthz", head, "");
        let id = response.header("x-request-id").expect("an id").to_owned();
        assert_eq!(id.len(), 36, "{id}");
        assert!(seen.insert(id), "{head:?}");
    }
    let task = api.post("/tasks", r#"{"prompt": "say made"}"#);
    let place = task.header("location").expect("a place").to_owned();
    let made = api.plain(
        &format!("GET {place}"),
        &[&format!("Authorization: Bearer {}", api.token)],
        "",
    );
    assert_eq!(
        (made.status, made.json()["id"].clone()),
        (200, task.json()["id"].clone())
    );
    let workspace = api.see("/workspaces/main");
    assert_eq!(workspace["name"], "main");
    api.get("/workspaces/none").assert_problem(404);
}
