//! An idle chat leaves its slot for a task that waits, and goes on where it was.

use std::time::Duration;

use crate::chat_client::{DIALECTS, Daemon, LONG, drill};
use crate::drill::eventually;

#[test]
fn an_idle_chat_gives_way_to_a_task_at_once_and_goes_on_afterwards() {
    for dialect in DIALECTS {
        let drill = drill(dialect, 1);
        let daemon = Daemon::start(&drill);
        let chat = daemon.create("say one");
        let mut stream = daemon.follow(&chat, None);
        stream.any_turn();
        assert_eq!(drill.agents().len(), 1, "the chat keeps its agent");
        let ran = drill.run(&["run", "say two", "say three"]);
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        let waited = "SELECT max(begun_at_us - queued_at_us) FROM tasks WHERE id = 'task-1'";
        let waited: i64 = drill
            .database()
            .query_row(waited, [], |row| row.get(0))
            .expect("a task");
        let waited = Duration::from_micros(waited.unsigned_abs());
        println!("{dialect}: the task began after {waited:?}");
        // Without the chat's leave, it would be the ten minutes of chat.idle.
        assert!(waited < Duration::from_secs(20), "{waited:?}");
        let turn = daemon.say(&chat, "say four");
        let events = stream.turn(&turn);
        assert!(!events.is_empty());
        eventually(LONG, "the chat has its agent again", || {
            drill.agents().len() == 1
        });
    }
}
