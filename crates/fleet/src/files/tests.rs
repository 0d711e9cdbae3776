//! Disk and store of a registered workspace, with a real directory and a real store.

use std::os::unix::fs::symlink;

use super::*;
use marshal_config::Origin as From;
use marshal_store::AuthorKind;

struct World {
    dir: tempfile::TempDir,
    files: WorkspaceFiles,
    work: WorkspaceName,
}

async fn world() -> World {
    let dir = tempfile::tempdir().expect("directory");
    let base = std::fs::canonicalize(dir.path()).expect("real");
    for name in ["work/inner", "state", "out"] {
        std::fs::create_dir_all(base.join(name)).expect("made");
    }
    let text = format!(
        "[pool.p]\ncommand = [\"agent\"]\ndialect = \"acp\"\n[workspace.work]\npath = \"{0}/work\"\n[workspace.same]\npath = \"{0}/work\"\n[workspace.inner]\npath = \"{0}/work/inner\"\n",
        base.display()
    );
    let config = base.join("work/supervisor.toml");
    std::fs::write(&config, &text).expect("written");
    let origin = From {
        file: Some(config),
        dir: base.join("work"),
        is_explicit: true,
    };
    let config = Config::parse(&text, &origin).expect("a configuration");
    let state = base.join("state");
    let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(&state, private).expect("private");
    let store = Store::open(&state).expect("a store");
    let config = Arc::new(config);
    let files = WorkspaceFiles::start(Some(store), &config, &state, &Ambient::default()).await;
    World {
        files: files.expect("files"),
        work: WorkspaceName::new("work").expect("a name"),
        dir,
    }
}

fn draft(base: Base, text: &str) -> Draft {
    Draft {
        base,
        bytes: Bytes::copy_from_slice(text.as_bytes()),
        origin: Origin::new(Author::new(AuthorKind::Person, "ann")),
        cause: Cause::Write,
        expected_digest: None,
        restores: None,
    }
}

impl World {
    async fn write(&self, path: &str, base: Base, text: &str) -> Result<Version, FilesError> {
        let spot = self.files.resolve(&self.work, path)?;
        let place = |stood, bytes| {
            self.files
                .place_file(&spot, Parents::Make, stood, (bytes, None))
        };
        self.files
            .write_version(&spot, draft(base, text), place)
            .await
    }

    fn at(&self, path: &str) -> PathBuf {
        self.dir.path().join("work").join(path)
    }

    async fn history(&self, path: &str) -> Vec<(u64, Cause, AuthorKind)> {
        let spot = self.files.resolve(&self.work, path).expect("a file");
        let which = FileSelector::Path(spot.id, spot.path);
        let store = self.files.store().expect("a store");
        let page = store.history(which, None, 100).await.expect("a history");
        let rows = page.rows.into_iter().rev();
        rows.map(|item| (item.v, item.cause, item.origin.author.kind))
            .collect()
    }
}

#[tokio::test]
async fn a_write_is_a_version_and_on_the_disk_and_a_stale_one_is_refused() {
    let world = world().await;
    let one = world.write("/d/a", Base::New, "one").await.expect("made");
    assert_eq!(one.v, 1);
    assert_eq!(std::fs::read(world.at("d/a")).expect("there"), b"one");
    let two = world.write("d/a", Base::At(1), "two").await.expect("made");
    assert_eq!((two.v, two.base), (2, Some(1)));
    for base in [Base::At(1), Base::New] {
        let stale = world.write("d/a", base, "three").await;
        let Err(FilesError::Store(StoreError::Stale { current, .. })) = stale else {
            panic!("{stale:?}");
        };
        assert_eq!(current.v, 2);
    }
    assert_eq!(std::fs::read(world.at("d/a")).expect("there"), b"two");
    assert_eq!(world.history("d/a").await.len(), 2);
    let any = world.write("d/a", Base::Any, "any").await.expect("made");
    assert_eq!((any.v, any.base), (3, Some(2)));
}

#[tokio::test]
async fn what_somebody_else_wrote_is_a_version_before_it_is_written_over() {
    let world = world().await;
    std::fs::write(world.at("a"), "theirs").expect("written");
    world.write("a", Base::Any, "ours").await.expect("made");
    std::fs::write(world.at("a"), "theirs again").expect("written");
    let stale = world.write("a", Base::At(2), "lost?").await;
    assert!(
        matches!(&stale, Err(FilesError::Store(StoreError::Stale { current, .. })) if current.v == 3),
        "{stale:?}"
    );
    std::fs::remove_file(world.at("a")).expect("removed");
    world.write("a", Base::New, "new").await.expect("made");
    let (person, observed) = (AuthorKind::Person, AuthorKind::Observed);
    assert_eq!(
        world.history("a").await,
        [
            (1, Cause::Observed, observed),
            (2, Cause::Write, person),
            (3, Cause::Observed, observed),
            (4, Cause::Observed, observed),
            (5, Cause::Write, person),
        ]
    );
}

/// A kill between the write of the version and the write of the disk, and a disk write that fails.
#[tokio::test]
async fn a_version_that_did_not_reach_the_disk_is_followed_by_what_stands_there() {
    let world = world().await;
    world.write("a", Base::New, "one").await.expect("made");
    let spot = world.files.resolve(&world.work, "a").expect("a file");
    let killed = draft(Base::At(1), "two");
    let settled = world.files.sync(&spot).await.expect("looked");
    let put = world.files.put_version(&spot, &killed, &settled).await;
    assert_eq!(put.expect("put").0.v, 2);
    let settled = world.files.sync(&spot).await.expect("looked");
    let (current, observed) = (settled.current.expect("one"), settled.observed);
    assert_eq!((current.v, current.cause), (3, Cause::Observed));
    assert_eq!(observed, Some(current.clone()));
    assert_eq!(current.digest, Some(Digest::of(b"one")));

    let refuse = |_: PriorContent, _: Bytes| async {
        std::fs::write(world.at("a"), "raced").expect("written");
        Err(FilesError::Stopping)
    };
    let refused = world
        .files
        .write_version(&spot, draft(Base::At(3), "x"), refuse);
    refused.await.expect_err("refused");
    let last = world.history("a").await.pop();
    assert_eq!(last, Some((5, Cause::Observed, AuthorKind::Observed)));
    let settled = world.files.sync(&spot).await.expect("looked");
    assert_eq!(
        settled.current.and_then(|item| item.digest),
        Some(Digest::of(b"raced"))
    );
    assert_eq!(settled.observed, None);
}

#[tokio::test]
async fn nothing_outside_and_nothing_of_the_supervisors_is_reached() {
    let world = world().await;
    symlink(world.dir.path().join("out"), world.at("way")).expect("linked");
    for path in [
        "../out/a",
        "way/a",
        "supervisor.toml",
        "",
        "/",
        "inner/a",
        "d/.env",
        ".git/config",
    ] {
        let done = world.write(path, Base::Any, "x").await;
        assert!(done.is_err(), "{path}: {done:?}");
    }
    let out = std::fs::read_dir(world.dir.path().join("out")).expect("listed");
    assert_eq!(out.count(), 0);
    let text = std::fs::read_to_string(world.at("supervisor.toml")).expect("there");
    assert!(text.starts_with("[pool.p]"), "{text}");
    let inner = world
        .files
        .resolve(&world.work, "inner/a")
        .expect_err("inner");
    assert!(inner.to_string().contains("workspace inner"), "{inner}");
    // Two workspaces with one directory share one history.
    let same = WorkspaceName::new("same").expect("a name");
    let one = world.files.resolve(&same, "a").expect("a file");
    let other = world.files.resolve(&world.work, "a").expect("a file");
    assert_eq!(one.id, other.id);
}

#[tokio::test]
async fn of_many_writers_with_one_base_one_wins() {
    let world = world().await;
    world.write("a", Base::New, "0").await.expect("made");
    let try_it = |text: &'static str| world.write("a", Base::At(1), text);
    let won = tokio::join!(try_it("1"), try_it("2"), try_it("3"), try_it("4"));
    let won = [won.0, won.1, won.2, won.3];
    assert_eq!(won.iter().filter(|won| won.is_ok()).count(), 1);
    assert_eq!(world.history("a").await.len(), 2);
}

/// Restores versions without and with the executable bit, also after the file was deleted.
#[tokio::test]
async fn what_is_restored_may_be_run_as_its_version_may() {
    use std::os::unix::fs::PermissionsExt as _;
    let world = world().await;
    world.write("run", Base::New, "one").await.expect("made");
    let file = world.at("run");
    let mode = || {
        std::fs::metadata(&file)
            .expect("there")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode(), 0o644);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o754)).expect("mode");
    let spot = world.files.resolve(&world.work, "run").expect("a file");
    let settled = world.files.sync(&spot).await.expect("looked");
    assert_eq!(
        settled.observed.map(|item| (item.v, item.exec)),
        Some((2, true))
    );
    let restore = async |v: u64| {
        let by = Origin::new(Author::new(AuthorKind::Person, "ann"));
        let made = world
            .files
            .restore(&spot, (v, Base::Any), by)
            .await
            .expect("restored");
        let settled = world.files.sync(&spot).await.expect("looked");
        assert_eq!(settled.observed, None, "disk and store agree");
        made.v
    };
    assert_eq!((restore(1).await, mode()), (3, 0o644));
    assert_eq!((restore(2).await, mode()), (4, 0o755));
    std::fs::remove_file(&file).expect("removed");
    // The fifth version is the deletion.
    assert_eq!((restore(2).await, mode()), (6, 0o755));
}

#[tokio::test]
async fn a_moved_file_keeps_its_id_and_a_replaced_one_its_own() {
    let world = world().await;
    let first = world.write("a", Base::New, "one").await.expect("written");
    let other = world.write("b", Base::New, "two").await.expect("written");
    let at = |path: &str| world.files.resolve(&world.work, path).expect("a file");
    let origin = || Origin::new(Author::new(AuthorKind::Observed, "s"));
    let observe = async |from: &str, to: &str| {
        let (from, to) = (at(from), at(to));
        let renamed = world.files.observe_rename(&from, &to, origin()).await;
        renamed.expect("observed")
    };
    // Nothing was moved yet.
    assert_eq!(observe("a", "c").await, None);
    std::fs::rename(world.at("a"), world.at("c")).expect("renamed");
    std::fs::write(world.at("c"), "one more").expect("written");
    let moved = observe("a", "c").await.expect("a version");
    assert_eq!(
        (moved.file, moved.v, moved.cause),
        (first.file, 2, Cause::Rename)
    );
    let synced = world.files.sync(&at("c")).await.expect("synced");
    let observed = synced.observed.expect("its new content");
    assert_eq!((observed.file, observed.v), (first.file, 3));
    // An editor's way to save: the file keeps its name, so it is the same file.
    std::fs::rename(world.at("c"), world.at("b")).expect("renamed");
    assert_eq!(observe("c", "b").await, None);
    let synced = world.files.sync(&at("b")).await.expect("synced");
    assert_eq!(
        synced.observed.map(|version| version.file),
        Some(other.file)
    );
    let gone = world.files.sync(&at("c")).await.expect("synced");
    let gone = gone.observed.expect("it is gone");
    assert_eq!((gone.file, gone.digest), (first.file, None));
}

#[tokio::test]
async fn a_file_is_moved_on_the_disk_and_in_the_store_or_in_neither() {
    let world = world().await;
    let first = world.write("a", Base::New, "one").await.expect("written");
    let other = world.write("b", Base::New, "two").await.expect("written");
    let at = |path: &str| world.files.resolve(&world.work, path).expect("a file");
    let move_to = async |from: &str, to: &str, base: Base| {
        let origin = Origin::new(Author::new(AuthorKind::Person, "ann"));
        let (from, to) = (at(from), at(to));
        world.files.move_version((&from, &to), base, origin).await
    };
    let moved = move_to("a", "deep/er/c", Base::At(1)).await.expect("moved");
    assert_eq!(
        (moved.file, moved.v, moved.cause),
        (first.file, 2, Cause::Rename)
    );
    assert_eq!(std::fs::read(world.at("deep/er/c")).expect("there"), b"one");
    assert!(!world.at("a").exists());
    let exists = move_to("deep/er/c", "b", Base::Any).await;
    assert!(
        matches!(exists, Err(FilesError::Store(StoreError::Exists(_)))),
        "{exists:?}"
    );
    let stale = move_to("deep/er/c", "d", Base::At(1)).await;
    assert!(
        matches!(stale, Err(FilesError::Store(StoreError::Stale { .. }))),
        "{stale:?}"
    );
    let none = move_to("a", "d", Base::Any).await;
    assert!(matches!(none, Err(FilesError::NoFile(_))), "{none:?}");
    // The disk refuses: a parent of the new path is a file.
    let refused = move_to("deep/er/c", "b/x", Base::Any).await;
    assert!(
        matches!(refused, Err(FilesError::Disk { .. })),
        "{refused:?}"
    );
    for (path, file, content) in [("deep/er/c", first.file, "one"), ("b", other.file, "two")] {
        let synced = world.files.sync(&at(path)).await.expect("synced");
        assert_eq!(synced.observed, None, "disk and store agree");
        let current = synced.current.expect("a version");
        assert_eq!((current.file, current.path.as_str()), (file, path));
        assert_eq!(
            std::fs::read_to_string(world.at(path)).expect("there"),
            content
        );
    }
}
