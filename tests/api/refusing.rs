//! What is refused, and how it is said.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use crate::door::{Door, POOL};

#[test]
fn without_a_token_nothing_is_seen_and_an_approvers_is_for_asks_only() {
    let door = Door::of(POOL);
    let approvers = door.drill.state().join("approvers");
    fs::create_dir(&approvers).expect("approvers");
    let file = approvers.join("ops");
    fs::write(&file, "o".repeat(40)).expect("a token");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("mode");
    let document = door.see("/openapi.json");
    let paths = document["paths"].as_object().expect("paths");
    let wrong = format!("Authorization: Bearer {}", "0".repeat(64));
    let other = format!("Authorization: Bearer {}", "o".repeat(40));
    for (path, operations) in paths {
        for method in operations.as_object().expect("operations").keys() {
            let line = format!("{} {path}", method.to_uppercase());
            door.plain(&line, &[], "").assert_problem(401);
            door.plain(&line, &[&wrong], "").assert_problem(401);
            let said = door.plain(&line, &[&other], "");
            if path.starts_with("/api/v1/asks") {
                assert!(!matches!(said.status, 401 | 403), "{line}: {said:?}");
            } else {
                said.assert_problem(403);
            }
        }
    }
    door.plain("GET /api/v1/nothing", &[], "")
        .assert_problem(401);
}

#[test]
fn what_is_not_there_or_not_right_is_told_as_a_problem() {
    let door = Door::of(POOL);
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
        "/asks/none",
    ] {
        door.get(path).assert_problem(404);
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
        "/asks?over=1",
        "/asks?cursor=x",
        "/events?kind=odd",
        "/events?after=x",
    ] {
        door.get(path).assert_problem(400);
    }
    let bearer = format!("Authorization: Bearer {}", door.token);
    let wrong = door.plain("DELETE /api/v1/fleet", &[&bearer], "");
    wrong.assert_problem(405);
    assert_eq!(wrong.header("allow"), Some("GET, HEAD"));
    let head = door.plain("HEAD /api/v1/fleet", &[&bearer], "");
    assert_eq!((head.status, head.text.as_str()), (200, ""));
    door.plain("POST /api/v1/asks/a-1", &[&bearer], "{}")
        .assert_problem(415);
    door.post("/asks/a-1", &" ".repeat(70_000))
        .assert_problem(413);
    for body in [
        "",
        "[]",
        "{",
        "{\"decision\":\"allow\",\"x\":1}",
        "{\"decision\":\"yes\"}",
    ] {
        door.post("/asks/a-1", body).assert_problem(400);
    }
    door.post("/asks/a-1", "{\"decision\":\"allow\"}")
        .assert_problem(404);
}

#[test]
fn policies_are_read_again_and_the_configuration_is_not() {
    let door = Door::of(POOL);
    let read = door.post("/config/reload", "");
    assert_eq!(read.status, 200, "{read:?}");
    assert_eq!(read.json()["config"], false);
    let read = door.post("/policies/reload", "");
    assert_eq!(read.status, 200, "{read:?}");
    assert_eq!(read.json()["last_reload"]["cause"], "request");
}
