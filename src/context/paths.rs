//! Where a path really leads: symbolic links resolved, for files that may not exist yet.
//!
//! Asks the file system and nothing else; may block on a slow one, so it is called from the tokio
//! side (the privacy filter, the file agents), never on Neovim's thread.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// `path` with every symbolic link resolved. The last components may not exist yet (a new buffer).
/// `None` when that cannot be told: a link that leads nowhere, a loop, no permission, a relative
/// path.
#[must_use]
pub fn real_path(path: &Path) -> Option<PathBuf> {
    if !path.is_absolute() {
        return None;
    }
    // Without `.`: "link/." would hide that the link itself is there.
    let path: PathBuf = path.components().collect();
    let mut missing: Vec<&OsStr> = Vec::new();
    let mut at = path.as_path();
    loop {
        match at.canonicalize() {
            Ok(real) => return Some(missing.iter().rev().fold(real, |dir, name| dir.join(name))),
            // A dangling link exists itself: what it leads to is unknown.
            Err(error) if error.kind() == ErrorKind::NotFound && at.symlink_metadata().is_err() => {
                missing.push(at.file_name()?);
                at = at.parent()?;
            }
            Err(_) => return None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_even_for_files_that_are_not_there_yet() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        std::os::unix::fs::symlink(root.join("real"), root.join("link")).unwrap();
        std::os::unix::fs::symlink(root.join("nowhere"), root.join("dangling")).unwrap();
        std::os::unix::fs::symlink(root.join("loop"), root.join("loop")).unwrap();
        assert_eq!(real_path(&root.join("link/new/a.txt")), Some(root.join("real/new/a.txt")));
        for dangling in ["dangling", "dangling/.", "dangling/./x", "real/../dangling"] {
            assert_eq!(real_path(&root.join(dangling)), None, "{dangling}");
        }
        assert_eq!(real_path(&root.join("loop/x")), None);
        assert_eq!(real_path(Path::new("relative")), None);
        assert_eq!(real_path(&root.join("gone/../x")), None);
    }
}
