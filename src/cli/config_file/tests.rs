//! Which file is used, and which is not.

use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use rustix::fs::Mode;

use super::*;
use crate::cli::diagnostic::{RenderStyle, render};

const GOOD: &str = "[pool.demo]\nagent = \"script\"\n";

/// A directory that only its owner can write, with a file in it.
fn dir_with(text: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    chmod(dir.path(), 0o755);
    write(&dir.path().join(NAME), text);
    dir
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    chmod(path, 0o644);
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("chmod");
}

fn refused(named: Option<&Path>, cwd: &Path) -> String {
    load(named, cwd).expect_err("refused").to_string()
}

#[test]
fn a_named_file_goes_before_a_found_one_and_that_before_the_built_in() {
    let dir = dir_with(GOOD);
    let real = fs::canonicalize(dir.path()).expect("real");
    write(&dir.path().join("other.toml"), &format!("{GOOD}size = 3\n"));
    let named = load(Some(Path::new("other.toml")), dir.path()).expect("named");
    assert_eq!(named.source, Source::Named(real.join("other.toml")));
    assert_eq!(named.config.pools[0].size, 3);
    assert_eq!(named.config.pools[0].workspace.path, real);
    let found = load(None, dir.path()).expect("found");
    assert_eq!(found.source, Source::Found(real.join(NAME)));
    assert_eq!(found.config.file, Some(real.join(NAME)));
    fs::remove_file(dir.path().join(NAME)).expect("removed");
    let built_in = load(None, dir.path()).expect("built in");
    assert_eq!(built_in.source, Source::BuiltIn);
    assert_eq!(built_in.config.pools[0].size, 4);
    assert!(
        built_in
            .source
            .to_string()
            .starts_with("configuration: built in")
    );
}

#[test]
fn an_installed_file_comes_after_a_found_one_and_is_as_if_it_were_named() {
    let text = "[pool.demo]\nagent = \"script\"\nlauncher = \"none\"\nnetwork = \"host\"\n";
    let (installed, empty) = (dir_with(text), tempfile::tempdir().expect("a directory"));
    let file = installed.path().join(NAME);
    let from = |cwd: &Path| load_from(None, cwd, Some(file.clone()));
    for cwd in [empty.path(), installed.path()] {
        let loaded = from(cwd).expect("good");
        let real = fs::canonicalize(installed.path()).expect("real");
        assert_eq!(loaded.source, Source::Installed(real.join(NAME)));
        // A discovered file may not have `launcher = "none"`.
        assert!(loaded.is_explicit);
        assert_eq!(loaded.project, real);
    }
    let found = from(dir_with(GOOD).path()).expect("good");
    assert!(matches!(found.source, Source::Found(_)) && !found.is_explicit);
    // Its owner is checked like that of any other.
    chmod(&file, 0o666);
    let refused = from(empty.path()).expect_err("refused").to_string();
    assert!(refused.contains("writable by everybody"), "{refused}");
}

#[test]
fn a_named_file_that_is_not_there_is_no_reason_to_use_another() {
    let dir = dir_with(GOOD);
    let shown = refused(Some(Path::new("none.toml")), dir.path());
    assert!(shown.contains("cannot read"), "{shown}");
    assert!(shown.contains("none.toml"), "{shown}");
    // A link that leads nowhere is there.
    fs::remove_file(dir.path().join(NAME)).expect("removed");
    symlink("/none/such", dir.path().join(NAME)).expect("link");
    assert!(refused(None, dir.path()).contains("cannot read"));
}

#[test]
fn what_others_can_write_is_not_used() {
    let dir = dir_with(GOOD);
    let file = dir.path().join(NAME);
    chmod(&file, 0o666);
    assert!(refused(None, dir.path()).contains("supervisor.toml is writable by everybody"));
    chmod(&file, 0o600);
    for (mode, expect) in [
        (0o777, "is writable by everybody (mode 0777)"),
        (0o1777, "(mode 1777), so the file may not be yours"),
        (0o1757, "move it into a directory of your own"),
    ] {
        chmod(dir.path(), mode);
        let shown = refused(Some(&file), Path::new("/"));
        assert!(shown.contains(expect), "{shown}");
    }
    chmod(dir.path(), 0o755);
    load(None, dir.path()).expect("good again");
}

#[test]
fn a_link_from_a_good_place_does_not_make_its_target_good() {
    let (good, bad) = (dir_with(GOOD), dir_with(GOOD));
    let link = good.path().join("link.toml");
    symlink(bad.path().join(NAME), &link).expect("link");
    load(Some(&link), Path::new("/")).expect("good");
    chmod(bad.path(), 0o777);
    assert!(refused(Some(&link), Path::new("/")).contains("writable by everybody"));
}

#[test]
fn nobody_else_can_put_another_directory_in_the_place_of_one_above() {
    let dir = dir_with(GOOD);
    let deep = dir.path().join("above/below");
    fs::create_dir_all(&deep).expect("directories");
    write(&deep.join(NAME), GOOD);
    load(None, &deep).expect("good");
    let above = dir.path().join("above");
    chmod(&above, 0o777);
    let shown = refused(None, &deep);
    assert!(shown.contains("above is writable by everybody"), "{shown}");
    // What is ours cannot be moved by others there.
    chmod(&above, 0o1777);
    load(None, &deep).expect("good");
    // A link leads through the same directories.
    symlink(&deep, dir.path().join("link")).expect("link");
    let link = dir.path().join("link").join(NAME);
    load(Some(&link), Path::new("/")).expect("good");
    chmod(&above, 0o777);
    let shown = refused(Some(&link), Path::new("/"));
    assert!(shown.contains("above is writable by everybody"), "{shown}");
    // The directory of a link on the way counts, although the file does not lie in it.
    chmod(&above, 0o755);
    let loose = dir.path().join("loose");
    fs::create_dir(&loose).expect("a directory");
    symlink("../above", loose.join("up")).expect("link");
    let through = loose.join("up/below/../below").join(NAME);
    load(Some(&through), Path::new("/")).expect("good");
    chmod(&loose, 0o777);
    let shown = refused(Some(&through), Path::new("/"));
    assert!(shown.contains("loose is writable by everybody"), "{shown}");
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let dir = dir_with(GOOD);
    fs::remove_file(dir.path().join(NAME)).expect("removed");
    fs::create_dir(dir.path().join(NAME)).expect("a directory");
    assert!(refused(None, dir.path()).contains("is not a regular file"));
    assert!(refused(Some(Path::new("/dev/zero")), dir.path()).contains("is not a regular file"));
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .expect("a pipe");
    assert!(refused(Some(&pipe), dir.path()).contains("is not a regular file"));
}

#[test]
fn a_huge_file_is_not_read_to_its_end() {
    let dir = dir_with(GOOD);
    let file = File::create(dir.path().join(NAME)).expect("created");
    file.set_len(1 << 40).expect("a hole");
    assert!(refused(None, dir.path()).contains("the file is larger than 1M"));
}

#[test]
fn what_a_file_names_must_exist_and_lie_where_it_says() {
    let dir = dir_with(
        "[pool.demo]\nagent = \"script\"\npolicy = \"own\"\n\
         workspace = { path = \"gone\" }\nhome_files = { x = \"none\" }\n\
         [policy.own]\nfile = \"none.toml\"\n[sandbox.own]\nro_bind = [\"none/such\"]\n",
    );
    let Err(LoadError::Faulty(errors)) = load(None, dir.path()) else {
        panic!("faulty");
    };
    let lines: Vec<_> = errors.errors.iter().map(|error| error.line).collect();
    // A policy's own file is looked at by whoever judges by it, so that all else works without.
    assert_eq!(lines, [4, 5, 9], "{errors}");
    let shown = render(&errors, RenderStyle::PLAIN);
    assert!(shown.contains("workspace = { path = \"gone\" }"), "{shown}");
}

#[test]
fn a_found_file_cannot_leave_its_directory_by_a_link() {
    let outside = tempfile::tempdir().expect("outside");
    write(&outside.path().join("secret"), "x");
    let dir = dir_with(
        "[pool.demo]\nagent = \"script\"\nworkspace = { path = \"link\" }\n\
         home_files = { x = \"link/secret\" }\n",
    );
    symlink(outside.path(), dir.path().join("link")).expect("link");
    let shown = refused(None, dir.path());
    assert!(
        shown.contains("pool.demo.workspace.path: the workspace resolves to"),
        "{shown}"
    );
    assert!(
        shown.contains("pool.demo.home_files.x: the file resolves to"),
        "{shown}"
    );
    load(Some(Path::new(NAME)), dir.path()).expect("named, it may");
}

#[test]
fn a_policy_is_code_too() {
    let dir = dir_with(&format!(
        "{GOOD}policy = \"own\"\n[policy.own]\nfile = \"own.toml\"\n"
    ));
    let policy = dir.path().join("own.toml");
    write(&policy, "");
    load(None, dir.path()).expect("good");
    chmod(&policy, 0o666);
    assert!(refused(None, dir.path()).contains("policy.own.file: "));
}
