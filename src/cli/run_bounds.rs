//! `run --until`, `--grace`, `--max-cost` and `--jobs`: the limits of a run.
//!
//! Owns their format. Must not know what happens when a limit is reached.

use std::time::Duration;

use clap::Args;
use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};

use super::run::Job;
use marshal_config::{Config, may_report_no_cost, read_duration};
use marshal_fleet::RunBounds;
use marshal_model::PoolName;
use marshal_model::budget::nanos_from_dollars;
use marshal_model::limits::RUN_JOBS;

/// The options.
#[derive(Debug, Clone, Default, Args)]
pub struct BoundArgs {
    /// Start no task after this time: 07:00 (the next one, in local time) or 2026-01-31T07:00:00Z
    ///
    /// Tasks that run at that time may continue for --grace, and are then cancelled. Tasks that
    /// have not begun are `skipped`.
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,

    /// How long tasks that run at --until may continue (default: 5m)
    #[arg(long, value_name = "DURATION", requires = "until", value_parser = read_duration)]
    pub grace: Option<Duration>,

    /// Start no more tasks, and cancel running ones, once the run has cost this many US dollars
    #[arg(long, value_name = "DOLLARS", value_parser = cost)]
    pub max_cost: Option<u64>,

    /// Start no more tasks, and cancel running ones, once the run has used this many tokens
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub max_tokens: Option<u64>,

    /// Run at most this many tasks at once, over all pools
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(RUN_JOBS)))]
    pub jobs: Option<u16>,
}

fn cost(text: &str) -> Result<u64, String> {
    let amount = text.strip_prefix('$').unwrap_or(text).parse::<f64>().ok();
    let nano = amount.and_then(nanos_from_dollars).filter(|nano| *nano > 0);
    nano.ok_or_else(|| "expected US dollars, a number above 0, such as 40 or 2.50".to_owned())
}

impl BoundArgs {
    /// The limits of the run; a time of day is its next occurrence from now on.
    ///
    /// # Errors
    /// The time is not valid, or has passed.
    pub fn bounds(&self) -> Result<RunBounds, String> {
        let until = self
            .until
            .as_deref()
            .map(|text| next(text, Timestamp::now(), &TimeZone::system()));
        let millis = |grace: Duration| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        Ok(RunBounds {
            until_us: until.transpose()?.map(Timestamp::as_microsecond),
            grace_ms: self.grace.map(millis),
            max_cost: self.max_cost,
            max_tokens: self.max_tokens,
            jobs: self.jobs,
        })
    }
}

/// Warnings before a run with a cost limit: one for each pool whose cost may stay unknown.
#[must_use]
pub fn warnings(config: &Config, job: &Job, bounds: &RunBounds) -> Vec<String> {
    if bounds.max_cost.is_none() {
        return Vec::new();
    }
    let is_used = |name: &PoolName| match job {
        // Only the journal knows the pools of an earlier run.
        Job::Continue { .. } => true,
        Job::New(tasks) => tasks
            .iter()
            .any(|task| task.pool.as_ref().is_none_or(|pool| pool == name)),
        Job::Plan(plan) => plan.pool == *name,
    };
    let pools = config.pools.iter().filter(|pool| is_used(&pool.name));
    pools
        .filter(|pool| may_report_no_cost(pool))
        .map(|pool| {
            let name = &pool.name;
            format!(
                "warning: --max-cost may not be enforced for pool {name}: it has no route, so only its agent reports the cost, and an agent that reports none is never stopped; give the pool a route, and its models a [price.\"MODEL\"], so that usage is counted at the provider"
            )
        })
        .collect()
}

/// The time that `--until` names.
fn next(text: &str, now: Timestamp, zone: &TimeZone) -> Result<Timestamp, String> {
    let wrong = || {
        format!(
            "--until {:?}: expected a time of day such as 07:00, or a time such as 2026-01-31T07:00:00Z",
            marshal_model::untrusted::escape_for_display(text, 60)
        )
    };
    if let Ok(at) = text.parse::<Timestamp>() {
        return if at > now {
            Ok(at)
        } else {
            Err(format!("--until {text}: that time has passed"))
        };
    }
    let parts: Vec<&str> = text.split(':').collect();
    let is_plain = |part: &&str| part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit());
    let (2..=3, true) = (parts.len(), parts.iter().all(is_plain)) else {
        return Err(wrong());
    };
    let mut numbers = parts.iter().map(|part| part.parse::<i8>().unwrap_or(-1));
    let mut part = || numbers.next().unwrap_or(0);
    let time = civil::Time::new(part(), part(), part(), 0).map_err(|_| wrong())?;
    let today = now.to_zoned(zone.clone()).date();
    // A time that is skipped when the clocks go forward becomes the time after the change.
    let on = |date: civil::Date| date.to_datetime(time).to_zoned(zone.clone()).ok();
    let today = on(today).filter(|at| at.timestamp() > now).or_else(|| {
        let tomorrow = today.tomorrow().ok()?;
        on(tomorrow)
    });
    today.map(|at| at.timestamp()).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().expect("a time")
    }

    #[test]
    fn a_time_of_day_is_its_next_one_by_the_clock_on_the_wall() {
        let now = at("2026-11-22T22:30:00Z");
        let utc = TimeZone::UTC;
        let zone = TimeZone::fixed(jiff::tz::offset(9));
        let until = |text: &str, zone: &TimeZone| next(text, now, zone).expect("a time");
        assert_eq!(until("07:00", &utc), at("2026-11-23T07:00:00Z"));
        assert_eq!(until("22:30", &utc), at("2026-11-23T22:30:00Z"));
        assert_eq!(until("22:30:01", &utc), at("2026-11-22T22:30:01Z"));
        // There it is 07:30 of the next day.
        assert_eq!(until("08:00", &zone), at("2026-11-22T23:00:00Z"));
        assert_eq!(until("07:00", &zone), at("2026-11-23T22:00:00Z"));
        let named = "2026-12-01T07:00:00+01:00";
        assert_eq!(until(named, &utc), at("2026-12-01T06:00:00Z"));
    }

    #[test]
    fn a_night_of_another_length_is_counted_by_its_own_clock() {
        // New York: at 02:00 on 2026-11-01 it is 01:00 again.
        let zone = "EST5EDT,M3.2.0,M11.1.0";
        let zone = TimeZone::posix(zone).expect("a zone");
        let now = at("2026-11-01T02:00:00Z"); // 22:00 of the evening before
        let got = next("07:00", now, &zone).expect("a time");
        assert_eq!(got, at("2026-11-01T12:00:00Z"));
        // 02:30 on 2026-03-08 does not exist.
        let now = at("2026-03-08T05:00:00Z");
        let got = next("02:30", now, &zone).expect("a time");
        assert_eq!(got, at("2026-03-08T07:30:00Z"));
    }

    #[test]
    fn what_is_no_time_is_refused_in_words() {
        let now = at("2026-11-22T22:30:00Z");
        let over = next("2026-11-22T22:30:00Z", now, &TimeZone::UTC).expect_err("over");
        assert!(over.contains("has passed"), "{over}");
        for bad in [
            "",
            "7",
            "7:00",
            "24:00",
            "07:60",
            "07:00:00:00",
            "soon",
            "-1:00",
            "07:+1",
        ] {
            let error = next(bad, now, &TimeZone::UTC).expect_err(bad);
            assert!(error.contains("07:00"), "{error}");
        }
        for bad in ["0", "-1", "nan", "inf", "$", "forty", "1e10"] {
            assert!(cost(bad).is_err(), "{bad}");
        }
        assert_eq!(cost("$2.50"), Ok(2_500_000_000));
    }
}
