//! What holds of every store, told once and run on both databases.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use marshal_model::limits;
use marshal_store::{
    Author, AuthorKind, Base, Cause, Content, ContentState, Diff, Digest, FileData, FilePath,
    FileSelector, Origin, Retention, Store, StoreError, Version, WorkspaceId,
};

pub(crate) fn ws() -> WorkspaceId {
    WorkspaceId::new("shop").expect("an id")
}

pub(crate) fn path(text: &str) -> FilePath {
    FilePath::new(text).expect("a path")
}

pub(crate) fn at(text: &str) -> FileSelector {
    FileSelector::Path(ws(), path(text))
}

pub(crate) fn by(name: &str) -> Origin {
    Origin::new(Author::new(AuthorKind::Agent, name))
}

pub(crate) fn text_file(text: &str) -> FileData {
    FileData {
        content: Content::from(text.as_bytes()),
        exec: false,
    }
}

pub(crate) async fn put(
    store: &Store,
    name: &str,
    base: Base,
    text: &str,
) -> Result<Version, StoreError> {
    store
        .put(
            &ws(),
            &path(name),
            base,
            text_file(text),
            by("ann"),
            Cause::Write,
        )
        .await
}

pub(crate) async fn text(store: &Store, name: &str, v: Option<u64>) -> String {
    let got = store.get(at(name), v).await.expect("a version");
    String::from_utf8(got.content.expect("content").to_vec()).expect("text")
}

#[allow(clippy::too_many_lines, reason = "one life, told in its order")]
pub(crate) async fn life_of_a_file(store: Store) {
    let refused = put(&store, "a.txt", Base::New, "one")
        .await
        .expect_err("refused");
    assert!(matches!(refused, StoreError::NoWorkspace(_)), "{refused}");
    store.register(&ws()).await.expect("registered");
    store.register(&ws()).await.expect("once more");
    assert_eq!(store.workspaces().await.expect("ids"), [ws()]);

    let refused = put(&store, "a.txt", Base::At(1), "x")
        .await
        .expect_err("refused");
    assert!(matches!(refused, StoreError::NoBase { .. }), "{refused}");
    let first = put(&store, "a.txt", Base::New, "one\n").await.expect("v1");
    assert_eq!(
        (first.v, first.base, first.content_state),
        (1, None, ContentState::Stored)
    );
    assert_eq!(first.digest, Some(Digest::of(b"one\n")));
    let mut origin = by("bob");
    (origin.turn, origin.task) = (Some("t1".into()), Some("k1".into()));
    let run = FileData {
        exec: true,
        ..text_file("two\n")
    };
    let second = store
        .put(
            &ws(),
            &path("./a.txt"),
            Base::At(1),
            run,
            origin.clone(),
            Cause::Edit,
        )
        .await
        .expect("v2");
    assert_eq!(
        (second.v, second.base, second.file),
        (2, Some(1), first.file)
    );
    assert!(second.exec && second.at_ms >= first.at_ms && second.origin == origin);

    let refused = put(&store, "a.txt", Base::At(1), "late")
        .await
        .expect_err("stale");
    assert!(
        refused
            .to_string()
            .contains("version is 2, made by agent (edit)"),
        "{refused}"
    );
    let StoreError::Stale { current, .. } = refused else {
        panic!("stale")
    };
    assert_eq!(*current, second);
    assert!(matches!(
        put(&store, "a.txt", Base::New, "x").await,
        Err(StoreError::Stale { .. })
    ));
    assert_eq!(text(&store, "a.txt", None).await, "two\n");
    assert_eq!(text(&store, "a.txt", Some(1)).await, "one\n");
    let refused = store.get(at("a.txt"), Some(3)).await.expect_err("none");
    assert!(matches!(refused, StoreError::NoVersion { v: 3, .. }));
    let Diff::Text { text: lines, .. } = store.diff(at("a.txt"), 1, 2).await.expect("diff") else {
        panic!("text")
    };
    assert!(lines.contains("-one\n+two"), "{lines}");

    let back = store
        .restore(&ws(), &path("a.txt"), 1, Base::At(2), by("ann"))
        .await
        .expect("v3");
    assert_eq!(
        (back.v, back.cause, back.digest),
        (3, Cause::Restore, first.digest)
    );
    let gone = store
        .delete(&ws(), &path("a.txt"), Base::At(3), by("ann"))
        .await
        .expect("v4");
    assert_eq!(
        (gone.v, gone.content_state, gone.digest),
        (4, ContentState::Deleted, None)
    );
    let twice = store
        .delete(&ws(), &path("a.txt"), Base::Any, by("ann"))
        .await;
    assert!(matches!(twice, Err(StoreError::NoFile(_))));
    assert!(store.file(at("a.txt")).await.expect("a file").deleted);
    assert!(matches!(
        store
            .restore(&ws(), &path("a.txt"), 4, Base::Any, by("x"))
            .await,
        Err(StoreError::NoContent { .. })
    ));
    let again = put(&store, "a.txt", Base::New, "three").await.expect("v5");
    assert_eq!((again.v, again.file), (5, first.file));
    let page = store.history(at("a.txt"), None, 3).await.expect("history");
    assert_eq!(
        page.rows.iter().map(|row| row.v).collect::<Vec<_>>(),
        [5, 4, 3]
    );
    let page = store
        .history(FileSelector::Id(first.file), page.next, 3)
        .await
        .expect("history");
    assert_eq!(page.rows, [second, first]);
    assert_eq!(page.next, None);
    assert!(
        store
            .history(at("a.txt"), None, limits::STORE_PAGE + 1)
            .await
            .is_err()
    );
    store.close().await;
    assert!(matches!(
        put(&store, "a.txt", Base::Any, "x").await,
        Err(StoreError::Closed)
    ));
}

pub(crate) async fn names_and_pages(store: Store) {
    store.register(&ws()).await.expect("registered");
    for name in ["src/é", "src/a", "src", "srcs", "b/c", "src/Z"] {
        put(&store, name, Base::New, name).await.expect("written");
    }
    let mut all = Vec::new();
    let mut after = None;
    loop {
        let page = store
            .list(&ws(), "src/", after.as_deref(), 2)
            .await
            .expect("a page");
        all.extend(
            page.rows
                .iter()
                .map(|file| file.current.path.as_str().to_owned()),
        );
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(
        all,
        ["src/Z", "src/a", "src/é"],
        "in the order of bytes in either database"
    );
    let whole = store.list(&ws(), "", None, 200).await.expect("a page");
    assert_eq!(whole.rows.len(), 6);

    let v1 = store.file(at("src/a")).await.expect("a file").current;
    let refused = store
        .rename(&ws(), &path("src/a"), &path("b/c"), Base::Any, by("ann"))
        .await;
    assert!(matches!(refused, Err(StoreError::Exists(_))));
    let moved = store
        .rename(
            &ws(),
            &path("src/a"),
            &path("lib/a"),
            Base::At(1),
            by("ann"),
        )
        .await
        .expect("moved");
    assert_eq!(
        (moved.file, moved.v, moved.cause),
        (v1.file, 2, Cause::Rename)
    );
    assert_eq!(text(&store, "lib/a", None).await, "src/a");
    assert!(matches!(
        store.file(at("src/a")).await,
        Err(StoreError::NoFile(_))
    ));
    let by_id = store.file(FileSelector::Id(v1.file)).await.expect("a file");
    assert_eq!(by_id.current.path, path("lib/a"));
    let new = put(&store, "src/a", Base::New, "another")
        .await
        .expect("written");
    assert!(new.v == 1 && new.file != v1.file);

    let other = WorkspaceId::new("other").expect("an id");
    store.register(&other).await.expect("registered");
    assert!(
        store
            .list(&other, "", None, 10)
            .await
            .expect("a page")
            .rows
            .is_empty()
    );
    let mut long = by("x");
    long.turn = Some("t\0".into());
    let refused = store
        .put(
            &ws(),
            &path("n"),
            Base::Any,
            text_file(""),
            long,
            Cause::Write,
        )
        .await;
    assert!(matches!(refused, Err(StoreError::Name(_))));
}

pub(crate) async fn what_is_found_on_disk(store: Store) {
    store.register(&ws()).await.expect("registered");
    let observe = async |name: &str, given: Option<FileData>| {
        store
            .observe(&ws(), &path(name), given, Origin::new(Author::observed()))
            .await
            .expect("observed")
    };
    assert_eq!(observe("f", None).await, None);
    let first = observe("f", Some(text_file("x"))).await.expect("v1");
    assert_eq!((first.v, first.cause), (1, Cause::Observed));
    assert_eq!(first.origin.author.kind, AuthorKind::Observed);
    assert_eq!(
        observe("f", Some(text_file("x"))).await,
        None,
        "known already"
    );
    let run = FileData {
        exec: true,
        ..text_file("x")
    };
    assert_eq!(observe("f", Some(run)).await.expect("v2").v, 2);
    put(&store, "f", Base::At(2), "y").await.expect("v3");
    assert_eq!(
        observe("f", Some(text_file("y"))).await,
        None,
        "written through the store"
    );
    assert_eq!(
        observe("f", None).await.expect("v4").content_state,
        ContentState::Deleted
    );
    assert_eq!(observe("f", None).await, None);

    let large = vec![7_u8; limits::STORE_CONTENT_BYTES + 1];
    let digest = Digest::of(&large);
    let large = FileData {
        content: Content::Whole(Bytes::from(large)),
        exec: false,
    };
    let stored = observe("large", Some(large)).await.expect("v1");
    assert_eq!(
        (stored.content_state, stored.digest),
        (ContentState::DigestOnly, Some(digest))
    );
    assert_eq!(stored.bytes, limits::STORE_CONTENT_BYTES as u64 + 1);
    let got = store.get(at("large"), None).await.expect("a version");
    assert_eq!(got.content, None);
    let refused = store
        .restore(&ws(), &path("large"), 1, Base::Any, by("x"))
        .await;
    assert!(matches!(refused, Err(StoreError::NoContent { .. })));
    put(&store, "large", Base::At(1), "small")
        .await
        .expect("v2");
    assert_eq!(
        store.diff(at("large"), 1, 2).await.expect("diff"),
        Diff::NotStored
    );
}

pub(crate) async fn content_is_kept_once_and_swept(store: Store) {
    store.register(&ws()).await.expect("registered");
    // Several chunks, and a last one that is not full.
    let large: Vec<u8> = (0..251_u8)
        .cycle()
        .take(2 * limits::STORE_CHUNK_BYTES + 5)
        .collect();
    let large = FileData {
        content: Content::Whole(Bytes::from(large)),
        exec: false,
    };
    for name in ["one", "two"] {
        put_whole(&store, name, Base::New, &large).await;
        put_n(&store, name, 4).await;
    }
    let got = store.get(at("two"), Some(1)).await.expect("a version");
    assert_eq!(got.content, large.content_bytes());
    let all = Retention {
        keep_newest: 10,
        keep_younger_than: Duration::ZERO,
        max_bytes: u64::MAX,
    };
    let swept = store.sweep(all).await.expect("swept");
    let size = 2 * limits::STORE_CHUNK_BYTES as u64 + 5;
    assert_eq!(
        (swept.versions, swept.bytes_left),
        (0, size + 8),
        "each content is there once"
    );

    let young = Retention {
        keep_newest: 1,
        keep_younger_than: Duration::from_secs(3600),
        max_bytes: u64::MAX,
    };
    assert_eq!(store.sweep(young).await.expect("swept").versions, 0);
    // Beyond the bound of bytes the young go too, oldest first, but never the newest: four of `one`, whose
    // content `two` has as well, and the first of `two`.
    let tight = Retention {
        max_bytes: 8,
        ..young
    };
    let swept = store.sweep(tight).await.expect("swept");
    assert_eq!(
        (swept.versions, swept.blobs, swept.bytes_freed),
        (5, 1, size)
    );
    assert!(!swept.has_more && swept.bytes_left == 8);
    tokio::time::sleep(Duration::from_millis(5)).await;
    let few = Retention {
        keep_newest: 2,
        keep_younger_than: Duration::ZERO,
        max_bytes: u64::MAX,
    };
    let swept = store.sweep(few).await.expect("swept");
    assert_eq!((swept.versions, swept.bytes_left), (2, 4));
    let page = store.history(at("two"), None, 10).await.expect("history");
    assert_eq!(
        page.rows.iter().map(|row| row.v).collect::<Vec<_>>(),
        [5, 4]
    );
    assert!(matches!(
        store.get(at("one"), Some(1)).await,
        Err(StoreError::NoVersion { .. })
    ));
    assert_eq!(text(&store, "one", None).await, "v4");
    // What was swept comes back whole when it is written again.
    put_whole(&store, "two", Base::Any, &large).await;
    let got = store.get(at("two"), None).await.expect("a version");
    assert_eq!(got.content, large.content_bytes());
}

async fn put_n(store: &Store, name: &str, n: u64) {
    for n in 1..=n {
        put(store, name, Base::At(n), &format!("v{n}"))
            .await
            .expect("written");
    }
}

async fn put_whole(store: &Store, name: &str, base: Base, given: &FileData) {
    let (ws, path) = (ws(), path(name));
    let put = store.put(&ws, &path, base, given.clone(), by("ann"), Cause::Write);
    put.await.expect("written");
}

trait Whole {
    fn content_bytes(&self) -> Option<Bytes>;
}

impl Whole for FileData {
    fn content_bytes(&self) -> Option<Bytes> {
        match &self.content {
            Content::Whole(bytes) => Some(bytes.clone()),
            Content::DigestOnly { .. } => None,
        }
    }
}

/// Of two writers with one base exactly one wins, and with retries nothing of eight is lost.
/// `second`: the same store once more, as another supervisor has it.
pub(crate) async fn writers_at_once(store: Store, second: Store) {
    let stores = [Arc::new(store), Arc::new(second)];
    stores[0].register(&ws()).await.expect("registered");
    put(&stores[0], "f", Base::New, "").await.expect("v1");
    for round in 1..=10 {
        let (one, two) = tokio::join!(
            put(&stores[0], "f", Base::At(round), "one"),
            put(&stores[1], "f", Base::At(round), "two"),
        );
        let (won, lost) = if one.is_ok() { (one, two) } else { (two, one) };
        let won = won.expect("one wins");
        let Err(StoreError::Stale { current, .. }) = lost else {
            panic!("{lost:?}")
        };
        assert_eq!((won.v, *current), (round + 1, won));
    }
    // New files too: who is second is told of the first.
    let (one, two) = tokio::join!(
        put(&stores[0], "new", Base::New, "one"),
        put(&stores[1], "new", Base::New, "two"),
    );
    assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");

    put(&stores[0], "log", Base::New, "").await.expect("v1");
    let writers = (0..8).map(|writer| {
        let store = Arc::clone(&stores[writer % 2]);
        tokio::spawn(async move {
            for n in 0..50 {
                append(&store, &format!("{writer}.{n}")).await;
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("a writer");
    }
    let log = text(&stores[1], "log", None).await;
    let mut lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 400);
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 400, "every edit is there, once");
    let file = stores[0].file(at("log")).await.expect("a file");
    assert_eq!(file.current.v, 401, "the numbers have no gap");
}

/// Adds a line, as often as it takes, also while a server is gone for longer than the store waits.
pub(crate) async fn append(store: &Store, line: &str) {
    let mut unknown = false;
    for _ in 0..100_000 {
        let got = match store.get(at("log"), None).await {
            Ok(got) => got,
            Err(StoreError::Unreachable { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        let old = got.content.expect("content");
        let old = String::from_utf8_lossy(&old);
        if unknown && old.lines().any(|there| there == line) {
            return;
        }
        let new = format!("{old}{line}\n");
        match put(store, "log", Base::At(got.version.v), &new).await {
            Ok(_) => return,
            Err(StoreError::Stale { .. }) => {}
            Err(StoreError::Unreachable { unknown: lost, .. }) => unknown |= lost,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{line} was never written");
}

pub(crate) async fn deleted(store: &Store, name: &str) -> Version {
    let gone = store.delete(&ws(), &path(name), Base::Any, by("ann")).await;
    gone.expect("gone")
}

async fn renamed(store: &Store, from: &str, to: &str) -> Version {
    let (from, to) = (path(from), path(to));
    let moved = store.rename(&ws(), &from, &to, Base::Any, by("ann")).await;
    moved.expect("moved")
}

/// What is gone for long goes whole, also its name; what was never there leaves no trace. `count`:
/// the rows of a table.
pub(crate) async fn what_is_gone_is_forgotten(store: Store, count: impl Fn(&str) -> i64) {
    store.register(&ws()).await.expect("registered");
    let observed = Origin::new(Author::observed());
    for n in 0..20 {
        let name = path(&format!("never/{n}"));
        let seen = store.observe(&ws(), &name, None, observed.clone()).await;
        assert_eq!(seen.expect("observed"), None);
    }
    assert_eq!(count("marshal_paths"), 0, "nothing is known of nothing");
    let large = FileData {
        content: Content::Whole(Bytes::from(vec![7_u8; 3 * limits::STORE_CHUNK_BYTES])),
        exec: false,
    };
    let size = 3 * limits::STORE_CHUNK_BYTES as u64;
    put_whole(&store, "gone", Base::New, &large).await;
    put(&store, "gone", Base::At(1), "two").await.expect("v2");
    put(&store, "stays", Base::New, "two").await.expect("v1");
    put(&store, "moved", Base::New, "m").await.expect("v1");
    let moved = renamed(&store, "moved", "to").await;
    let gone = deleted(&store, "gone").await;
    // A file that is gone, and another one in its place.
    deleted(&store, "to").await;
    put(&store, "other", Base::New, "o").await.expect("v1");
    renamed(&store, "other", "to").await;
    tokio::time::sleep(Duration::from_millis(5)).await;

    // Younger than it is kept, and below the bound: everything stays but the rows of no file.
    let young = Retention {
        keep_newest: 20,
        keep_younger_than: Duration::from_secs(3600),
        max_bytes: u64::MAX,
    };
    assert_eq!(count("marshal_paths"), 5);
    let swept = store.sweep(young).await.expect("swept");
    assert_eq!((swept.versions, swept.files, swept.has_more), (0, 0, false));
    assert_eq!(count("marshal_paths"), 3, "gone, stays, to");
    assert_eq!(text(&store, "gone", Some(2)).await, "two");
    // Beyond the bound what is gone goes, as much as is needed, the longest gone first.
    let tight = Retention {
        max_bytes: size,
        ..young
    };
    let swept = store.sweep(tight).await.expect("swept");
    assert_eq!(
        (swept.files, swept.versions, swept.bytes_freed),
        (1, 3, size)
    );
    assert_eq!((swept.bytes_left, swept.has_more), (3 + 1 + 1, false));
    let refused = store
        .file(FileSelector::Id(gone.file))
        .await
        .expect_err("gone");
    assert!(matches!(refused, StoreError::NoFile(_)), "{refused}");
    assert!(store.file(FileSelector::Id(moved.file)).await.is_ok());
    // What is gone for longer than it is kept goes by itself; what is there stays.
    let old = Retention {
        keep_younger_than: Duration::ZERO,
        ..young
    };
    let swept = store.sweep(old).await.expect("swept");
    assert_eq!(
        (swept.files, swept.versions, swept.bytes_left),
        (1, 3, 3 + 1)
    );
    assert_eq!(count("marshal_files"), 2);
    assert_eq!(count("marshal_paths"), 2);
    assert_eq!(count("marshal_versions"), 3);
    assert_eq!(text(&store, "stays", None).await, "two");
    assert_eq!(text(&store, "to", None).await, "o");
    let again = put(&store, "gone", Base::New, "again").await.expect("v1");
    assert!(again.v == 1 && again.file != gone.file);
    store.close().await;
}

/// Files that come and go while sweeps forget them: nobody is refused, nothing is lost.
pub(crate) async fn writers_beside_sweeps(store: Store, second: Store) {
    store.register(&ws()).await.expect("registered");
    let all = Retention {
        keep_newest: 1,
        keep_younger_than: Duration::ZERO,
        max_bytes: 0,
    };
    let ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let over = Arc::clone(&ended);
    let sweeps = tokio::spawn(async move {
        let mut files = 0;
        while !over.load(std::sync::atomic::Ordering::SeqCst) {
            let began = Instant::now();
            files += second.sweep(all).await.expect("swept").files;
            // SQLite's lock has no queue: on a slow machine, too, it is free for as long as it was held.
            let held = began.elapsed().max(Duration::from_millis(5));
            tokio::time::sleep(held).await;
        }
        files
    });
    for n in 0..100 {
        let made = put(&store, "f", Base::New, &format!("{n}")).await;
        let made = made.expect("made");
        assert_eq!(text(&store, "f", None).await, format!("{n}"));
        let next = put(&store, "f", Base::At(made.v), "next").await;
        assert_eq!(next.expect("next").v, made.v + 1);
        deleted(&store, "f").await;
    }
    ended.store(true, std::sync::atomic::Ordering::SeqCst);
    let files = sweeps.await.expect("sweeps");
    let left = store.sweep(all).await.expect("swept");
    assert!(files + left.files > 0, "some were forgotten");
    tokio::time::sleep(Duration::from_millis(5)).await;
    store.sweep(all).await.expect("swept");
    let refused = store.file(at("f")).await.expect_err("gone");
    assert!(matches!(refused, StoreError::NoFile(_)), "{refused}");
}
