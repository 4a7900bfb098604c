//! Keeps what the user had typed into a proposal whose agent has vanished.
//!
//! Neovim's thread starts it, a worker writes. One private file each under
//! `stdpath("state")/gangway/recovered/`; the message names it.

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
        let message = match kept {
            Ok(()) => format!("{origin} is gone; your edited proposal is in {}", path.display()),
            Err(error) => format!("{origin} is gone and your edits could not be kept: {error}"),
        };
        bridge.post(move |editor| editor.report(&message));
    });
}
