//! Registered workspaces that pools name, and further directories of a workspace.

use std::path::Path;

use super::{accepted_by, discovered_origin, explicit_origin, pool, refused_by};
use crate::{Launcher, WorkspaceMode};

const SITE: &str = "[workspace.site]\npath = \"../site\"\nmode = \"worktree\"\nbase = \"main\"\ninclude = [\"local.toml\"]\nsetup = { command = [\"make\"] }\nrepos = [{ path = \"../lib\", at = \"third/lib\" }, { path = \"/srv/docs\", at = \"docs/\", mode = \"ro\" }]\n";

#[test]
fn a_pool_takes_all_of_the_workspace_that_it_names() {
    let named = accepted_by(&explicit_origin(), &(pool("workspace = \"site\"") + SITE));
    let table = SITE.replace("[workspace.site]\n", "");
    let inline = pool("") + "[pool.demo.workspace]\n" + &table;
    let inline = accepted_by(&explicit_origin(), &inline);
    let of = |config: &crate::Config| format!("{:#?}", config.pools[0].workspace);
    assert_eq!(of(&named), of(&inline));
    let workspace = &named.pools[0].workspace;
    assert_eq!(workspace.path, Path::new("/etc/site"));
    assert_eq!(workspace.mode, WorkspaceMode::Worktree);
    let repos = workspace.repos.iter();
    let repos: Vec<_> = repos.map(|of| (&*of.path, &*of.at, of.mode)).collect();
    assert_eq!(
        repos,
        [
            (Path::new("/etc/lib"), "third/lib", WorkspaceMode::Worktree),
            (Path::new("/srv/docs"), "docs", WorkspaceMode::Ro)
        ]
    );
}

#[test]
fn what_a_launcher_cannot_do_is_said_of_the_pool_that_has_it() {
    let none = "workspace = \"site\"\nlauncher = \"none\"";
    let site = "[workspace.site]\npath = \"src\"\nmode = \"rw\"\n";
    let config = accepted_by(&explicit_origin(), &(pool(none) + site));
    assert_eq!(config.pools[0].launcher, Launcher::None);
    assert!(config.pools[0].workspace.mask.is_empty());
    let refused = |text: &str, why: &str| refused_by(&explicit_origin(), text, why);
    let masked = format!("{site}mask = [\"x\"]\n");
    refused(&(pool(none) + &masked), "workspace.site.mask: a mask needs a sandbox on this host");
    let further = format!("{site}mode = \"copy\"\nrepos = [{{ path = \"../lib\", at = \"third/lib\" }}]\n").replace("mode = \"rw\"\n", "");
    refused(&(pool(none) + &further), "repos need a sandbox of marshal's own: with launcher = \"none\"");
    refused(&pool("workspace = \"siet\"\n[workspace.site]\npath = \"x\""), "there is no workspace \"siet\": expected \"site\"");
    refused(&pool("workspace = \"site\"\n[workspace.site]\npath = 4"), "workspace.site.path: expected a string");
    refused(&pool("[workspace.site]\npath = \"x\"\nbranch = \"x\""), "did you mean base?");
}

#[test]
fn further_directories_have_a_place_and_a_mode_that_work() {
    let refused = |mode: &str, repos: &str, why: &str| {
        let keys = format!("workspace = {{ path = \"/srv/main\", mode = \"{mode}\", repos = [{repos}] }}");
        refused_by(&explicit_origin(), &pool(&keys), why);
    };
    let lib = "{ path = \"/srv/lib\", at = \"lib\" }";
    for mode in ["ro", "rw", "overlay"] {
        refused(mode, lib, "pool.demo.workspace.repos: with mode = \"…\" the agent sees the directory itself");
    }
    for (mode, own, why) in [
        ("worktree", "copy", "either a copy or a branch"),
        ("copy", "worktree", "either a copy or a branch"),
        ("copy", "rw", "no protected files"),
        ("worktree", "overlay", "apart from those of the session"),
    ] {
        let lib = format!("{{ path = \"/srv/lib\", at = \"lib\", mode = \"{own}\" }}");
        refused(mode, &lib, &format!("repos[0].mode: expected \"ro\" or the workspace's own mode \"{mode}\", found \"{own}\"…{why}"));
    }
    refused("copy", "{ path = \"/srv/lib\" }", "needs path and at");
    refused("copy", "{ at = \"lib\" }", "needs path and at");
    for at in ["", ".", "./lib", "/lib", "../lib", "a/../b", "a/.git/x", ".GIT", "a\\u0007b"] {
        let lib = format!("{{ path = \"/srv/lib\", at = \"{at}\" }}");
        refused("copy", &lib, "repos[0].at: expected a path below the workspace");
    }
    for other in ["lib", "lib/", "lib/inner"] {
        let two = format!("{lib}, {{ path = \"/srv/two\", at = \"{other}\" }}");
        refused("worktree", &two, "repos[1].at: …overlaps with \"lib\" of \"/srv/lib\"");
    }
    refused("copy", &format!("{lib}, {{ path = \"/srv/x/../lib\", at = \"two\" }}"), "the directory \"/srv/lib\" is in the workspace already");
    refused("copy", "{ path = \"/srv/main\", at = \"x\" }", "the directory \"/srv/main\" is in the workspace already");
    refused("copy", "{ path = \"/srv/lib\", at = \"lib\", base = \"main\" }", "only clones start from a base");
    refused("copy", "{ path = \"/srv/lib\", at = \"lib\", mask = [] }", "did you mean workspace.mask?");
    let many: Vec<String> = (0..17).map(|n| format!("{{ path = \"/srv/{n}\", at = \"{n}\" }}")).collect();
    refused("copy", &many.join(","), "repos has at most 16 entries");
    let state = format!("workspace = {{ path = \"/srv/main\", repos = [{lib}] }}\n[supervisor]\nstate_dir = \"/srv/lib/state\"");
    refused_by(&explicit_origin(), &pool(&state), "the workspace contains the state directory");
    let found = "workspace = { path = \"src\", repos = [{ path = \"/srv/lib\", at = \"lib\" }] }";
    refused_by(&discovered_origin(), &super::script(found), "may not use a repository outside its own directory");
}
