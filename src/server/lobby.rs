//! Connections that have not proved themselves yet. When the lobby is full the one that has been in
//! it longest goes: an agent is through in milliseconds, so silent connections, however many,
//! cannot shut it out. Any thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

#[derive(Default)]
struct Places {
    last: u64,
    /// By arrival; dropping one asks its connection to go.
    taken: BTreeMap<u64, oneshot::Sender<()>>,
}

pub(super) struct Lobby {
    places: Arc<Mutex<Places>>,
    room: usize,
}

impl Lobby {
    /// For `room` connections, at least one.
    pub fn new(room: usize) -> Self {
        Self { places: Arc::default(), room: room.max(1) }
    }

    /// Asks the one that has been here longest to go; false when nobody is here.
    pub fn show_one_out(&self) -> bool {
        lock(&self.places).taken.pop_first().is_some()
    }

    /// A place for one more.
    pub fn enter(&self) -> Place {
        let (sender, shown_out) = oneshot::channel();
        let mut places = lock(&self.places);
        while places.taken.len() >= self.room {
            places.taken.pop_first();
        }
        places.last += 1;
        let number = places.last;
        places.taken.insert(number, sender);
        Place { places: Arc::clone(&self.places), number, shown_out }
    }
}

/// Given back when dropped.
pub(super) struct Place {
    places: Arc<Mutex<Places>>,
    number: u64,
    shown_out: oneshot::Receiver<()>,
}

impl Place {
    /// Waits until somebody else needs the place.
    pub async fn shown_out(&mut self) {
        let _ = (&mut self.shown_out).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.places).taken.remove(&self.number);
    }
}

fn lock(places: &Mutex<Places>) -> MutexGuard<'_, Places> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}
