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
    put(&venv.join("bin/native"), "\u{7f}ELF", 0o755);
    let argv = |word: &Path| {
        let found = find_command(&text(word), &SearchPaths::default());
        found
            .expect("found")
            .expect("not of the system")
            .program
            .argv
    };
    let python = text(&venv.join("bin/python"));
    // The environment's own interpreter starts itself, and a native program needs none.
    for name in ["python", "python3"] {
        assert_eq!(argv(&venv.join("bin").join(name)).join(" "), python);
    }
    let native = venv.join("bin/native");
    assert_eq!(argv(&native), [text(&native)]);
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
    let missing = find(&spec("agent", &[]), Some(&root), &SearchPaths::default())
        .expect_err("no interpreter")
        .to_string();
    assert!(missing.contains("no-such-interpreter"), "{missing}");
    put(&root.join("agent"), "x", 0o644);
    let missing = find(&spec("agent", &[]), Some(&root), &SearchPaths::default());
    assert!(
        matches!(missing, Err(Missing::Nowhere { .. })),
        "{missing:?}"
    );
}

/// The program of a command, searched in these directories.
fn own(word: &str, path: &[PathBuf], dir: &Path) -> Result<Option<FoundProgram>, Missing> {
    let around = SearchPaths {
        path: path.to_vec(),
        dir: dir.to_owned(),
        home: None,
        is_discovered: true,
    };
    find_command(word, &around)
}

#[test]
fn a_command_of_the_system_needs_nothing_and_a_missing_one_is_an_error() {
    let (_guard, root) = scratch();
    assert_eq!(own("sh", &[], &root), Ok(None));
    assert_eq!(own("/usr/bin/env", &[], &root), Ok(None));
    assert_eq!(own("/workspace/tool", &[], &root), Ok(None));
    let missing = own("no-such-agent", &[], &root).expect_err("missing");
    assert!(
        missing.to_string().contains("was not found in PATH"),
        "{missing}"
    );
    let missing = own("/usr/no/agent", &[], &root).expect_err("missing");
    assert_eq!(missing, Missing::NotAt("/usr/no/agent".into()));
    // What the user did not name may show nothing of the host but what is in PATH.
    let outside = own("/opt/agent/run", &[], &root).expect_err("outside");
    assert_eq!(outside, Missing::Outside("/opt/agent/run".into()));
}

#[test]
fn a_command_of_npm_is_mounted_with_its_packages_and_its_interpreter() {
    let (_guard, root) = scratch();
    npm(&root);
    let node = root.join("node/bin/agentnode");
    put(&node, "\u{7f}ELF", 0o755);
    let script = root.join("node_modules/the-agent/cli.js");
    put(&script, "#!/usr/bin/env agentnode\n", 0o755);
    let path = [root.join("node/bin")];
    let found = own("agent", &path, &root)
        .expect("found")
        .expect("outside of /usr");
    assert_eq!(found.program.argv, [text(&node), text(&script)]);
    assert_eq!(found.program.binds, [node, root.join("node_modules")]);
}

#[test]
fn a_command_of_pip_is_mounted_with_the_library_of_its_python() {
    let (_guard, root) = scratch();
    // As pyenv has it: what PATH finds only starts the program of a version.
    let (shims, version) = (root.join("pyenv/shims"), root.join("pyenv/versions/3.11.9"));
    let python = version.join("bin/python3.11");
    put(&python, "\u{7f}ELF", 0o755);
    let shebang = format!("#!{}\n", python.display());
    put(&version.join("bin/agent"), &shebang, 0o755);
    put(
        &shims.join("agent"),
        "#!/usr/bin/env bash\nexec pyenv\n",
        0o755,
    );
    let found = own("agent", &[shims], &root)
        .expect("found")
        .expect("outside of /usr");
    let file = text(&version.join("bin/agent"));
    assert_eq!(found.program.argv, [text(&python), file]);
    assert_eq!(found.program.binds, [version]);
    // As `pip install --user` does it: the packages are beside the program, not beside Python.
    let local = root.join("local");
    let packages = local.join("lib/python3.11/site-packages");
    fs::create_dir_all(&packages).expect("made");
    put(&local.join("bin/agent"), &shebang, 0o755);
    let found = own("agent", &[local.join("bin")], &root)
        .expect("found")
        .expect("some");
    let variable = format!("PYTHONPATH={}", text(&packages));
    let file = text(&local.join("bin/agent"));
    assert_eq!(
        found.program.argv,
        ["/usr/bin/env", &variable, &text(&python), &file]
    );
    assert!(found.program.binds.contains(&packages));
}

/// A link, a `#!` line or an environment of a foreign repository shows nothing beside it.
#[test]
fn a_discovered_command_in_its_own_directory_shows_nothing_else_of_the_host() {
    let (_guard, root) = scratch();
    let (dir, secret) = (root.join("repo"), root.join("home/.config/cloud"));
    put(&secret.join("python3"), "\u{7f}ELF", 0o755);
    put(&dir.join(".venv/pyvenv.cfg"), "", 0o644);
    put(&dir.join(".venv/bin/agent"), "#!/bin/sh\n", 0o755);
    symlink(secret.join("python3"), dir.join(".venv/bin/python")).expect("a link");
    put(
        &dir.join("other"),
        &format!("#!{}\n", secret.join("python3").display()),
        0o755,
    );
    let other = text(&dir.join("other"));
    for word in ["agent", &other] {
        let refused = own(word, &[], &dir).expect_err(word);
        assert!(matches!(refused, Missing::Outside(_)), "{word}: {refused}");
    }
    let around = SearchPaths {
        dir,
        is_discovered: true,
        ..SearchPaths::default()
    };
    let preset = find(&spec("agent", &[]), None, &around).expect_err("a preset");
    assert!(matches!(preset, Missing::Outside(_)), "{preset}");
}
