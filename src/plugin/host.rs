//! What agents ask of the editor, carried to Neovim's thread and back with a deadline each.
//!
//! Runs on the tokio runtime; the only place where `agents::Host` meets `editor`.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::gate::Gate;
use crate::agents::{BoxFuture, Document, Host, HostError, OpenFile, Opened};
use crate::context::Snapshot;
use crate::editor::stage::Stage;
use crate::editor::watch::Feed;
use crate::editor::{Bridge, Editor};
use crate::review::ReviewId;

/// Claude Code gives up on diagnostics after three answers slower than half a second.
const SNAPSHOT_PATIENCE: Duration = Duration::from_millis(300);
/// How long a file that an agent opens waits for the user to be idle; then it is only loaded.
const IDLE_PATIENCE: Duration = Duration::from_secs(2);
const IDLE_LOOK: Duration = Duration::from_millis(50);
/// Opening and saving may wait for a prompt to be answered, but not for ever.
const ACTION_PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct EditorHost {
    pub(super) bridge: Bridge,
    pub(super) feed: Feed,
    pub(super) latest: watch::Receiver<Arc<Snapshot>>,
    pub(super) gate: Arc<Gate>,
}

impl EditorHost {
    async fn act<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Rc<Editor>) -> Result<T, String> + Send + 'static,
    ) -> Result<T, HostError> {
        match tokio::time::timeout(ACTION_PATIENCE, self.bridge.run(job)).await {
            Ok(Ok(done)) => done.map_err(HostError::Refused),
            Ok(Err(_)) => Err(HostError::Stopping),
            Err(_) => Err(HostError::Busy),
        }
    }
}

impl Host for EditorHost {
    fn snapshot(&self) -> BoxFuture<'_, Arc<Snapshot>> {
        Box::pin(async move {
            let fresh = tokio::time::timeout(SNAPSHOT_PATIENCE, self.feed.fresh()).await;
            fresh.ok().flatten().unwrap_or_else(|| Arc::clone(&self.latest.borrow()))
        })
    }

    fn open_file(&self, what: OpenFile) -> BoxFuture<'_, Result<Option<Opened>, HostError>> {
        Box::pin(async move {
            let path = what.path.clone();
            let real = self.gate.real(&path).await;
            let patience = Instant::now() + IDLE_PATIENCE;
            let opened = loop {
                let (what, real, late) = (what.clone(), real.clone(), Instant::now() >= patience);
                let open = move |editor: &Rc<Editor>| open(editor, what, real, late);
                if let Some(opened) = self.act(open).await? {
                    break opened;
                }
                tokio::time::sleep(IDLE_LOOK).await;
            };
            Ok(self.gate.tells(&path).await.then_some(opened))
        })
    }

    fn save<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Result<Option<bool>, HostError>> {
        Box::pin(async move {
            if !self.gate.tells(path).await {
                return Ok(None);
            }
            let (path, real) = (path.to_owned(), self.gate.real(path).await);
            self.act(move |editor| {
                let (documents, lua) = (editor.documents()?, &editor.api.lua);
                let open = documents.document(lua, &path, real.as_deref())?.is_some();
                open.then(|| documents.save(lua, &path, real.as_deref())).transpose()
            })
            .await
        })
    }

    fn document<'a>(
        &'a self,
        path: &'a Path,
    ) -> BoxFuture<'a, Result<Option<Document>, HostError>> {
        Box::pin(async move {
            if !self.gate.tells(path).await {
                return Ok(None);
            }
            let (path, real) = (path.to_owned(), self.gate.real(path).await);
            let ask = move |editor: &Rc<Editor>| {
                editor.documents()?.document(&editor.api.lua, &path, real.as_deref())
            };
            self.act(ask).await
        })
    }

    fn encodings<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Vec<String>> {
        Box::pin(async move {
            let (path, real) = (path.to_owned(), self.gate.real(path).await);
            let ask = move |editor: &Rc<Editor>| {
                Ok(editor.documents()?.encodings(&editor.api.lua, &path, real.as_deref()))
            };
            self.act(ask).await.unwrap_or_default()
        })
    }

    fn edited<'a>(&'a self, id: &'a ReviewId) -> BoxFuture<'a, Option<Arc<str>>> {
        let wanted = id.clone();
        Box::pin(async move {
            let asked = self.act(move |editor| {
                editor.stage.edited(editor, &wanted).map_err(|error| error.to_string())
            });
            let edited = asked.await.unwrap_or_else(|error| {
                tracing::warn!("cannot read the edits of review {id}: {error}");
                None
            })?;
            // Giving a large text its own line ends back takes a while.
            tokio::task::spawn_blocking(move || edited.text()).await.ok()
        })
    }
}

/// Opens a file, and shows it if the user's keys do not go astray by that. `None`: not now. `late`:
/// what cannot be shown is loaded, and the user is told where it is.
fn open(
    editor: &Rc<Editor>,
    mut what: OpenFile,
    real: Option<PathBuf>,
    late: bool,
) -> Result<Option<Opened>, String> {
    let documents = editor.documents()?;
    if what.make_frontmost && !Stage::may_move_user(editor, false).unwrap_or(false) {
        if !late {
            return Ok(None);
        }
        what.make_frontmost = false;
        let name = editor.short_path(&what.path);
        let opened = documents.open_file(&editor.api.lua, &what, real.as_deref())?;
        editor.api.notify(&format!("an agent has opened {name}; it is in the buffer list"), 2);
        return Ok(Some(opened));
    }
    documents.open_file(&editor.api.lua, &what, real.as_deref()).map(Some)
}
