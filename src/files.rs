//! Files that are ours alone, and files we only look at.
//!
//! Any thread but Neovim's (every call may touch a slow disk). Private files are whole from their
//! first instant (temporary name, then rename), readable by the user alone, and never written
//! through a symbolic link; what a Neovim killed half-way left is removed. Foreign files are read
//! without ever blocking on what is no plain file.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

/// A file larger than this is not put before a user, in bytes.
pub const MAX_REVIEWED: u64 = 64 << 20;

/// What a file is called while it is written: this, the process id, a number, and `TEMP_END`.
const TEMP: &str = ".gangway-";
const TEMP_END: &str = ".tmp";

const FILE_MODE: Mode = Mode::from_raw_mode(0o600);
const DIR_MODE: Mode = Mode::from_raw_mode(0o700);

/// Why a foreign file was not read. Each says which file, in words a user understands.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no such file, its directory is not there, or a symbolic link leads nowhere.
    #[error("{} does not exist", path.display())]
    Missing { path: PathBuf },
    /// Not a plain file: `what` says what it is ("a directory", "a named pipe" …).
    #[error("{} is {what}, not a plain file", path.display())]
    NotPlain { path: PathBuf, what: &'static str },
    /// Both in bytes.
    #[error("{} is too large: {size} bytes, the limit is {limit}", path.display())]
    TooLarge { path: PathBuf, size: u64, limit: u64 },
    #[error("cannot read {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl ReadError {
    #[must_use]
    pub fn is_missing(&self) -> bool {
        matches!(self, ReadError::Missing { .. })
    }

    fn of(path: &Path, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        if source.kind() == io::ErrorKind::NotFound {
            return ReadError::Missing { path: path.into() };
        }
        ReadError::Io { path: path.into(), source }
    }
}

/// Replaces `path` by a file that holds `bytes`, with mode 0600 whatever the umask. Readers see
/// the old file or the whole new one. The directory must exist (`private_dir`). A symbolic link at
/// `path` is replaced, not followed. Nothing is left behind on failure.
///
/// # Errors
/// Whatever the file system says; the error names the file.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let named = |error: io::Error| {
        io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
    };
    replace(path, bytes).map_err(named)
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if path.file_name().is_none() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no file name"));
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tidy(dir);
    let (temp, file) = Temp::create(dir)?;
    // The umask can only have taken bits away: give the owner's back.
    rustix::fs::fchmod(&file, FILE_MODE)?;
    (&file).write_all(bytes)?;
    drop(file);
    // No fsync: what we publish means nothing once the machine has gone down.
    std::fs::rename(&temp.0, path)?;
    temp.renamed();
    Ok(())
}

/// The first time this process uses a directory: removes the unfinished files of processes that
/// are no more. `private_dir` and `write_private` do it by themselves.
pub fn tidy(dir: &Path) {
    static TIDIED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if TIDIED.lock().unwrap_or_else(PoisonError::into_inner).insert(dir.to_path_buf()) {
        remove_unfinished(dir);
    }
}

fn remove_unfinished(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| {
            name.strip_prefix(TEMP)?.strip_suffix(TEMP_END)?.split('-').next()?.parse().ok()
        });
        if pid.is_some_and(|pid| !is_alive(pid)) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// A process of that id runs, whoever's it is.
#[must_use]
pub fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| match rustix::process::test_kill_process(pid) {
        Ok(()) => true,
        Err(error) => error == Errno::PERM,
    })
}

/// A file on its way to its name; removed when dropped.
struct Temp(PathBuf);

impl Temp {
    /// A new file in `dir` that nobody else has: not even a name that is a link to somewhere.
    fn create(dir: &Path) -> io::Result<(Self, File)> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        for _ in 0..1000 {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            // Ends in neither .lock nor .json: agents take those for finished files.
            let path = dir.join(format!("{TEMP}{}-{number}{TEMP_END}", std::process::id()));
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
            let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::open(&path, flags, FILE_MODE) {
                Ok(file) => return Ok((Self(path), file.into())),
                // Left behind by a Neovim that had this process id before and was killed.
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::new(io::ErrorKind::AlreadyExists, "no free temporary name"))
    }

    /// The file has its name: nothing to remove.
    fn renamed(mut self) {
        self.0 = PathBuf::new();
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// Makes `path` a directory that only the user can enter (0700), with its missing parents (0700
/// as well: else a generous umask lets others swap it). One that exists is tightened.
///
/// # Errors
/// When `path` is something else, a symbolic link, another user's, or made for all (`/tmp`).
pub fn private_dir(path: &Path) -> io::Result<()> {
    let named = |error: io::Error| {
        io::Error::new(
            error.kind(),
            format!("cannot use the directory {}: {error}", path.display()),
        )
    };
    make_private(path).map_err(named)
}

fn make_private(path: &Path) -> io::Result<()> {
    // A trailing slash would make the system follow a link.
    let path: PathBuf = path.components().collect();
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_parents(parent)?;
    }
    make_one(&path)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Through one descriptor, so that what was checked is what is changed.
    let opened = match rustix::fs::open(&path, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            let_owner_in(&path)?;
            rustix::fs::open(&path, flags, Mode::empty())
        }
        opened => opened,
    };
    let dir = match opened {
        Ok(dir) => dir,
        Err(Errno::LOOP | Errno::NOTDIR) => {
            let what = what_is(&path).unwrap_or("not a directory");
            return Err(io::Error::new(io::ErrorKind::NotADirectory, format!("it is {what}")));
        }
        Err(error) => return Err(error.into()),
    };
    let stat = rustix::fs::fstat(&dir)?;
    let mode = Mode::from_raw_mode(stat.st_mode) & Mode::from_raw_mode(0o7777);
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    if mode.contains(Mode::SVTX) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is shared by all users"));
    }
    if mode != DIR_MODE {
        rustix::fs::fchmod(&dir, DIR_MODE)?;
    }
    tidy(&path);
    Ok(())
}

fn make_parents(path: &Path) -> io::Result<()> {
    match make_one(path) {
        Err(Errno::NOENT) => {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            make_parents(parent.ok_or(Errno::NOENT)?)?;
            Ok(make_one(path)?)
        }
        // A read-only parent of something that exists.
        Err(_) if path.is_dir() => Ok(()),
        made => Ok(made?),
    }
}

/// A directory, unless something is there already.
fn make_one(path: &Path) -> Result<(), Errno> {
    match rustix::fs::mkdir(path, DIR_MODE) {
        Ok(()) => let_owner_in(path),
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Gives a directory of the user's own back what a umask or a `chmod 0` has taken from them too.
fn let_owner_in(path: &Path) -> Result<(), Errno> {
    let stat = rustix::fs::lstat(path)?;
    let ours = stat.st_uid == rustix::process::geteuid().as_raw()
        && FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
    if ours && !Mode::from_raw_mode(stat.st_mode).contains(DIR_MODE) {
        rustix::fs::chmod(path, DIR_MODE)?;
    }
    Ok(())
}

/// The bytes of a plain file of at most `limit` bytes. Never blocks on a pipe or a device, never
/// opens one. A symbolic link is followed to a plain file.
///
/// # Errors
/// See `ReadError`; the file is named.
pub fn read_plain(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    read(path, limit, OFlags::empty())
}

/// Like `read_plain`, but a symbolic link at the final component is an error: for files that
/// others place where we look for ours.
///
/// # Errors
/// See `ReadError`; the file is named.
pub fn read_own(path: &Path, limit: u64) -> Result<Vec<u8>, ReadError> {
    read(path, limit, OFlags::NOFOLLOW)
}

fn read(path: &Path, limit: u64, extra: OFlags) -> Result<Vec<u8>, ReadError> {
    check_plain(path, !extra.contains(OFlags::NOFOLLOW))?;
    // The flags are for what may have taken the file's place since it was looked at.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY | extra;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|e| ReadError::of(path, e))?;
    let stat = rustix::fs::fstat(&file).map_err(|e| ReadError::of(path, e))?;
    if let Some(what) = kind_of(FileType::from_raw_mode(stat.st_mode)) {
        return Err(ReadError::NotPlain { path: path.into(), what });
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    let too_large = |size| ReadError::TooLarge { path: path.into(), size, limit };
    if size > limit {
        return Err(too_large(size));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0) + 1);
    let read = File::from(file).take(limit.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|e| ReadError::of(path, e))?;
    // It grew while it was read.
    if bytes.len() as u64 > limit {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(bytes)
}

/// Says whether `path` is a plain file (through symbolic links when `follow`), without opening it.
///
/// # Errors
/// See `ReadError`; `Missing` when nothing is there.
pub fn check_plain(path: &Path, follow: bool) -> Result<(), ReadError> {
    let flags = if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
    let stat = rustix::fs::statat(rustix::fs::CWD, path, flags);
    let stat = stat.map_err(|e| ReadError::of(path, e))?;
    let what = kind_of(FileType::from_raw_mode(stat.st_mode)).or_else(|| special(path));
    match what {
        Some(what) => Err(ReadError::NotPlain { path: path.into(), what }),
        None => Ok(()),
    }
}

/// What it is, unless a plain file.
fn kind_of(kind: FileType) -> Option<&'static str> {
    match kind {
        FileType::RegularFile => None,
        FileType::Directory => Some("a directory"),
        FileType::Symlink => Some("a symbolic link"),
        FileType::Fifo => Some("a named pipe"),
        FileType::Socket => Some("a socket"),
        FileType::CharacterDevice | FileType::BlockDevice => Some("a device"),
        _ => Some("no ordinary file"),
    }
}

/// What is at `path` itself, for an error message.
fn what_is(path: &Path) -> Option<&'static str> {
    let stat = rustix::fs::lstat(path).ok()?;
    kind_of(FileType::from_raw_mode(stat.st_mode)).or(Some("a file"))
}

/// Files that call themselves plain but are windows into the kernel (`/proc/self/mem`).
#[cfg(target_os = "linux")]
fn special(path: &Path) -> Option<&'static str> {
    const PROC: u64 = 0x9fa0;
    const SYSFS: u64 = 0x6265_6572;
    const DEBUGFS: u64 = 0x6462_6720;
    const TRACEFS: u64 = 0x7472_6163;
    let kind = rustix::fs::statfs(path).ok()?.f_type;
    #[allow(clippy::cast_sign_loss, clippy::useless_conversion)]
    matches!(kind as u64, PROC | SYSFS | DEBUGFS | TRACEFS).then_some("a file of the kernel")
}

#[cfg(not(target_os = "linux"))]
fn special(_path: &Path) -> Option<&'static str> {
    None
}

/// `~` and `~/…` with the home directory in place of the tilde; everything else is literal (`$X`,
/// `~user`, wildcards). `None`: there is a tilde and no home.
#[must_use]
pub fn expand_home(path: &Path, home: Option<&Path>) -> Option<PathBuf> {
    match path.strip_prefix("~") {
        Ok(rest) if rest.as_os_str().is_empty() => home.map(Path::to_path_buf),
        Ok(rest) => home.map(|home| home.join(rest)),
        Err(_) => Some(path.to_path_buf()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap();
        entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn private_files_are_0600_in_0700_whatever_the_umask() {
        const CHILD: &str = "GANGWAY_TEST_UMASK";
        // The umask belongs to the whole process, so this needs one of its own.
        if std::env::var_os(CHILD).is_none() {
            let name = "files::tests::private_files_are_0600_in_0700_whatever_the_umask";
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            let output = command.args(["--exact", name]).env(CHILD, "1").output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            return;
        }
        let umask = |bits| rustix::process::umask(Mode::from_raw_mode(bits));
        let dir = tempfile::tempdir().unwrap();
        for bits in [0o000, 0o022, 0o177, 0o277, 0o377, 0o777] {
            let old = umask(bits);
            let home = dir.path().join(bits.to_string()).join("a/b");
            let made = private_dir(&home);
            let written = write_private(&home.join("1.lock"), b"x");
            umask(old.bits());
            made.unwrap();
            written.unwrap();
            assert_eq!(mode(&home), 0o700, "umask {bits:o}");
            assert_eq!(mode(home.parent().unwrap()), 0o700, "parents, umask {bits:o}");
            assert_eq!(mode(&home.join("1.lock")), 0o600, "umask {bits:o}");
            assert_eq!(names(&home), ["1.lock"]);
        }
    }

    #[test]
    fn a_directory_of_all_users_or_of_another_is_refused_and_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tmp");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o1777)).unwrap();
        assert!(private_dir(&path).unwrap_err().to_string().contains("shared by all users"));
        assert_eq!(mode(&path), 0o1777);
        // Only root can make one of another's; everybody else finds the root directory to be that.
        let other = dir.path().join("other");
        std::fs::create_dir(&other).unwrap();
        let other = match std::os::unix::fs::chown(&other, Some(12345), None) {
            Ok(()) => other,
            Err(_) => "/".into(),
        };
        let before = mode(&other);
        assert!(private_dir(&other).unwrap_err().to_string().contains("another user"));
        assert_eq!(mode(&other), before);
    }

    #[test]
    fn a_directory_that_its_owner_cannot_enter_is_opened_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ide");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
        private_dir(&path).unwrap();
        write_private(&path.join("1.lock"), b"x").unwrap();
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn an_open_directory_is_tightened() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ide");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        private_dir(&path.join("")).unwrap();
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn a_link_or_a_file_in_the_place_of_the_directory_is_refused_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link) = (dir.path().join("target"), dir.path().join("link"));
        std::fs::create_dir(&target).unwrap();
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(0o755)).unwrap();
        symlink(&target, &link).unwrap();
        for path in [link.clone(), link.join("")] {
            let error = private_dir(&path).unwrap_err().to_string();
            assert!(error.contains("link") && error.contains("a symbolic link"), "{error}");
        }
        assert_eq!(mode(&target), 0o755, "followed");
        std::fs::write(dir.path().join("file"), "").unwrap();
        let error = private_dir(&dir.path().join("file")).unwrap_err().to_string();
        assert!(error.contains("it is a file"), "{error}");
        assert!(private_dir(&dir.path().join("file/below")).is_err());
    }

    #[test]
    fn a_link_in_the_place_of_the_file_is_replaced_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (victim, path) = (dir.path().join("victim"), dir.path().join("1.lock"));
        std::fs::write(&victim, "precious").unwrap();
        symlink(&victim, &path).unwrap();
        write_private(&path, b"ours").unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert_eq!(std::fs::read(&path).unwrap(), b"ours");
        assert!(!std::fs::symlink_metadata(&path).unwrap().is_symlink());
    }

    #[test]
    fn what_a_killed_process_left_unfinished_goes_at_the_first_use_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let (dead, alive) = (child.id(), std::process::id());
        let [used, made] = ["used", "made"].map(|name| dir.path().join(name));
        for dir in [&used, &made] {
            std::fs::create_dir(dir).unwrap();
            for name in [
                format!(".gangway-{dead}-0.tmp"),
                format!(".gangway-{dead}-17.tmp"),
                format!(".gangway-{alive}-900000.tmp"),
                ".gangway-x-0.tmp".to_owned(),
                format!("gangway-{dead}-0.tmp"),
            ] {
                std::fs::write(dir.join(name), "{").unwrap();
            }
        }
        write_private(&used.join("1.json"), b"x").unwrap();
        private_dir(&made).unwrap();
        let kept = |dir: &Path| {
            let mut names = names(dir);
            names.sort();
            names
        };
        let others = [
            format!(".gangway-{alive}-900000.tmp"),
            ".gangway-x-0.tmp".to_owned(),
            format!("gangway-{dead}-0.tmp"),
        ];
        assert_eq!(kept(&made), others);
        assert_eq!(kept(&used), [&others[..2], &["1.json".to_owned()], &others[2..]].concat());
    }

    #[test]
    fn a_failed_write_names_the_file_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.lock");
        std::fs::create_dir(&path).unwrap();
        let error = write_private(&path, b"x").unwrap_err().to_string();
        assert!(error.contains("1.lock"), "{error}");
        assert_eq!(names(dir.path()), ["1.lock"]);
        assert!(write_private(&dir.path().join("no/where"), b"x").is_err());
    }

    #[test]
    fn a_reader_never_sees_half_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        let (one, two) = (vec![b'1'; 100_000], vec![b'2'; 50_000]);
        write_private(&path, &one).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for turn in 0..100 {
                    write_private(&path, if turn % 2 == 0 { &two } else { &one }).unwrap();
                }
            });
            while !writer.is_finished() {
                let bytes = read_plain(&path, 1 << 20).unwrap();
                assert!(bytes == one || bytes == two, "{} bytes", bytes.len());
            }
        });
    }

    fn refused(path: &str) -> String {
        read_plain(Path::new(path), 1 << 20).unwrap_err().to_string()
    }

    #[test]
    fn what_is_no_plain_file_is_refused_at_once_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let fifo = std::process::Command::new("mkfifo").arg(at("fifo")).status().unwrap();
        assert!(fifo.success());
        symlink(at("fifo"), at("to_fifo")).unwrap();
        symlink(at("loop"), at("loop")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        assert!(refused(&at("")).contains("a directory"));
        assert!(refused(&at("fifo")).contains("a named pipe"));
        assert!(refused(&at("to_fifo")).contains("a named pipe"));
        assert!(refused("/dev/zero").contains("a device"));
        assert!(refused(&at("loop")).starts_with("cannot read"));
        assert!(refused(&at("file/below")).starts_with("cannot read"));
        #[cfg(target_os = "linux")]
        assert!(refused("/proc/self/mem").contains("a file of the kernel"));
    }

    #[test]
    fn missing_files_and_dangling_links_are_missing() {
        let dir = tempfile::tempdir().unwrap();
        symlink(dir.path().join("nowhere"), dir.path().join("dangling")).unwrap();
        for name in ["none", "no/dir", "dangling"] {
            assert!(read_plain(&dir.path().join(name), 9).unwrap_err().is_missing(), "{name}");
        }
    }

    #[test]
    fn the_limit_is_in_bytes_and_links_are_followed_only_where_asked() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "12345").unwrap();
        symlink(&file, &link).unwrap();
        assert_eq!(read_plain(&link, 5).unwrap(), b"12345");
        let error = read_plain(&file, 4).unwrap_err();
        assert!(matches!(error, ReadError::TooLarge { size: 5, limit: 4, .. }), "{error}");
        assert!(read_own(&link, 5).unwrap_err().to_string().contains("a symbolic link"));
        assert_eq!(read_own(&file, 5).unwrap(), b"12345");
    }

    #[test]
    fn only_a_leading_tilde_is_expanded() {
        let home = Path::new("/home/u");
        let expand = |text: &str| expand_home(Path::new(text), Some(home)).unwrap();
        assert_eq!(expand("~"), home);
        assert_eq!(expand("~/a b"), home.join("a b"));
        for literal in ["~user/x", "/a/~/b", "$HOME/x[1]", "/a/%x"] {
            assert_eq!(expand(literal), Path::new(literal));
        }
        assert_eq!(expand_home(Path::new("~/x"), None), None);
    }
}
