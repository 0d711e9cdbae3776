//! Installations of each kind, in directories of the tests.

use std::os::unix::fs::symlink;

use super::*;

fn put(path: &Path, text: &str, mode: u32) {
    fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

fn spec(program: &str, native: &[&str]) -> ProgramLookup {
    ProgramLookup {
        program: program.to_owned(),
        native: native.iter().map(|name| (*name).to_owned()).collect(),
        package: "the-agent".to_owned(),
        install: String::new(),
        tested: String::new(),
    }
}

fn scratch() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let real = fs::canonicalize(dir.path()).expect("real");
    (dir, real)
}

/// A package whose program is a script of node.
fn npm(root: &Path) {
    let package = root.join("node_modules/the-agent");
    put(&package.join("cli.js"), "#!/usr/bin/env sh\n", 0o755);
    let json = "{\"name\":\"the-agent\",\"version\":\"1.2.3\"}";
    put(&package.join("package.json"), json, 0o644);
    let bin = root.join("node_modules/.bin");
    fs::create_dir_all(&bin).expect("bin");
    symlink("../the-agent/cli.js", bin.join("agent")).expect("a link");
}

#[test]
fn a_package_of_npm_is_found_beside_the_configuration_in_path_and_where_the_pool_says() {
    let (_guard, root) = scratch();
    npm(&root);
    let modules = root.join("node_modules");
    let shell = fs::canonicalize("/bin/sh").expect("a shell");
    let expect = FoundProgram {
        program: Program {
            argv: vec![text(&shell), text(&modules.join("the-agent/cli.js"))],
            binds: vec![modules.clone()],
        },
        file: modules.join("the-agent/cli.js"),
        version: Some("1.2.3".to_owned()),
    };
    let beside = SearchPaths {
        dir: root.clone(),
        ..SearchPaths::default()
    };
    let in_path = SearchPaths {
        path: vec!["/nonexistent".into(), modules.join(".bin")],
        ..SearchPaths::default()
    };
    let agent = spec("agent", &[]);
    assert_eq!(find(&agent, None, &beside), Ok(expect.clone()));
    assert_eq!(find(&agent, None, &in_path), Ok(expect.clone()));
    let nothing = SearchPaths::default();
    assert_eq!(find(&agent, Some(&root), &nothing), Ok(expect));
    // Named is named: nowhere else is looked.
    let empty = root.join("empty");
    let missing = find(&agent, Some(&empty), &in_path).expect_err("nothing there");
    assert!(
        missing.to_string().contains("agent was not found in"),
        "{missing}"
    );
}

#[test]
fn a_native_program_is_taken_instead_of_a_script_that_starts_it() {
    let (_guard, root) = scratch();
    npm(&root);
    let name = format!("the-agent-{}/bin/agent", arch());
    let native = root.join("node_modules").join(&name);
    put(&native, "\u{7f}ELF", 0o755);
    let agent = spec("agent", &["gone/agent", "the-agent-{arch}/bin/agent"]);
    let found = find(&agent, Some(&root), &SearchPaths::default()).expect("found");
    assert_eq!(found.program.argv, [text(&native)]);
    assert_eq!(found.version.as_deref(), Some("1.2.3"));
    // As a package below the package, which is how a global installation has it.
    let inner = root.join("node_modules/the-agent/node_modules").join(&name);
    put(&inner, "\u{7f}ELF", 0o755);
    let found = find(&agent, Some(&root), &SearchPaths::default()).expect("found");
    assert_eq!(found.program.argv, [text(&inner)]);
    assert_eq!(found.program.binds, [root.join("node_modules")]);
}

#[test]
fn a_python_environment_is_seen_whole_with_the_interpreter_that_it_leads_to() {
    let (_guard, root) = scratch();
    let venv = root.join("venv");
    let python = root.join("pythons/3.11.7/bin/python3.11");
    put(&python, "\u{7f}ELF", 0o755);
    symlink(root.join("pythons/3.11.7"), root.join("pythons/3.11")).expect("a link");
    put(&venv.join("pyvenv.cfg"), "home = x\n", 0o644);
    put(&venv.join("bin/agent"), "#!/somewhere/python\n", 0o755);
    symlink("python3", venv.join("bin/python")).expect("a link");
    let through = root.join("pythons/3.11/bin/python3.11");
    symlink(&through, venv.join("bin/python3")).expect("a link");
    let info = venv.join("lib/python3.11/site-packages/the-agent-0.9.dist-info");
    fs::create_dir_all(info).expect("a distribution");
    // A link to the program, as installers for single programs make it.
    let bin = root.join("bin");
    fs::create_dir_all(&bin).expect("bin");
    symlink(venv.join("bin/agent"), bin.join("agent")).expect("a link");
    let around = SearchPaths {
        path: vec![bin],
        ..SearchPaths::default()
    };
    let found = find(&spec("agent", &[]), None, &around).expect("found");
    assert_eq!(
        found.program.argv,
        [
            text(&venv.join("bin/python")),
            text(&venv.join("bin/agent"))
        ]
    );
    assert_eq!(
        found.program.binds,
        [
            root.join("pythons/3.11"),
            root.join("pythons/3.11.7"),
            venv.clone()
        ]
    );
    assert_eq!(found.version.as_deref(), Some("0.9"));
}

#[test]
fn a_program_of_the_system_needs_nothing_and_a_single_one_only_itself() {
    let agent = spec("env", &[]);
    let around = SearchPaths {
        path: vec!["/usr/bin".into()],
        ..SearchPaths::default()
    };
    let found = find(&agent, None, &around).expect("found");
    assert_eq!(found.program.binds, Vec::<PathBuf>::new());
    let (_guard, root) = scratch();
    put(&root.join("agent"), "\u{7f}ELF", 0o755);
    let found = find(&spec("agent", &[]), Some(&root), &SearchPaths::default()).expect("found");
    assert_eq!(found.program.binds, [root.join("agent")]);
}

#[test]
fn what_would_show_the_home_or_cannot_run_is_refused() {
    let (_guard, root) = scratch();
    put(&root.join("pyvenv.cfg"), "", 0o644);
    put(&root.join("bin/python"), "\u{7f}ELF", 0o755);
    put(&root.join("bin/agent"), "x", 0o755);
    let at_home = SearchPaths {
        home: Some(root.clone()),
        ..SearchPaths::default()
    };
    let missing = find(&spec("agent", &[]), Some(&root), &at_home).expect_err("too wide");
    assert!(matches!(missing, Missing::TooWide { .. }), "{missing}");
    let (_guard, root) = scratch();
    put(
        &root.join("agent"),
        "#!/usr/bin/env no-such-interpreter\n",
        0o755,
    );
    let missing = find(&spec("agent", &[]), Some(&root), &SearchPaths::default());
    let missing = missing.expect_err("no interpreter").to_string();
    assert!(missing.contains("no-such-interpreter"), "{missing}");
    put(&root.join("agent"), "x", 0o644);
    let missing = find(&spec("agent", &[]), Some(&root), &SearchPaths::default());
    assert!(
        matches!(missing, Err(Missing::Nowhere { .. })),
        "{missing:?}"
    );
}
