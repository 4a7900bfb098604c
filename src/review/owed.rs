//! How many verdicts somebody waits for: an agent for the user's, Neovim, for a moment before it
//! leaves, for those that a worker is still putting together.
//!
//! Pure, any thread. Clones are the same counter.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[derive(Debug, Clone, Default)]
pub struct Owed(Arc<(Mutex<usize>, Condvar)>);

/// One verdict; given when this is dropped.
#[derive(Debug)]
pub struct OwedOne(Owed);

impl Owed {
    #[must_use]
    pub fn count(&self) -> usize {
        *self.lock()
    }

    /// Counts one more for as long as the guard lives.
    #[must_use]
    pub fn one_more(&self) -> OwedOne {
        *self.lock() += 1;
        OwedOne(self.clone())
    }

    /// Waits until none is owed, for `limit` at most. Whether that is so.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        let waited = self.0.1.wait_timeout_while(self.lock(), limit, |owed| *owed > 0);
        waited.is_ok_and(|(owed, _)| *owed == 0)
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OwedOne {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
        self.0.0.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_waits_for_what_is_owed_and_not_for_ever() {
        let owed = Owed::default();
        assert!(owed.wait(Duration::ZERO), "nothing is owed");
        let one = owed.one_more();
        assert_eq!(owed.count(), 1);
        assert!(!owed.wait(Duration::from_millis(20)), "it is still being worked out");
        let worker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(one);
        });
        assert!(owed.wait(Duration::from_secs(5)), "given while waiting");
        worker.join().unwrap();
    }
}
