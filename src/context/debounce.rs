//! When the next snapshot is due: after a quiet moment, or after long enough of continuous change.
//!
//! Only the arithmetic, on plain `Instant`s; `editor/watch` owns the timer and the wakes.

use std::time::{Duration, Instant};

/// How long changes are gathered before a snapshot is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// A snapshot is due once nothing has changed for this long ...
    pub quiet: Duration,
    /// ... or once the first unreported change is this old.
    pub longest: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self { quiet: Duration::from_millis(100), longest: Duration::from_millis(300) }
    }
}

/// The changes that no snapshot has covered yet.
#[derive(Debug, Default)]
pub struct Debounce {
    /// When the first and the last of them happened.
    pending: Option<(Instant, Instant)>,
}

impl Debounce {
    /// Something changed at `at`; calls need not come in order of time.
    pub fn changed(&mut self, at: Instant) {
        self.pending = Some(match self.pending {
            Some((first, last)) => (first.min(at), last.max(at)),
            None => (at, at),
        });
    }

    /// When a snapshot is due; `None` while there is nothing to report.
    #[must_use]
    pub fn due(&self, pace: Pace) -> Option<Instant> {
        self.pending.map(|(first, last)| (last + pace.quiet).min(first + pace.longest))
    }

    /// A snapshot is being taken: what changed until now is covered.
    pub fn taken(&mut self) {
        self.pending = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Debounce, Pace};

    const PACE: Pace =
        Pace { quiet: Duration::from_millis(100), longest: Duration::from_millis(300) };

    #[test]
    fn nothing_is_due_without_a_change() {
        let mut debounce = Debounce::default();
        assert_eq!(debounce.due(PACE), None);
        debounce.changed(Instant::now());
        debounce.taken();
        assert_eq!(debounce.due(PACE), None);
    }

    #[test]
    fn one_change_is_due_after_the_quiet_time() {
        let start = Instant::now();
        let mut debounce = Debounce::default();
        debounce.changed(start);
        assert_eq!(debounce.due(PACE), Some(start + PACE.quiet));
        debounce.changed(start + Duration::from_millis(60));
        assert_eq!(debounce.due(PACE), Some(start + Duration::from_millis(160)));
    }

    #[test]
    fn continuous_change_is_due_after_the_longest_time() {
        let start = Instant::now();
        let mut debounce = Debounce::default();
        for ms in (0..300).step_by(10) {
            debounce.changed(start + Duration::from_millis(ms));
        }
        assert_eq!(debounce.due(PACE), Some(start + PACE.longest));
    }

    #[test]
    fn a_late_report_of_an_early_change_does_not_delay_the_snapshot() {
        let start = Instant::now();
        let mut debounce = Debounce::default();
        debounce.changed(start + Duration::from_millis(50));
        debounce.changed(start);
        assert_eq!(debounce.due(PACE), Some(start + Duration::from_millis(150)));
    }
}
