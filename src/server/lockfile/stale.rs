//! What crashed Neovims left behind. Reads and removes files, tries ports: never on Neovim's
//! thread.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::MAX_LOCK;
use super::form::Seen;
use crate::agents::mcp::Family;
use crate::files;

/// A closed port of this machine refuses at once; a full one does not answer.
const PROBE: Duration = Duration::from_millis(200);

/// The readable lock files of a family's directory.
pub(super) fn seen_in(family: Family, directory: &Path) -> Vec<(PathBuf, Seen)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let read = entries.filter_map(|entry| {
        let path = entry.path();
        let bytes = files::read_own(&path, MAX_LOCK).ok()?;
        let seen = Seen::read(family, path.file_name()?.to_str()?, &bytes)?;
        Some((path, seen))
    });
    read.collect()
}

/// Removes what crashed Neovims left in `directory`: lock files with our kind of name whose
/// process is gone and whose port is closed. Nothing of anybody else. Before our own file is there:
/// one with our process id was left by a process that had it before (containers begin anew at 1).
pub(super) fn sweep(family: Family, directory: &Path) {
    for (path, seen) in seen_in(family, directory) {
        let ours = seen.name.starts_with("Neovim (") && seen.name.ends_with(')');
        let gone = seen.pid == std::process::id() || !files::is_alive(seen.pid);
        if ours && gone && !is_open(seen.port) {
            tracing::info!(path = %path.display(), "removing a stale lock file");
            let _ = std::fs::remove_file(path);
            if let Some(socket) = seen.socket {
                crate::server::remove_socket(&socket);
            }
        }
    }
}

fn is_open(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    match TcpStream::connect_timeout(&address, PROBE) {
        Ok(_) => true,
        // Only a refusal says that nobody listens.
        Err(error) => error.kind() != std::io::ErrorKind::ConnectionRefused,
    }
}
