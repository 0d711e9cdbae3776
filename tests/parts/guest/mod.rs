//! A booted Debian with cgroup v2 and an older kernel, in qemu: the escape attempts, the limits and
//! the README's first command, as root and as an ordinary user, each with a control group that
//! systemd delegated. The Debian package, installed in another one, serves under a real systemd.
//!
//! The tests that run there are those of `sandbox`, from a copy of this very program. `tests/run`
//! makes the disk and unpacks qemu. It emulates the processor, so that it runs everywhere: a virtual
//! machine on this one is not always permitted.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::children;
use crate::sandbox::prober;

/// What the guest runs.
const SCRIPT: &str = include_str!("run.sh");
/// What the guest with the package runs.
const PACKAGE_SCRIPT: &str = include_str!("package.sh");
/// The tests that it runs.
const AREAS: [&str; 3] = [
    "sandbox::escapes::",
    "sandbox::limits::",
    "sandbox::groups::",
];
/// Longer than a boot and all of them take on a loaded machine with two processors.
const MOST: Duration = Duration::from_secs(40 * 60);

/// What `tests/run` made.
fn made(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/guest");
    let path = path.join(name);
    assert!(path.exists(), "{}: run tests/run guest", path.display());
    path
}

pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {printed}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The names of the tests.
fn names() -> Vec<String> {
    let mut list = Command::new(std::env::current_exe().unwrap());
    let listed = run(list.args(["--list", "--format", "terse"]).args(AREAS));
    let names = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    names.map(str::to_owned).collect()
}

/// The first command of the README, with the installed program.
pub(crate) fn readme_command() -> String {
    let readme = include_str!("../../../README.md");
    let line = readme
        .lines()
        .find_map(|line| line.strip_prefix("cargo run --release -- "));
    format!("exec marshal {}\n", line.expect("the first command"))
}

/// The disk with the programs and a repository.
fn payload(dir: &Path, names: &[String]) -> PathBuf {
    let files = dir.join("files");
    let repository = files.join("repository");
    fs::create_dir_all(&repository).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for name in ["README.md", "supervisor.toml", "src"] {
        run(Command::new("cp")
            .arg("-r")
            .arg(root.join(name))
            .arg(&repository));
    }
    fs::write(repository.join("readme.sh"), readme_command()).unwrap();
    let unit = root.join("deploy/systemd/marshal.service");
    fs::copy(unit, files.join("marshal.service")).unwrap();
    fs::write(files.join("run"), SCRIPT).unwrap();
    fs::write(files.join("names"), names.join("\n") + "\n").unwrap();
    // What debuggers need is most of them.
    for (from, name) in [
        (children::marshal(), "marshal"),
        (children::shim(), "marshal-shim"),
        (std::env::current_exe().unwrap(), "tests"),
        (prober().to_owned(), "prober"),
    ] {
        run(Command::new("strip")
            .arg("-o")
            .arg(files.join(name))
            .arg(from));
    }
    disk_of(dir, &files)
}

/// The second disk, with these files.
fn disk_of(dir: &Path, files: &Path) -> PathBuf {
    let disk = dir.join("payload.img");
    let make = ["-q", "-F", "-d"];
    run(Command::new("/sbin/mkfs.ext4")
        .args(make)
        .arg(files)
        .arg(&disk)
        .arg("512M"));
    disk
}

/// Boots the guest and waits until it has switched itself off; what it printed.
fn boot(dir: &Path, payload: &Path) -> String {
    let qemu = made("qemu");
    let at = |name: &str| qemu.join(name);
    let libraries = [
        "lib/x86_64-linux-gnu",
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/pulseaudio",
    ];
    let libraries: Vec<_> = libraries.map(|name| at(name).display().to_string()).into();
    let (console, printed) = (dir.join("console"), dir.join("printed"));
    let drive = |disk: &Path| format!("file={},format=raw,if=virtio,snapshot=on", disk.display());
    let mut command = Command::new(at("lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"));
    command
        .env("QEMU_MODULE_DIR", at("usr/lib/x86_64-linux-gnu/qemu"))
        .arg("--library-path")
        .arg(libraries.join(":"))
        .arg(at("usr/bin/qemu-system-x86_64"))
        .arg("-L")
        .arg(at("usr/share/qemu"))
        .arg("-L")
        .arg(at("usr/share/seabios"))
        .args(["-accel", "tcg,thread=multi", "-smp", "2", "-m", "2G"])
        .args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
        ])
        .arg("-kernel")
        .arg(made("vmlinuz"))
        .arg("-initrd")
        .arg(made("initrd.img"))
        .args(["-append", "root=/dev/vda rw console=ttyS0 quiet panic=1"])
        .args(["-drive", &drive(&made("root.img"))])
        .args(["-drive", &drive(payload)])
        .args(["-serial", &format!("file:{}", console.display())])
        .args(["-serial", &format!("file:{}", printed.display())])
        .stdin(Stdio::null());
    let began = Instant::now();
    let mut guest = command.spawn().unwrap();
    let read =
        |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    loop {
        if let Some(status) = guest.try_wait().unwrap() {
            assert!(status.success(), "qemu: {status}: {}", read(&console));
            break;
        }
        if began.elapsed() > MOST {
            guest.kill().unwrap();
            guest.wait().unwrap();
            panic!(
                "no end after {MOST:?}: {}\n{}",
                read(&console),
                read(&printed)
            );
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    println!("from boot to end: {} s", began.elapsed().as_secs());
    let text = read(&printed).replace('\r', "");
    assert!(text.ends_with("== end\n"), "{text}\n{}", read(&console));
    text
}

/// What was printed below each heading, `WHO: WHAT`.
fn sections(text: &str) -> BTreeMap<&str, &str> {
    let sections = text
        .split("\n== ")
        .filter_map(|section| section.split_once('\n'));
    let mut found = BTreeMap::new();
    let mut heading = "";
    for (line, rest) in sections {
        let Some((_, code)) = line.split_once(": ended with ") else {
            heading = line;
            found.insert(line, rest);
            continue;
        };
        // Its end, below what it printed; of the README's four tasks one is denied.
        let expected = if heading.ends_with(": readme") {
            "1"
        } else {
            "0"
        };
        assert_eq!(code, expected, "{heading}: {}", found[heading]);
    }
    found
}

#[test]
fn the_sandbox_holds_in_a_booted_debian_as_root_and_as_a_user() {
    let dir = tempfile::Builder::new()
        .prefix("guest")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .unwrap();
    let names = names();
    assert!(names.len() > 15, "{names:?}");
    let text = boot(dir.path(), &payload(dir.path(), &names));
    let text = format!("\n{text}");
    let sections = sections(&text);
    let service = sections.get("root: service");
    service_keeps_its_tasks(service.unwrap_or_else(|| panic!("no service: {text}")));
    for (who, columns) in [
        (
            "root",
            &[
                "root, standard",
                "root, strict",
                "user, standard",
                "bwrap, root, strict",
            ][..],
        ),
        ("user", &["user, standard", "bwrap, user, standard"]),
    ] {
        let of = |what: &str| {
            let section = sections.get(format!("{who}: {what}").as_str());
            section.unwrap_or_else(|| panic!("{who}: {what} is missing: {text}"))
        };
        // An older kernel is described: what it has, and which profile is not to be had there.
        let doctor = of("doctor");
        let lines = |begin: &str| doctor.lines().any(|line| line.starts_with(begin));
        assert!(doctor.contains("ABI 2"), "{doctor}");
        assert!(
            lines("profile standard: available on this host"),
            "{doctor}"
        );
        assert!(
            lines("profile strict: not available on this host, missing landlock"),
            "{doctor}"
        );
        for limit in ["cgroup.memory", "cgroup.pids", "cgroup.cpu"] {
            let is_held = |line: &str| line.starts_with(limit) && line.contains(" ok ");
            assert!(doctor.lines().any(is_held), "{limit}: {doctor}");
        }
        // The README's first command ends as it says, and holds its limits.
        let readme = of("readme");
        assert!(readme.contains("3 of 4 done, 1 denied"), "{readme}");
        assert!(!readme.contains("does not enforce"), "{readme}");
        assert!(text.contains(&format!("== {who}: left: 0\n")), "{text}");
        let matrix =
            of("sandbox::escapes::no_attempt_gets_out_and_the_table_says_what_stopped_each");
        for column in columns {
            let line = matrix
                .lines()
                .find(|line| line.starts_with(&format!("{column}: ")));
            println!(
                "{who}: {}",
                line.unwrap_or_else(|| panic!("{column}: {matrix}"))
            );
        }
        for name in &names {
            let section = of(name);
            assert!(section.contains("1 passed"), "{who}: {name}: {section}");
        }
    }
}

/// Restarts of the service lost no task, gave none up and repeated none.
fn service_keeps_its_tasks(printed: &str) {
    assert!(printed.contains("Result=success"), "{printed}");
    assert!(
        printed.contains("will go on when the supervisor"),
        "{printed}"
    );
    // The last one: the lines of the log are objects as well.
    let report = printed.lines().rfind(|line| line.starts_with('{'));
    let report: serde_json::Value = serde_json::from_str(report.expect(printed)).expect(printed);
    let counted = (&report["outcomes"], &report["attempts"]);
    assert_eq!(
        counted,
        (&serde_json::json!({"done": 24}), &serde_json::json!(24)),
        "{printed}"
    );
}

/// The package of this build, which `tests/run` makes.
fn package() -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/debian");
    let found = fs::read_dir(&dir).into_iter().flatten().flatten();
    let mut packages = found.map(|entry| entry.path());
    let is_package = |path: &PathBuf| path.extension().is_some_and(|end| end == "deb");
    let package = packages.find(is_package);
    package.unwrap_or_else(|| panic!("no package in {}: run tests/run guest", dir.display()))
}

#[test]
fn the_package_serves_in_a_booted_debian() {
    let dir = tempfile::Builder::new()
        .prefix("package")
        .tempdir_in(env!("CARGO_TARGET_TMPDIR"))
        .unwrap();
    let files = dir.path().join("files");
    fs::create_dir_all(&files).unwrap();
    fs::copy(package(), files.join("marshal.deb")).unwrap();
    fs::write(files.join("run"), PACKAGE_SCRIPT).unwrap();
    let text = boot(dir.path(), &disk_of(dir.path(), &files));
    println!("{text}");
    let sections: BTreeMap<&str, &str> = text
        .split("== package: ")
        .filter_map(|section| section.split_once('\n'))
        .collect();
    for (what, lines) in PACKAGE_SHOWS {
        let section = sections
            .get(what)
            .unwrap_or_else(|| panic!("no {what}: {text}"));
        for line in *lines {
            let found = section.lines().any(|printed| printed.starts_with(line));
            assert!(found, "{what}: no {line:?} in {section}");
        }
    }
    assert!(
        !text.contains("NEVER: "),
        "something was waited for in vain"
    );
    // Only a client that was turned away would have got another answer, or none.
    let sockets = sections["sockets"];
    assert!(sockets.contains("pages: HTTP/1.0 200 OK,\n"), "{sockets}");
}

/// How lines begin that the script prints, by its headings.
const PACKAGE_SHOWS: &[(&str, &[&str])] = &[
    (
        "install",
        &[
            "code 0",
            "disabled",
            "without a configuration: inactive, no",
            "/etc/marshal 755 root",
            "/etc/marshal/keys 700 root",
            "marshal:/var/lib/marshal",
            "manual pages: 1",
            "complete -o",
            // The parser of this Debian does not know it.
            "ls: cannot access '/etc/apparmor.d/marshal'",
        ],
    ),
    (
        "start",
        &[
            "without the credential: code 1",
            "LoadCredential=test:FILE",
            "HTTP/1.0 200 OK",
            "demo/0",
            "type notify, notify main",
            "2 slots: 2 unloaded; 0 open tasks",
            "1 of 1 done",
        ],
    ),
    (
        "limits",
        &[
            "209715200",
            "Memory cgroup out of memory: Killed process",
            "the service goes on: 0 restarts",
        ],
    ),
    ("reload", &["code 0", "active again"]),
    (
        "watchdog",
        &[
            "restarts: 1",
            "the watchdog of the service manager is not fed",
            "marshal.service: Watchdog timeout",
            "marshal.service: Failed with result 'watchdog'",
            "done: 8",
        ],
    ),
    (
        "sockets",
        &[
            "before: inactive",
            "HTTP/1.0 200 OK",
            "after a page: active",
            "after a command: active",
            "done: 16",
        ],
    ),
    (
        "kill",
        &[
            "main: before 1",
            "main: left 0",
            "all: before 1",
            "all: left 0",
        ],
    ),
    ("remove", &["code 0", "the journal is kept"]),
];
