//! Verdicts that the user has given and a worker is still working out.
//!
//! Any thread. Neovim waits for them, for a moment, before it leaves.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

#[derive(Debug, Clone, Default)]
pub struct Owed(Arc<(Mutex<usize>, Condvar)>);

/// One verdict; given when this is dropped.
#[derive(Debug)]
pub struct One(Owed);

impl Owed {
    #[must_use]
    pub fn begin(&self) -> One {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        One(self.clone())
    }

    /// Waits until none is owed, for `limit` at most. Whether that is so.
    #[must_use]
    pub fn wait(&self, limit: Duration) -> bool {
        let count = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.1.wait_timeout_while(count, limit, |owed| *owed > 0);
        waited.is_ok_and(|(owed, _)| *owed == 0)
    }
}

impl Drop for One {
    fn drop(&mut self) {
        *self.0.0.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
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
        let one = owed.begin();
        assert!(!owed.wait(Duration::from_millis(20)), "it is still being worked out");
        let worker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(one);
        });
        assert!(owed.wait(Duration::from_secs(5)), "given while waiting");
        worker.join().unwrap();
    }
}
