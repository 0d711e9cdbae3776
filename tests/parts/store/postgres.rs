//! The suite on PostgreSQL, and what befalls a server: it goes and comes back, it lets nobody in.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use marshal_store::{Base, Claim, Server, Store, StoreError, WorkspaceId};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::cluster::{self, Cluster, LONG};
use crate::store::load;
use crate::store::suite::{self, append, put, text, ws};

/// A store of one's own on the shared server.
async fn store() -> Store {
    let schema = cluster::shared().schema();
    let server = Server::new(&cluster::shared().socket(&schema), None).expect("a server");
    Store::connect(&server).await.expect("a store")
}

#[tokio::test]
async fn life_of_a_file() {
    suite::life_of_a_file(store().await).await;
}

#[tokio::test]
async fn names_and_pages() {
    suite::names_and_pages(store().await).await;
}

#[tokio::test]
async fn what_is_found_on_disk() {
    suite::what_is_found_on_disk(store().await).await;
}

#[tokio::test]
async fn content_is_kept_once_and_swept() {
    suite::content_is_kept_once_and_swept(store().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_gone_is_forgotten() {
    let schema = cluster::shared().schema();
    let server = Server::new(&cluster::shared().socket(&schema), None).expect("a server");
    let store = Store::connect(&server).await.expect("a store");
    let count = |table: &str| {
        let count = cluster::shared().sql(&format!("SELECT count(*) FROM {schema}.{table}"));
        count.parse().expect("a count")
    };
    suite::what_is_gone_is_forgotten(store, count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_beside_sweeps() {
    let schema = cluster::shared().schema();
    let server = Server::new(&cluster::shared().socket(&schema), None).expect("a server");
    let store = Store::connect(&server).await.expect("a store");
    let second = Store::connect(&server).await.expect("a store");
    suite::writers_beside_sweeps(store, second).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_at_once() {
    let schema = cluster::shared().schema();
    let server = Server::new(&cluster::shared().socket(&schema), None).expect("a server");
    // Both make the tables.
    let (one, two) = tokio::join!(Store::connect(&server), Store::connect(&server));
    Box::pin(suite::writers_at_once(
        one.expect("a store"),
        two.expect("a store"),
    ))
    .await;
}

#[tokio::test]
async fn a_newer_form_is_refused() {
    let schema = cluster::shared().schema();
    let server = Server::new(&cluster::shared().socket(&schema), None).expect("a server");
    drop(Store::connect(&server).await.expect("a store"));
    cluster::shared().sql(&format!(
        "INSERT INTO {schema}.marshal_store VALUES (99, 0)"
    ));
    let refused = Store::connect(&server).await.expect_err("refused");
    assert!(
        matches!(refused, StoreError::Newer { found: 99, .. }),
        "{refused}"
    );
}

#[tokio::test]
async fn a_password_is_used_and_never_told() {
    let server = Server::new(&cluster::shared().loopback("open-sesame"), None).expect("a server");
    let store = Store::connect(&server).await.expect("a store");
    assert!(!format!("{store:?}").contains("open-sesame"));
    let wrong = Server::new(&cluster::shared().loopback("sesame-9"), None).expect("a server");
    let refused = Store::connect(&wrong).await.expect_err("refused");
    assert!(matches!(refused, StoreError::Database { .. }), "{refused}");
    let expected = format!("{refused} {refused:?}");
    assert!(
        expected.contains("password authentication failed"),
        "{expected}"
    );
    assert!(!expected.contains("sesame-9"), "{expected}");
    // It has no TLS: asked for, that is an error and no connection without it.
    let tls = format!(
        "{}?sslmode=require",
        cluster::shared().loopback("open-sesame")
    );
    let refused = Store::connect(&Server::new(&tls, None).expect("a server")).await;
    assert!(refused.expect_err("no TLS").to_string().contains("TLS"));
}

fn claim(owner: &str, shared: bool) -> Claim {
    Claim {
        owner: owner.to_owned(),
        directory: format!("{owner}:/srv/project"),
        shared,
    }
}

#[tokio::test]
async fn a_workspace_is_one_supervisors_unless_it_is_said_to_be_shared() {
    let schema = cluster::shared().schema();
    let server = Server::new(&cluster::shared().socket(&schema), None).expect("a server");
    // As one of before there were owners left it.
    let store = Store::connect(&server).await.expect("a store");
    store.register(&ws()).await.expect("registered");
    put(&store, "f", Base::New, "one").await.expect("v1");
    for _ in 0..2 {
        let taken = store.claim(&ws(), claim("one", false)).await;
        taken.expect("the first's");
    }
    let refused = store.claim(&ws(), claim("two", false)).await;
    let refused = refused.expect_err("refused").to_string();
    for part in [
        "\"shop\"",
        "one:/srv/project",
        "two:/srv/project",
        "shared = true",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    assert_eq!(text(&store, "f", None).await, "one");
    let other = WorkspaceId::new("other").expect("an id");
    store
        .claim(&other, claim("two", false))
        .await
        .expect("its own");
    // One who says so has it, too; and then everybody has to.
    store.claim(&ws(), claim("two", true)).await.expect("said");
    store.claim(&ws(), claim("one", true)).await.expect("said");
    for name in ["one", "two"] {
        let refused = store.claim(&ws(), claim(name, false)).await;
        assert!(
            matches!(refused, Err(StoreError::WorkspaceTaken { .. })),
            "{name}"
        );
    }
    // Of two that come at once one has it.
    let new = WorkspaceId::new("new").expect("an id");
    let (one, two) = tokio::join!(
        store.claim(&new, claim("one", false)),
        store.claim(&new, claim("two", false)),
    );
    assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
}

/// The threads that some work with a store needed beside the one that serves everybody.
fn threads(server: &Server, work: impl AsyncFnOnce(Store)) -> usize {
    let threads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&threads);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_start(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        })
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        work(Store::connect(server).await.expect("a store")).await;
    });
    threads.load(Ordering::SeqCst)
}

/// Digests and differences are not worked out in the thread that serves everybody.
#[test]
fn what_takes_its_time_is_done_apart() {
    let schema = cluster::shared().schema();
    let server = Server::new(&cluster::shared().socket(&schema), None).expect("a server");
    let long = "0123456789\n".repeat(20_000);
    let short = threads(&server, async |store: Store| {
        store.register(&ws()).await.expect("registered");
        put(&store, "f", Base::New, "short\n").await.expect("v1");
        assert_eq!(text(&store, "f", None).await, "short\n");
    });
    assert_eq!(short, 0, "what is short is not worth it");
    let made = threads(&server, async |store: Store| {
        put(&store, "f", Base::At(1), &long).await.expect("v2");
    });
    assert!(made > 0, "a digest is made");
    let read = threads(&server, async |store: Store| {
        assert_eq!(text(&store, "f", None).await, long);
    });
    assert!(read > 0, "a digest is compared");
    let compared = threads(&server, async |store: Store| {
        store.diff(suite::at("f"), 1, 1).await.expect("none");
    });
    assert!(compared > 0, "a difference is sought");
}

/// With TLS the certificate must be of an authority that is believed; there is no way around it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_that_nobody_vouches_for_is_not_believed() {
    let name = vec!["127.0.0.1".to_owned()];
    let own = rcgen::generate_simple_self_signed(name).expect("a certificate");
    let mut cluster = Cluster::new("own");
    cluster.with_tls(&own.cert.pem(), &own.signing_key.serialize_pem());
    let text = format!("{}?sslmode=require", cluster.loopback("own"));
    let believed = Server::new(&text, Some(own.cert.pem().as_bytes())).expect("a server");
    let store = Store::connect(&believed).await.expect("a store");
    store.register(&ws()).await.expect("registered");
    let tls = cluster.sql("SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND application_name = 'marshal'");
    assert_eq!(tls, "1");
    let unknown = Server::new(&text, None).expect("a server");
    let refused = Store::connect(&unknown).await.expect_err("not believed");
    assert!(matches!(refused, StoreError::Database { .. }), "{refused}");
    assert!(refused.to_string().contains("certificate"), "{refused}");
}

/// The server goes twice in the middle of a load: what was accepted is there, once, and writers that
/// waited go on by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_has_lost_nothing_and_doubled_nothing() {
    let mut cluster = Cluster::new("own");
    let server = Server::new(&cluster.socket("public"), None).expect("a server");
    let store = Arc::new(Store::connect(&server).await.expect("a store"));
    store.register(&ws()).await.expect("registered");
    put(&store, "log", Base::New, "").await.expect("v1");
    let count = Arc::new(AtomicUsize::new(0));
    let writers = (0..4).map(|writer| {
        let (store, count) = (Arc::clone(&store), Arc::clone(&count));
        tokio::spawn(async move {
            for n in 0..30 {
                append(&store, &format!("{writer}.{n}")).await;
                count.fetch_add(1, Ordering::SeqCst);
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    let cluster = tokio::task::spawn_blocking(move || {
        for reached in [20, 60] {
            let until = Instant::now() + LONG;
            while count.load(Ordering::SeqCst) < reached {
                assert!(Instant::now() < until, "the writers stand still");
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            cluster.stop();
            cluster.start();
        }
        cluster
    });
    let mut cluster = cluster.await.expect("stopped and started");
    for writer in writers {
        writer.await.expect("a writer");
    }
    let log = text(&store, "log", None).await;
    let mut lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 120);
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 120, "nothing was written twice");

    cluster.stop();
    let refused = put(&store, "log", Base::Any, "x").await.expect_err("gone");
    assert!(
        matches!(refused, StoreError::Unreachable { unknown: false, .. }),
        "{refused}"
    );
    assert!(
        refused.to_string().contains("cannot be reached"),
        "{refused}"
    );
}

/// The answers to three commits are lost on their way; the writes are made once, and answered as if
/// nothing had been.
#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_found_and_not_made_again() {
    let port = cluster::shared().port();
    let schema = cluster::shared().schema();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let through = listener.local_addr().expect("an address").port();
    let lost = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&lost);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(("127.0.0.1", port))
                .await
                .expect("the server");
            tokio::spawn(lose_commits(client, server, Arc::clone(&counted)));
        }
    });
    let text = Cluster::through(through, "open-sesame");
    let text = format!("{text}?options=-c%20search_path%3D{schema}");
    let server = Server::new(&text, None).expect("a server");
    let store = Store::connect(&server).await.expect("a store");
    store.register(&ws()).await.expect("registered");
    put(&store, "f", Base::New, "1").await.expect("v1");
    lost.store(3, Ordering::SeqCst);
    for v in 1..=3 {
        let made = put(&store, "f", Base::At(v), "x").await.expect("made once");
        assert_eq!(made.v, v + 1);
    }
    assert_eq!(lost.load(Ordering::SeqCst), 0, "three answers were lost");
    let page = store
        .history(suite::at("f"), None, 10)
        .await
        .expect("history");
    assert_eq!(page.rows.len(), 4);
}

/// Passes bytes between the two, and cuts the connection in place of the answer to a commit of a
/// change as often as `lost` says.
async fn lose_commits(client: TcpStream, server: TcpStream, lost: Arc<AtomicUsize>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let back = tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        let (mut cut, mut writes) = (false, false);
        while !cut {
            let read = from_client.read(&mut buffer).await.unwrap_or(0);
            if read == 0 {
                break;
            }
            let has = |word: &[u8]| buffer[..read].windows(word.len()).any(|part| part == word);
            // What only reads is not counted.
            writes = (writes || has(b"READ WRITE")) && !has(b"READ ONLY");
            if writes && has(b"COMMIT\0") {
                let one_less = |left: usize| left.checked_sub(1);
                cut = lost
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less)
                    .is_ok();
            }
            if to_server.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
        (cut, to_server)
    });
    let mut back = std::pin::pin!(back);
    let mut buffer = vec![0; 64 << 10];
    loop {
        tokio::select! {
            biased;
            ended = &mut back => {
                // The server's answer is read, so that the commit is done, and goes nowhere.
                if let Ok((true, _open)) = ended {
                    let _ = from_server.read(&mut buffer).await;
                }
                return;
            }
            read = from_server.read(&mut buffer) => match read {
                Ok(read) if read > 0 => {
                    if to_client.write_all(&buffer[..read]).await.is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    }
}

#[tokio::test]
async fn a_killed_writer_of_postgresql_leaves_what_it_was_answered() {
    let place = cluster::shared().socket(&cluster::shared().schema());
    let server = Server::new(&place, None).expect("a server");
    let store = Store::connect(&server).await.expect("a store");
    store.register(&ws()).await.expect("registered");
    put(&store, "log", Base::New, "").await.expect("v1");
    let answered = load::killed(&place);
    load::check(&store, &answered).await;
}
