//! Masks and slices of a workspace, as they are read.

use super::{accepted_by, discovered_origin, explicit_origin, only, pool, refused_by};
use crate::DEFAULT_MASK;

fn workspace(keys: &str) -> (Vec<String>, Vec<String>) {
    let text = pool(&format!("workspace = {{ path = \".\", {keys} }}"));
    let config = accepted_by(&explicit_origin(), &text);
    let workspace = &only(&config).workspace;
    (workspace.mask.clone(), workspace.slice.clone())
}

fn refused(keys: &str, why: &str) {
    let text = pool(&format!("workspace = {{ path = \".\", {keys} }}"));
    refused_by(&explicit_origin(), &text, why);
}

#[test]
fn a_mask_hides_the_usual_secrets_unless_the_file_says_otherwise() {
    for mode in ["copy", "ro"] {
        assert_eq!(workspace(&format!("mode = \"{mode}\"")).0, DEFAULT_MASK);
    }
    assert_eq!(workspace("mode = \"worktree\"").0, DEFAULT_MASK);
    assert_eq!(workspace("mode = \"ro\", mask = []").0, [""; 0]);
    let elsewhere = pool("workspace = { path = \"work\", mode = \"rw\" }");
    assert_eq!(only(&accepted_by(&explicit_origin(), &elsewhere)).workspace.mask, DEFAULT_MASK);
    let own = workspace("mode = \"ro\", mask = [\"*.key\", \"a/b\", \"!x.key\"]").0;
    assert_eq!(own, ["*.key", "a/b", "!x.key"]);
}

#[test]
fn a_slice_is_a_few_paths_without_repetition() {
    let slice = workspace("mode = \"ro\", slice = [\"src/**\", \"docs/\", \"src/lib.rs\", \"docs\"]").1;
    assert_eq!(slice, ["docs", "src"]);
}

#[test]
fn masks_and_slices_that_cannot_be_are_refused() {
    for bad in ["/etc", "../x", "a/../b", "", "!"] {
        refused(&format!("mask = [\"{bad}\"]"), "expected a pattern below the workspace");
    }
    refused("mask = [\"a[\"]", "the pattern cannot be read");
    refused("mode = \"copy\", slice = [\"src\"]", "needs mode = \"ro\"");
    refused("mode = \"ro\", slice = [\"../x\"]", "expected a path below the workspace");
    refused("mode = \"ro\", slice = [\"src/*.rs\"]", "the only pattern is");
    for bad in ["--upload-pack=x", "a b", "", "a:b"] {
        refused(&format!("mode = \"worktree\", base = \"{bad}\""), "expected the name of a branch");
    }
    refused("mode = \"copy\", base = \"main\"", "only clones start from a base");
    refused("mode = \"copy\", branches = true", "only clones have branches");
    refused("mode = \"copy\", author = \"A <a@b>\"", "only clones have branches");
    for bad in ["Ada", "Ada <ada>", "<a@b>", "A <a@b> <c@d>"] {
        refused(&format!("mode = \"worktree\", author = \"{bad}\""), "expected a name and a mail address");
    }
    let shared = pool("session = \"slot\"\nworkspace = { path = \"work\", mode = \"worktree\", branches = true }");
    refused_by(&explicit_origin(), &shared, "workspace.branches with session = \"slot\"");
    for (setup, why) in [
        ("mode = \"copy\", setup = { command = [\"a\"] }", "a setup prepares clones"),
        ("mode = \"worktree\", setup = {}", "a setup needs a command"),
        ("mode = \"worktree\", setup = { command = [\" \"] }", "a setup needs a command"),
        ("mode = \"worktree\", setup = { command = [\"a\"], size = \"3G\" }", "size"),
        ("mode = \"worktree\", setup = { command = [\"a\"], timeout = \"2h\" }", "timeout"),
        ("mode = \"worktree\", setup = { command = [\"a\"], network = \"routes\" }", "network"),
    ] {
        refused(setup, why);
    }
    for bad in ["/a", "../a", "a/", "a//b", "./a", "", "a\\n"] {
        let setup = format!("mode = \"worktree\", setup = {{ command = [\"a\"], inputs = [\"{bad}\"] }}");
        refused(&setup, "expected the path of a file of the repository");
    }
    refused("mode = \"overlay\", include = [\"x\"]", "all files are there");
    for bad in ["/etc/passwd", "../x"] {
        refused(&format!("include = [\"{bad}\"]"), "expected a pattern below the workspace");
    }
    refused("include = [\"{a,b}\"]", "no alternatives in braces");
    let none = pool("launcher = \"none\"\nworkspace = { path = \".\", mode = \"worktree\" }");
    refused_by(&explicit_origin(), &none, "mode = \"worktree\" needs a sandbox");
    let none = pool("launcher = \"none\"\nworkspace = { path = \"work\", mode = \"rw\", mask = [\".env\"] }");
    refused_by(&explicit_origin(), &none, "a mask needs a sandbox");
}

#[test]
fn a_file_that_was_found_hides_no_less() {
    let with = |mask: &str| pool(&format!("workspace = {{ path = \".\", mode = \"ro\", mask = {mask} }}"));
    for less in ["[]", "[\"**/.env\"]"] {
        refused_by(&discovered_origin(), &with(less), "hides less than the usual one");
    }
    let all: Vec<String> = DEFAULT_MASK.iter().map(|pattern| format!("{pattern:?}")).collect();
    accepted_by(&discovered_origin(), &with(&format!("[{}, \"*.key\"]", all.join(", "))));
    refused_by(&discovered_origin(), &with(&format!("[{}, \"!**/.env\"]", all.join(", "))), "hides less");
}

#[test]
fn a_setup_has_its_limits_and_the_network_only_if_a_person_says_so() {
    let with = |more: &str| {
        pool(&format!(
            "workspace = {{ mode = \"worktree\", setup = {{ command = [\"npm\", \"ci\"]{more} }} }}"
        ))
    };
    let config = accepted_by(&discovered_origin(), &with(", inputs = [\"b\", \"a/c\", \"b\"]"));
    let setup = only(&config).workspace.setup.clone().expect("a setup");
    assert_eq!(setup.inputs, ["a/c", "b"]);
    assert_eq!((setup.network.as_str(), setup.size), ("none", 2 << 30));
    assert!(only(&config).has_layered_mounts());
    let network = with(", network = \"host\"");
    accepted_by(&explicit_origin(), &network);
    refused_by(&discovered_origin(), &network, "give a setup the network of this host");
    let slot = format!("{}session = \"slot\"\n", with(""));
    accepted_by(&explicit_origin(), &slot);
    refused_by(&explicit_origin(), &format!("{slot}check = [\"true\"]\n"), "excludes a check");
    let other = format!("{}launcher = \"bwrap\"\n", with(""));
    refused_by(&explicit_origin(), &other, "a setup needs a sandbox on this host");
}
