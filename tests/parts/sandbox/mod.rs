//! What an agent sees and can do inside the sandbox: real namespaces, as root and as an ordinary
//! user.

use marshal_launch as launch;
use marshal_sandbox as sandbox;

use crate::children;

mod container_sandbox;
mod degrade;
mod doctor;
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
mod reflinks;
mod refusals;
mod trees;
mod view;
mod workspace;

pub(crate) use escapes::prober;

#[test]
fn all_of_this_holds_for_an_ordinary_user() {
    children::again_as_ordinary_user("sandbox");
}

#[tokio::test]
async fn the_probe_passes_here() {
    let profile = children::profile();
    let sandbox_spec = sandbox::plan(&sandbox::probe_request(&profile, children::ids())).unwrap();
    launch::probe_shim_plan(
        &children::spawner(),
        sandbox_spec,
        sandbox::limits_of(&profile),
    )
    .await
    .unwrap();
}
