//! The supervisor's own process, read from proc(5).
//!
//! Owns only the reading; the numbers go into the metrics unchanged.

use std::io;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use marshal_launch::cgroup::{STALL_RESOURCES, parse_stalls};
use marshal_telemetry::{ProcessStats, StallSeconds};

/// Reads `/proc/self`: three small files and one directory. That takes tens of microseconds, and a
/// few more per thousand descriptors.
///
/// # Errors
/// The system's error, or `InvalidData` if a file does not have the format of proc(5).
pub fn read() -> io::Result<ProcessStats> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let uptime_base = boot_time()?;
    let ticks = clock_ticks_per_second() as f64;
    // The command name is in parentheses and may itself have spaces and parentheses.
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .map(|(_, rest)| rest.split_ascii_whitespace().collect())
        .ok_or_else(|| odd("stat"))?;
    // The field numbers are those of proc(5); the third is the first one here.
    let field = |number: usize| -> io::Result<f64> {
        fields
            .get(number - 3)
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| odd("stat"))
    };
    let (user, system, start) = (field(14)?, field(15)?, field(22)?);
    let pages: u64 = statm
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| odd("statm"))?;
    // The open directory itself uses one descriptor.
    let open = std::fs::read_dir("/proc/self/fd")?
        .count()
        .saturating_sub(1);
    Ok(ProcessStats {
        cpu_seconds: (user + system) / ticks,
        resident_bytes: pages.saturating_mul(page_size() as u64),
        open_fds: open as u64,
        max_fds: getrlimit(Resource::Nofile).current,
        start_time_seconds: uptime_base + start / ticks,
    })
}

/// Reads the stall times of the whole host from `/proc/pressure`; none if the kernel has none.
#[must_use]
pub fn pressure() -> StallSeconds {
    STALL_RESOURCES.map(|resource| {
        let text = std::fs::read_to_string(format!("/proc/pressure/{resource}"));
        let micros = parse_stalls(&text.unwrap_or_default());
        micros.map(|micros| micros.map(|micros| micros as f64 / 1e6))
    })
}

/// Returns when the host was booted: seconds since the Unix epoch (`btime` of /proc/stat).
fn boot_time() -> io::Result<f64> {
    std::fs::read_to_string("/proc/stat")?
        .lines()
        .find_map(|line| line.strip_prefix("btime "))
        .and_then(|text| text.trim().parse().ok())
        .ok_or_else(|| odd("../stat"))
}

fn odd(file: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("/proc/self/{file} does not have the format of proc(5)"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_this_process() {
        let before = read().expect("proc");
        let files: Vec<std::fs::File> = (0..20)
            .map(|_| std::fs::File::open("/dev/null").expect("null"))
            .collect();
        let after = read().expect("proc");
        // Other tests of this process open and close descriptors at the same time.
        assert!(after.open_fds + 15 >= before.open_fds + files.len() as u64);
        assert!(after.cpu_seconds >= before.cpu_seconds);
        assert!((1 << 20..1 << 40).contains(&after.resident_bytes));
        assert!(after.max_fds.is_some_and(|max| max >= after.open_fds));
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970")
            .as_secs_f64();
        assert!((now - 3600.0..=now + 2.0).contains(&after.start_time_seconds));
    }
}
