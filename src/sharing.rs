//! The sharing switch of each project, remembered across restarts.
//!
//! Owns `sharing.txt` in the plugin's state directory. Read and changed through `SharingStore` by
//! `plugin/gate` on a blocking thread. Several Neovims use the file at once: reading always asks the
//! disk, changing happens under a lock file.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::context::privacy::{Share, Switches, nearest};
use crate::files;

/// Far more projects than anybody switches off, in bytes.
const LIMIT: u64 = 1 << 20;

const HEADER: &str = "# gangway.nvim: projects whose context is shared with agents, or not\n";

/// One line a project: `off /path` or `on /path`, with `\n` and `\\` for a newline and a backslash
/// in the path. Other lines are kept out: unknown words are skipped.
#[derive(Debug, Clone)]
pub struct SharingStore {
    dir: PathBuf,
}

impl SharingStore {
    /// `dir`: the plugin's own state directory; made when something is first remembered.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Remembers `share` for `root` and all below it that is not named itself; gives what is
    /// remembered then.
    pub fn set(&self, root: &Path, share: Share) -> io::Result<Switches> {
        files::private_dir(&self.dir)?;
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(self.dir.join("sharing.lock"))?;
        lock.lock()?;
        let mut lines = self.read()?;
        lines.remove(root);
        if nearest(&lines, root) != share {
            lines.insert(root.to_path_buf(), share);
        }
        files::write_private(&self.file(), &print(&lines))?;
        Ok(lines)
    }

    fn file(&self) -> PathBuf {
        self.dir.join("sharing.txt")
    }

    /// What was last said, empty where nothing ever was. On an error a caller should share nothing.
    pub fn read(&self) -> io::Result<Switches> {
        match files::read_own(&self.file(), LIMIT) {
            Ok(bytes) => Ok(parse(&bytes)),
            Err(error) if error.is_missing() => Ok(Switches::new()),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

fn parse(bytes: &[u8]) -> Switches {
    let line = |line: &[u8]| {
        let (share, path) = if let Some(path) = line.strip_prefix(b"off ") {
            (Share::Off, path)
        } else {
            (Share::On, line.strip_prefix(b"on ")?)
        };
        let mut plain = Vec::with_capacity(path.len());
        let mut rest = path.iter();
        while let Some(byte) = rest.next() {
            plain.push(match byte {
                b'\\' if rest.next()? == &b'n' => b'\n',
                byte => *byte,
            });
        }
        Some((PathBuf::from(OsStr::from_bytes(&plain)), share))
    };
    bytes.split(|byte| *byte == b'\n').filter_map(line).collect()
}

fn print(lines: &Switches) -> Vec<u8> {
    let mut out = HEADER.as_bytes().to_vec();
    for (path, share) in lines {
        out.extend_from_slice(if *share == Share::Off { b"off " } else { b"on " });
        for byte in path.as_os_str().as_bytes() {
            match byte {
                b'\n' => out.extend_from_slice(b"\\n"),
                b'\\' => out.extend_from_slice(b"\\\\"),
                byte => out.push(*byte),
            }
        }
        out.push(b'\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_project_stays_off_until_it_is_switched_on() {
        let dir = tempfile::tempdir().unwrap();
        let store = SharingStore::new(dir.path().join("new"));
        let (repo, sub) = (Path::new("/repo"), Path::new("/repo/sub"));
        let get = |path: &Path| nearest(&store.read().unwrap(), path);
        assert_eq!(get(repo), Share::On);
        store.set(repo, Share::Off).unwrap();
        assert_eq!(get(repo), Share::Off);
        assert_eq!(get(sub), Share::Off, "a part of the project");
        assert_eq!(get(Path::new("/repository")), Share::On);
        store.set(sub, Share::On).unwrap();
        assert_eq!(get(sub), Share::On);
        assert_eq!(get(repo), Share::Off);
        store.set(repo, Share::On).unwrap();
        store.set(sub, Share::On).unwrap();
        assert_eq!(std::fs::read_to_string(store.file()).unwrap(), HEADER, "nothing to remember");
    }

    #[test]
    fn neovims_that_switch_at_once_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let store = SharingStore::new(dir.path());
        std::thread::scope(|scope| {
            for n in 0..8 {
                let store = &store;
                scope.spawn(move || {
                    for m in 0..10 {
                        store.set(Path::new(&format!("/{n}/{m}")), Share::Off).unwrap();
                    }
                });
            }
        });
        assert_eq!(store.read().unwrap().len(), 80);
    }

    #[test]
    fn a_file_that_cannot_be_trusted_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let store = SharingStore::new(dir.path());
        std::fs::create_dir(store.file()).unwrap();
        assert!(store.read().is_err());
        assert_eq!(parse(b"off /a\nwhat /b\n\noff"), Switches::from([("/a".into(), Share::Off)]));
    }

    proptest! {
        #[test]
        fn any_path_survives(paths in proptest::collection::btree_map(
            proptest::collection::vec(1_u8.., 0..12), any::<bool>(), 0..6)) {
            let lines: Switches = paths.into_iter().map(|(mut bytes, off)| {
                bytes.insert(0, b'/');
                let share = if off { Share::Off } else { Share::On };
                (PathBuf::from(std::ffi::OsString::from_vec(bytes)), share)
            }).collect();
            prop_assert_eq!(parse(&print(&lines)), lines);
        }
    }
}
