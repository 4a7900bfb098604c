//! Keeps what the user had typed into a proposal that its agent took back, or took along.
//!
//! Neovim's thread starts it, a worker writes. One private file each under
//! `stdpath("state")/gangway/recovered/`; the log names it.

use std::rc::Rc;

use super::Editor;
use super::view::View;

pub(super) fn keep(editor: &Rc<Editor>, view: &View) {
    let (Ok(body), Some(panes)) = (editor.api.buf_text(view.right), view.panes()) else {
        return;
    };
    let name = view.review.kind.path().and_then(|p| p.file_name()).unwrap_or_default().to_owned();
    let (directory, bridge) = (editor.state_dir.join("recovered"), editor.bridge.clone());
    let origin = view.review.origin.clone();
    editor.on_worker(move || {
        let text = panes.right.rejoin(&body);
        let seconds = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
        let mut file = std::ffi::OsString::from(format!("{seconds}-"));
        file.push(&name);
        let path = directory.join(file);
        let kept = crate::files::private_dir(&directory)
            .and_then(|()| crate::files::write_private(&path, text.as_bytes()));
        match kept {
            Ok(()) => {
                tracing::warn!("edits of a review by {origin} are in {}", path.display());
                // Short, so that it never asks for Enter in the middle of somebody's typing.
                let message =
                    format!("{origin} took it back; edits recovered (:IdeLog says where)");
                bridge.post(move |editor| editor.api.notify(&message, 3));
            }
            Err(error) => {
                let message = format!("your edits could not be kept: {error}");
                bridge.post(move |editor| editor.report(&message));
            }
        }
    });
}
