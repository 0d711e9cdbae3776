//! Far ends that are not reached, or let nobody in: each is told apart, and never hammered.

use std::net::{Ipv4Addr, SocketAddrV4};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::drill::{Drill, Ran};
use crate::ssh::ssh_host::SshHost;

fn one_task(drill: &Drill) -> (Ran, String) {
    let ran = drill.run(&["run", "--results", "r.jsonl", "list ."]);
    assert_eq!(ran.code, Some(1), "{}", ran.all());
    let result = &drill.results("r.jsonl")[0];
    let detail = result["detail"].as_str().unwrap_or_default().to_owned();
    (ran, detail)
}

#[track_caller]
fn assert_detail(ran: &Ran, detail: &str, parts: &[&str]) {
    for part in parts {
        assert!(detail.contains(part), "{part}: {detail}\n{}", ran.all());
    }
    assert!(!detail.contains("may still run"), "nothing ran: {detail}");
}

#[test]
fn a_host_whose_key_is_not_the_known_one_parks_the_slot_at_once() {
    let far = SshHost::start();
    let drill = Drill::new(&far.pool(&far.keys_of("key", "other_hosts"), ""));
    let (ran, detail) = one_task(&drill);
    assert_detail(
        &ran,
        &detail,
        &[
            "could not log in to",
            "hint: the host's key differs",
            "another start would end the same",
        ],
    );
    assert_eq!(far.connections(), 1, "{}", far.log());
    assert!(ran.stderr.contains("parked"), "{}", ran.all());
}

#[test]
fn a_host_that_is_not_known_parks_the_slot_at_once() {
    let far = SshHost::start();
    let drill = Drill::new(&far.pool(&far.keys_of("key", "no_hosts"), ""));
    let (ran, detail) = one_task(&drill);
    assert_detail(
        &ran,
        &detail,
        &[
            "could not log in to",
            "ssh-keyscan",
            "another start would end the same",
        ],
    );
    assert_eq!(far.connections(), 1, "{}", far.log());
}

#[test]
fn a_key_that_is_not_let_in_parks_the_slot_at_once() {
    let far = SshHost::start();
    let drill = Drill::new(&far.pool(&far.keys_of("other_key", "known_hosts"), ""));
    let (ran, detail) = one_task(&drill);
    assert_detail(
        &ran,
        &detail,
        &[
            "could not log in to",
            "hint: the remote host rejects this user",
            "authorized_keys",
        ],
    );
    assert_eq!(far.connections(), 1, "{}", far.log());
}

#[test]
fn a_host_that_is_not_there_is_tried_as_often_as_the_budget_says() {
    let far = SshHost::start();
    // A port that nobody listens on, and nobody else takes as long as this has it.
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let taken = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None);
    let taken = taken.expect("a socket");
    rustix::net::bind(&taken, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = rustix::net::getsockname(&taken).expect("an address");
    let port = SocketAddrV4::try_from(address).expect("of IPv4").port();
    let pool = far
        .pool(
            &far.keys(),
            "[pool.far.restart]\nbudget = 2\nbase = \"20ms\"\nmax = \"50ms\"",
        )
        .replace(&format!("port = {}", far.port), &format!("port = {port}"));
    let drill = Drill::new(&pool);
    let (ran, detail) = one_task(&drill);
    assert_detail(
        &ran,
        &detail,
        &["was not reached", "hint: nothing listens on that port"],
    );
    assert!(detail.contains("the budget is 2"), "{detail}");
    let name = pool.replace("127.0.0.1\"", "no-such-host.invalid\"");
    let drill = Drill::new(&name);
    let (ran, detail) = one_task(&drill);
    assert_detail(&ran, &detail, &["was not reached", "ssh.host"]);
    drop(taken);
}

#[test]
fn a_program_that_is_not_there_is_told_with_what_helps() {
    let far = SshHost::start();
    let pool = far
        .pool(&far.keys(), "")
        .replace("\"marshal\", \"script-agent\"", "\"no-such-agent\"");
    let (ran, detail) = one_task(&Drill::new(&pool));
    assert_detail(
        &ran,
        &detail,
        &["could not be started on far@127.0.0.1", "env.path_add"],
    );
    assert_eq!(far.connections(), 1, "{}", far.log());
    let work = far.work().display().to_string();
    let pool = far.pool(&far.keys(), "").replace(&work, "/no/such/place");
    let (ran, detail) = one_task(&Drill::new(&pool));
    assert_detail(
        &ran,
        &detail,
        &["hint: the directory in ssh.workspace does not exist"],
    );
    let keys = format!("{}\nmarshal = \"no-such-marshal\"", far.keys());
    let (ran, detail) = one_task(&Drill::new(&far.pool(&keys, "")));
    assert_detail(&ran, &detail, &["no such program on the remote host"]);
}

#[test]
fn a_remote_sandbox_that_cannot_be_built_is_never_left_out() {
    let far = SshHost::start();
    let keys = format!(
        "{}\nmarshal = \"marshal\"\nhome = \"/no/such/home\"",
        far.keys()
    );
    let (ran, detail) = one_task(&Drill::new(&far.pool(&keys, "")));
    assert_detail(&ran, &detail, &["could not build its sandbox"]);
}

#[test]
fn a_configuration_that_the_client_would_take_from_others_is_refused() {
    let far = SshHost::start();
    let drill = Drill::new(&far.pool(&far.keys(), ""));
    let hosts = far.path("known_hosts");
    let mode = |mode: u32| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::set_permissions(&hosts, std::fs::Permissions::from_mode(mode)).expect("chmod");
    };
    mode(0o666);
    let ran = drill.run(&["config", "check"]);
    assert_eq!(ran.code, Some(2), "{}", ran.all());
    assert!(ran.stderr.contains("writable by"), "{}", ran.all());
    mode(0o644);
    let ran = drill.run(&["config", "check"]);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(ran.stdout.contains("unsandboxed here"), "{}", ran.all());
}
