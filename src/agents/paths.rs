//! A file's path as an agent that knows only one folder names it.
//!
//! Shared by the agents that speak through files. Asks the file system, so it may block: called
//! on tokio's blocking threads.

use std::path::{Component, Path, PathBuf};

use crate::context::Root;
use crate::context::paths::real_path;

/// `file` relative to `root`: as spelled if it is spelled below the root, else by where symbolic
/// links lead. Never empty, never with `.` or `..`; `None` for a file outside.
pub(crate) fn below(root: &Root, file: &Path) -> Option<PathBuf> {
    let clean = |path: &Path| {
        let normal = path.components().all(|part| matches!(part, Component::Normal(_)));
        (normal && path.components().next().is_some()).then(|| path.to_path_buf())
    };
    [&root.path, &root.real]
        .into_iter()
        .find_map(|base| file.strip_prefix(base).ok().and_then(clean))
        .or_else(|| clean(real_path(file)?.strip_prefix(&root.real).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_below_either_spelling_of_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        let path = real.with_file_name("link");
        std::fs::create_dir_all(real.join("src")).unwrap();
        std::os::unix::fs::symlink(&real, &path).unwrap();
        let root = Root { path: path.clone(), real: real.clone() };
        let named = |file: PathBuf| below(&root, &file);
        assert_eq!(named(path.join("src/a.rs")), Some("src/a.rs".into()));
        assert_eq!(named(real.join("src/a.rs")), Some("src/a.rs".into()));
        assert_eq!(named(real.join("src/../b.rs")), Some("b.rs".into()));
        assert_eq!(named(real.join("gone/../b.rs")), None);
        assert_eq!(named(real.clone()), None, "the root itself");
        assert_eq!(named(real.with_file_name("other.rs")), None);
        let only_real = Root { path: real.clone(), real };
        assert_eq!(below(&only_real, &path.join("a.rs")), Some("a.rs".into()));
        let slash = Root { path: "/".into(), real: "/".into() };
        assert_eq!(below(&slash, Path::new("/etc/hosts")), Some("etc/hosts".into()));
    }
}
