//! Connections that have not proved themselves yet. When the lobby is full the one that has been in
//! it longest goes: an agent is through in milliseconds, so silent connections, however many,
//! cannot shut it out. Any thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

#[derive(Default)]
struct Places {
    last: u64,
    /// By arrival.
    taken: BTreeMap<u64, oneshot::Sender<()>>,
}

impl Places {
    /// Asks the one that has been here longest to go; false when nobody is here.
    fn show_one_out(&mut self) -> bool {
        let oldest = self.taken.pop_first();
        // An error here: it is going already.
        oldest.map(|(_, asked_to_go)| asked_to_go.send(())).is_some()
    }
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

    /// Makes room without anybody coming in; false when nobody is here.
    pub fn show_one_out(&self) -> bool {
        lock(&self.places).show_one_out()
    }

    /// A place for one more, and the word that it is asked to go.
    pub fn enter(&self) -> (Place, ShownOut) {
        let (sender, shown_out) = oneshot::channel();
        let mut places = lock(&self.places);
        while places.taken.len() >= self.room {
            places.show_one_out();
        }
        places.last += 1;
        let number = places.last;
        places.taken.insert(number, sender);
        (Place { places: Arc::clone(&self.places), number }, ShownOut(shown_out))
    }
}

/// Given back when dropped.
pub(super) struct Place {
    places: Arc<Mutex<Places>>,
    number: u64,
}

impl Place {
    /// Whoever has proved itself needs it no more, and is not asked to go.
    pub fn leave(&self) {
        lock(&self.places).taken.remove(&self.number);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.leave();
    }
}

pub(super) struct ShownOut(oneshot::Receiver<()>);

impl ShownOut {
    /// Waits until somebody else needs the place; for ever once it has been given back.
    pub async fn asked(self) {
        if self.0.await.is_err() {
            std::future::pending().await
        }
    }
}

fn lock(places: &Mutex<Places>) -> MutexGuard<'_, Places> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}
