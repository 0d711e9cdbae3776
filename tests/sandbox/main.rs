//! What an agent sees and can do inside the walls: real namespaces, as root and as an ordinary
//! user.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use marshal::{launch, sandbox};

#[path = "../support/children.rs"]
#[allow(dead_code, reason = "shared with other test binaries")]
mod children;
mod degrade;
mod doctor;
mod engine_walls;
#[path = "../support/engines.rs"]
mod engines;
mod escapes;
mod groups;
mod identity;
mod killed;
mod layers;
mod limits;
mod missing;
mod overlay;
mod overlay_apply;
mod overlay_late;
mod overlay_raced;
mod overlay_run;
mod ready;
mod refusals;
mod trees;
mod view;
mod workspace;

#[test]
fn all_of_this_holds_for_an_ordinary_user() {
    children::again_as_ordinary_user("all_of_this_holds_for_an_ordinary_user");
}

#[tokio::test]
async fn the_probe_passes_here() {
    let profile = children::profile();
    let walls = sandbox::plan(&sandbox::probe_request(&profile, children::ids())).unwrap();
    launch::probe(&children::spawner(), walls, sandbox::limits_of(&profile))
        .await
        .unwrap();
}
