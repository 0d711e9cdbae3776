//! Real package clients in the default sandbox, which reach their registries only through routes. The
//! routes use what the clients of this host are configured with.

use std::process::Command;

use crate::fleet::registries::{answer, drill};

/// Whether a client of this host, with this host's configuration, reaches its registry.
fn has_network() -> bool {
    let mut ask = Command::new("npm");
    let seen = ask.args(["view", "is-odd", "version"]).output();
    let is_there = seen.is_ok_and(|seen| seen.status.success());
    if !is_there {
        println!("SKIPPED: npm of this host does not reach its registry");
    }
    is_there
}

fn sysroot() -> String {
    let rustc = Command::new("rustc").args(["--print", "sysroot"]).output();
    let text = String::from_utf8(rustc.expect("rustc").stdout).expect("UTF-8");
    text.trim().to_owned()
}

/// Runs a script in the sandbox of a pool with one registry: it succeeds and prints `expect`, and
/// what publishes is refused.
fn installs(registry: &str, script: &str, expect: &str) {
    let drill = drill(
        "\"packages\"",
        &format!(
            "[sandbox.standard]\nro_bind = [\"/usr\", {:?}]\n[route.packages]\nkind = \"registry\"\nregistry = \"{registry}\"\n",
            sysroot()
        ),
    );
    let publish = "python3 ask.py $ROUTE 'PUT /is-odd' 'POST /legacy/' 'PUT /api/v1/crates/new' 'DELETE /is-odd/-rev/1'";
    let answer = answer(&drill, &format!("{script}\n{publish}"));
    assert!(answer.contains("exit=0"), "{answer}");
    assert!(answer.contains(expect), "{expect}: {answer}");
    let refused = answer.matches("refused 405").count();
    assert_eq!(refused, 4, "{answer}");
    let is_published = answer.contains("published") || answer.contains("answered");
    assert!(!is_published, "{answer}");
}

#[test]
fn npm_installs_packages_and_publishes_nothing() {
    if !has_network() {
        return;
    }
    installs(
        "npm",
        r#"mkdir /tmp/p; cd /tmp/p; npm init -y >/dev/null
npm install is-odd@3 @types/ms 2>&1
node -e 'console.log("is it odd: " + require("is-odd")(3))'
ls node_modules/@types/ms/package.json
npm config set "//${ROUTE#http://}/:_authToken" dummy
if npm publish 2>&1; then echo published; fi
if npm whoami 2>&1; then echo published; fi
cd /workspace"#,
        "is it odd: true",
    );
}

#[test]
fn pip_installs_packages() {
    if !has_network() {
        return;
    }
    installs(
        "pypi",
        r#"/usr/bin/python3 -m venv /tmp/v
/tmp/v/bin/pip install six idna 2>&1
/tmp/v/bin/python -c 'import six, idna; print("moved: " + six.moves.__name__)'"#,
        "moved: six.moves",
    );
}

#[test]
fn cargo_builds_with_crates() {
    if !has_network() {
        return;
    }
    let script = r#"mkdir -p /tmp/p/src; cd /tmp/p
printf '[package]\nname = "p"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\nitoa = "1"\ncfg-if = "1"\n' > Cargo.toml
printf 'pub fn shown() -> String { itoa::Buffer::new().format(7_u8).to_owned() }\n' > src/lib.rs
export PATH=SYSROOT/bin:$PATH
cargo build --target-dir /tmp/t 2>&1
ls /tmp/t/debug/libp.rlib
cd /workspace"#;
    let script = script.replace("SYSROOT", &sysroot());
    installs("crates", &script, "/tmp/t/debug/libp.rlib");
}

#[test]
fn apt_downloads_a_package() {
    if !has_network() {
        return;
    }
    installs(
        "debian",
        r#"mkdir -p /tmp/apt/lists/partial /tmp/apt/cache/archives/partial; cd /tmp/apt
. /usr/lib/os-release
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $ROUTE/debian $VERSION_CODENAME main" > sources.list
options="-o Dir::Etc::SourceList=/tmp/apt/sources.list -o Dir::Etc::SourceParts=- -o Dir::State::Lists=/tmp/apt/lists
 -o Dir::State::Status=/dev/null -o Dir::Cache=/tmp/apt/cache -o Acquire::Languages=none -o Acquire::Check-Valid-Until=false
 -o Debug::NoLocking=1"
apt-get $options update 2>&1
apt-get $options download hello 2>&1
dpkg-deb --info hello_*.deb | grep Package
cd /workspace"#,
        "Package: hello",
    );
}
