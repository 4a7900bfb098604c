//! Where aivyx-coder keeps its files, and under which name a project has its own.
//!
//! Pure. The rules are those of the `directories` crate (version 6), which aivyx uses, and of
//! aivyx's own `editor_context.rs`: the name is a hash of its canonical working directory.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// FNV-1a, 64 bits, as sixteen hexadecimal digits, over the lossy UTF-8 of `root`. aivyx hashes
/// the canonical path of its working directory (the raw one where that fails), so `root` is a
/// root's real path. The prefix `\\?\` of Windows is part of what is hashed.
#[must_use]
pub fn project_key(root: &Path) -> String {
    format!("{:016x}", fnv1a(root.to_string_lossy().as_bytes()))
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// aivyx's state directory. The arguments are Neovim's `$XDG_STATE_HOME` and `$HOME`; without a
/// home there the operating system is asked, as aivyx does. `None`: there is no home at all.
#[must_use]
pub fn state_dir(xdg_state_home: Option<&OsStr>, home: Option<&OsStr>) -> Option<PathBuf> {
    if cfg!(windows) {
        // %LOCALAPPDATA%\aivyx-coder\data, by the known-folder call and not the variable.
        let dirs = directories::ProjectDirs::from("", "", "aivyx-coder")?;
        return Some(dirs.state_dir().unwrap_or_else(|| dirs.data_local_dir()).to_path_buf());
    }
    let home = match home.filter(|home| !home.is_empty()) {
        Some(home) => PathBuf::from(home),
        None => directories::BaseDirs::new()?.home_dir().to_path_buf(),
    };
    Some(unix_state_dir(xdg_state_home, &home, cfg!(target_os = "macos")))
}

fn unix_state_dir(xdg_state_home: Option<&OsStr>, home: &Path, macos: bool) -> PathBuf {
    if macos {
        return home.join("Library/Application Support/aivyx-coder");
    }
    // A relative value is ignored, as the specification and the crate have it.
    let xdg = xdg_state_home.map(Path::new).filter(|path| path.is_absolute());
    xdg.map_or_else(|| home.join(".local/state"), Path::to_path_buf).join("aivyx-coder")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_aivyx_computes() {
        for (root, key) in [
            ("", "cbf29ce484222325"),
            ("a", "af63dc4c8601ec8c"),
            ("/home/user/project", "f8a71a04e8340307"),
            ("/tmp/été", "44735049febc95a8"),
            ("/tmp/dirs", "4c741166b0067380"),
        ] {
            assert_eq!(project_key(Path::new(root)), key, "{root:?}");
        }
    }

    #[test]
    fn the_state_directory_follows_the_directories_crate() {
        let dir = |xdg: Option<&str>, macos| {
            unix_state_dir(xdg.map(OsStr::new), Path::new("/home/u"), macos)
        };
        assert_eq!(dir(Some("/xdg"), false), Path::new("/xdg/aivyx-coder"));
        for ignored in [None, Some(""), Some("relative/state")] {
            assert_eq!(dir(ignored, false), Path::new("/home/u/.local/state/aivyx-coder"));
        }
        let mac = Path::new("/home/u/Library/Application Support/aivyx-coder");
        assert_eq!(dir(Some("/xdg"), true), mac);
        assert!(state_dir(None, Some(OsStr::new(""))).is_none_or(|dir| dir.is_absolute()));
    }
}
