//! A measurement that only prints its result:
//! `cargo test --release --lib pace -- --ignored --nocapture`.

use super::*;

/// User and system time of this process so far.
fn cpu() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("stat");
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .expect("fields")
        .split_whitespace()
        .collect();
    let ticks = |number: usize| fields[number - 3].parse::<u64>().expect("ticks");
    Duration::from_millis((ticks(14) + ticks(15)) * 10)
}

/// The events of a batch of one session, 100 bytes of text each.
fn batch(id: &SessionId, epoch: u64, from: u64, count: u64) -> Vec<Write> {
    (from..from + count)
        .map(|seq| {
            let delta = UntrustedText::new("x".repeat(100));
            event(id, epoch, seq, Event::Text { delta })
        })
        .collect()
}

#[test]
#[ignore = "a measurement"]
fn events_a_second_and_cpu_an_event() {
    for (size, in_flight) in [(1, 1), (1, 100), (128, 1), (128, 4), (128, 64)] {
        let dir = tempdir();
        let journal = open(dir.path());
        let id = session("s");
        assert_durable(&commit(&journal, vec![session_begun(&id)]));
        let batches = if size == 1 { 20_000 } else { 4_000 };
        let (tx, rx) = callback_channel();
        let (started, cpu_before) = (Instant::now(), cpu());
        let mut open = 0;
        for number in 0..batches {
            let tx = tx.clone();
            let writes = batch(&id, journal.epoch(), number * size + 1, size);
            let commit = Commit::new(writes).with_callback(move |_| {
                let _ = tx.send(());
            });
            journal.submit(commit).expect("accepted");
            open += 1;
            while open >= in_flight {
                rx.recv_timeout(LONG).expect("an end");
                open -= 1;
            }
        }
        journal.close(LONG).expect("flushed");
        let (took, used) = (started.elapsed(), cpu().saturating_sub(cpu_before));
        let events = (batches * size) as f64;
        println!(
            "{size} events a commit, {in_flight} commits in flight: {:.0} events/s, {:.2} us CPU an event",
            events / took.as_secs_f64(),
            used.as_secs_f64() * 1e6 / events
        );
    }
}
