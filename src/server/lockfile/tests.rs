//! All of it together, in a home directory of its own.

use super::*;
use serde_json::{Value, json};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;

struct Case {
    dir: tempfile::TempDir,
    environment: Environment,
    credentials: Credentials,
    /// Keeps the port ours.
    _listener: TcpListener,
    port: u16,
}

impl Case {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            environment: Environment {
                home: Some(dir.path().into()),
                cwd: "/work".into(),
                ..Environment::default()
            },
            port: listener.local_addr().unwrap().port(),
            credentials: Credentials::generate([Family::Pi, Family::Claude]).unwrap(),
            _listener: listener,
            dir,
        }
    }

    fn publish(&self, roots: &[&str]) -> (LockFiles, Vec<LockError>) {
        let roots: Vec<&Path> = roots.iter().map(Path::new).collect();
        LockFiles::publish(&self.environment, self.port, &self.credentials, &roots)
    }

    fn path(&self, family: Family) -> PathBuf {
        let directory = self.environment.directory(family).unwrap();
        directory.join(format!("{}.lock", self.port))
    }

    fn lock(&self, family: Family) -> Lock {
        serde_json::from_slice(&std::fs::read(self.path(family)).unwrap()).unwrap()
    }

    /// A lock file of somebody else's.
    fn plant(&self, family: Family, port: u16, pid: u32, name: &str) -> PathBuf {
        let directory = self.environment.directory(family).unwrap();
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join(format!("{port}.lock"));
        let lock = Lock {
            pid,
            workspace_folders: vec!["/x".into()],
            ide_name: name.into(),
            transport: "ws".into(),
            running_in_windows: None,
            auth_token: "theirs".into(),
        };
        std::fs::write(&path, serde_json::to_vec(&lock).unwrap()).unwrap();
        path
    }
}

/// The id of a process that has ended.
fn dead_pid() -> u32 {
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let pid = child.id();
    child.wait().unwrap();
    pid
}

fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn each_family_gets_its_fields_and_both_go_together() {
    let case = Case::new();
    let (files, errors) = case.publish(&["/work/proj", "/real/proj"]);
    assert_eq!(errors, []);
    let pid = std::process::id();
    for family in [Family::Pi, Family::Claude] {
        let token = case.credentials.token(family).unwrap().secret();
        let text = std::fs::read_to_string(case.path(family)).unwrap();
        let windows = if family == Family::Claude { r#""runningInWindows":false,"# } else { "" };
        assert_eq!(
            text,
            format!(
                r#"{{"pid":{pid},"workspaceFolders":["/work/proj","/real/proj"],"ideName":"Neovim (proj)","transport":"ws",{windows}"authToken":"{token}"}}"#
            )
        );
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&case.path(family)), 0o600);
        assert_eq!(mode(case.path(family).parent().unwrap()), 0o700);
    }
    assert!(case.path(Family::Pi).starts_with(case.dir.path().join(".pi/ide")));
    assert!(case.path(Family::Claude).starts_with(case.dir.path().join(".claude/ide")));
    drop(files);
    assert!(!case.path(Family::Pi).exists() && !case.path(Family::Claude).exists());
}

#[test]
fn without_a_home_only_what_needs_one_fails_and_says_so() {
    let mut case = Case::new();
    case.environment.pi_lock_dir = Some(case.dir.path().join("pi"));
    case.environment.home = None;
    let (_files, errors) = case.publish(&["/w"]);
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].family, Family::Claude);
    assert!(errors[0].message.contains("HOME is not set"), "{}", errors[0]);
    assert!(errors[0].message.contains("CLAUDE_CONFIG_DIR"), "{}", errors[0]);
    assert!(case.path(Family::Pi).exists());
}

#[test]
fn a_family_that_cannot_be_published_does_not_undo_the_other() {
    for (broken, fine) in [(Family::Pi, Family::Claude), (Family::Claude, Family::Pi)] {
        let case = Case::new();
        let name = if broken == Family::Pi { ".pi" } else { ".claude" };
        let obstacle = case.dir.path().join(name);
        std::fs::write(&obstacle, "a file").unwrap();
        let (mut files, errors) = case.publish(&["/w"]);
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].family, broken);
        assert!(errors[0].message.contains(name), "{}", errors[0]);
        assert!(case.path(fine).exists());
        assert_eq!(files.check(), [], "told once");
        std::fs::remove_file(obstacle).unwrap();
        assert_eq!(files.check(), []);
        assert!(case.path(broken).exists(), "made up for");
    }
}

#[test]
fn a_rewrite_keeps_port_and_token() {
    let case = Case::new();
    let (mut files, _) = case.publish(&["/a"]);
    let before = case.lock(Family::Pi);
    assert_eq!(files.rewrite(&[Path::new("/b"), Path::new("/a")]), []);
    let after = case.lock(Family::Pi);
    assert_eq!(after.workspace_folders, ["/b", "/a"]);
    assert_eq!((after.pid, &after.auth_token), (before.pid, &before.auth_token));
    assert_eq!(after.ide_name, "Neovim (b)");
}

#[test]
fn what_was_deleted_comes_back() {
    let case = Case::new();
    let (mut files, _) = case.publish(&["/a"]);
    let before = case.lock(Family::Claude);
    std::fs::remove_file(case.path(Family::Claude)).unwrap();
    std::fs::remove_dir_all(case.dir.path().join(".pi")).unwrap();
    assert_eq!(files.check(), []);
    assert_eq!(case.lock(Family::Claude), before);
    case.lock(Family::Pi);
    files.remove();
    assert!(!case.path(Family::Pi).exists());
}

#[test]
fn what_is_not_ours_any_more_is_left_alone() {
    let case = Case::new();
    let (mut files, _) = case.publish(&["/a"]);
    let theirs = case.plant(Family::Claude, case.port, std::process::id(), "Other");
    std::fs::write(case.path(Family::Pi), "half a fi").unwrap();
    assert_eq!(files.check(), []);
    assert_eq!(files.rewrite(&[Path::new("/b")]), []);
    assert_eq!(case.lock(Family::Claude).ide_name, "Other");
    drop(files);
    assert!(theirs.exists());
    assert_eq!(std::fs::read(case.path(Family::Pi)).unwrap(), b"half a fi");
}

#[test]
fn a_link_in_the_place_of_the_lock_is_neither_followed_nor_removed() {
    let case = Case::new();
    let (mut files, _) = case.publish(&["/a"]);
    let (path, target) = (case.path(Family::Pi), case.dir.path().join("target"));
    std::fs::rename(&path, &target).unwrap();
    std::os::unix::fs::symlink(&target, &path).unwrap();
    assert_eq!(files.rewrite(&[Path::new("/b")]), []);
    drop(files);
    assert!(std::fs::read_to_string(&target).unwrap().contains("[\"/a\"]"));
    assert!(path.is_symlink());
}

#[test]
fn crashed_neovims_are_cleaned_up_after_and_nobody_else() {
    let case = Case::new();
    let dead = dead_pid();
    let open = TcpListener::bind("127.0.0.1:0").unwrap();
    let open = open.local_addr().unwrap().port();
    let listening = TcpListener::bind("127.0.0.1:0").unwrap();
    let family = Family::Claude;
    let gone = [dead, std::process::id()].map(|pid| {
        // Ours is one that had our process id before.
        case.plant(family, closed_port(), pid, "Neovim (proj)")
    });
    let alive = std::os::unix::process::parent_id();
    let kept = [
        case.plant(family, closed_port(), alive, "Neovim (proj)"),
        case.plant(family, listening.local_addr().unwrap().port(), dead, "Neovim (proj)"),
        case.plant(family, open.wrapping_add(1), dead, "Visual Studio Code"),
        case.plant(family, open.wrapping_add(2), dead, "Neovim"),
        case.plant(family, open.wrapping_add(3), dead, "Neovim (proj) fork"),
    ];
    let directory = case.environment.directory(family).unwrap();
    std::fs::write(directory.join("2.lock"), "not json").unwrap();
    std::fs::write(directory.join("x.lock"), "{}").unwrap();
    let unfinished = directory.join(format!(".gangway-{dead}-3.tmp"));
    std::fs::write(&unfinished, "").unwrap();
    let (_files, errors) = case.publish(&["/w"]);
    assert_eq!(errors, []);
    assert!(!gone.iter().any(|path| path.exists()) && !unfinished.exists());
    for path in kept {
        assert!(path.exists(), "{}", path.display());
    }
    assert!(directory.join("2.lock").exists() && directory.join("x.lock").exists());
}

#[test]
fn two_neovims_of_one_project_have_two_names() {
    let case = Case::new();
    // Some process that lives: this test's parent.
    let other = std::os::unix::process::parent_id();
    let path = case.plant(Family::Claude, 1, other, "Neovim (proj)");
    let (mut files, _) = case.publish(&["/work/proj"]);
    let distinct = format!("Neovim (proj, {})", std::process::id());
    assert_eq!(case.lock(Family::Claude).ide_name, distinct);
    assert_eq!(case.lock(Family::Pi).ide_name, distinct);
    // It keeps that name, whatever the other one does.
    std::fs::remove_file(path).unwrap();
    files.check();
    assert_eq!(case.lock(Family::Pi).ide_name, distinct);
}

#[test]
fn of_two_that_started_together_the_one_with_the_higher_port_changes() {
    let case = Case::new();
    let other = std::os::unix::process::parent_id();
    let (mut files, _) = case.publish(&["/work/proj"]);
    case.plant(Family::Pi, u16::MAX, other, "Neovim (proj)");
    files.check();
    assert_eq!(case.lock(Family::Pi).ide_name, "Neovim (proj)");
    case.plant(Family::Pi, 1, other, "Neovim (proj)");
    files.check();
    assert_eq!(case.lock(Family::Pi).ide_name, format!("Neovim (proj, {})", std::process::id()));
}

#[test]
fn a_lock_does_not_show_its_token() {
    let case = Case::new();
    let (files, _) = case.publish(&["/w"]);
    let lock = case.lock(Family::Pi);
    let shown = format!("{lock:?} {files:?} {:?}", case.credentials);
    assert!(!shown.contains(&lock.auth_token), "{shown}");
}

fn everybody() -> Case {
    let mut case = Case::new();
    case.credentials = Credentials::generate(Family::ALL).unwrap();
    case.environment.temporary[1] = Some(case.dir.path().join("tmp"));
    case
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn every_other_agent_finds_what_it_looks_for_where_it_looks() {
    let case = everybody();
    let (mut files, errors) = case.publish(&["/work/proj", "/real/proj"]);
    assert_eq!(errors, []);
    assert_eq!(files.set_socket("/run/x/ide.sock".into()), []);
    let (port, pid, home) = (case.port, std::process::id(), case.dir.path());
    let token = |family| case.credentials.token(family).unwrap().secret();
    let (name, info) = ("Neovim (proj)", json!({"name": "neovim", "displayName": "Neovim (proj)"}));
    let gemini = home.join(format!("tmp/gemini/ide/gemini-ide-server-{pid}-{port}.json"));
    assert_eq!(
        read(&gemini),
        json!({"port": port, "workspacePath": "/work/proj:/real/proj",
            "authToken": token(Family::Gemini), "ideInfo": info})
    );
    let qwen = home.join(format!(".qwen/ide/{port}.lock"));
    assert_eq!(
        read(&qwen),
        json!({"port": port, "workspacePath": "/work/proj:/real/proj", "ppid": pid,
            "authToken": token(Family::Qwen), "ideName": name, "ideInfo": info})
    );
    let copilot = home.join(format!(".copilot/ide/{port}.lock"));
    let mut lock = read(&copilot);
    assert!(lock["timestamp"].take().as_u64().unwrap() > 1_700_000_000_000);
    assert_eq!(
        lock,
        json!({"socketPath": "/run/x/ide.sock", "scheme": "unix", "timestamp": null,
            "headers": {"Authorization": format!("Nonce {}", token(Family::Copilot))},
            "pid": pid, "workspaceFolders": ["/work/proj", "/real/proj"], "ideName": name})
    );
    let amp = home.join(format!(".local/share/amp/ide/{port}.json"));
    assert_eq!(
        read(&amp),
        json!({"workspaceFolders": ["/work/proj", "/real/proj"], "port": port,
            "ideName": name, "authToken": token(Family::Amp), "pid": pid})
    );
    for path in [&gemini, &qwen, &copilot, &amp] {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(files.paths().len(), 6);
    drop(files);
    assert!([gemini, qwen, copilot, amp].iter().all(|path| !path.exists()));
}

#[test]
fn an_agent_that_was_never_here_gets_no_directory_until_it_comes() {
    let mut case = everybody();
    case.environment.auto = vec![Family::Gemini, Family::Qwen, Family::Copilot, Family::Amp];
    let (mut files, errors) = case.publish(&["/w"]);
    assert_eq!(errors, []);
    assert_eq!(files.set_socket("/run/x/ide.sock".into()), []);
    let home = case.dir.path();
    let made = |name: &str| home.join(name).exists();
    for name in [".gemini", "tmp", ".qwen", ".copilot", ".local"] {
        assert!(!made(name), "{name}");
    }
    assert_eq!(files.paths().len(), 2);
    std::fs::create_dir(home.join(".gemini")).unwrap();
    std::fs::create_dir(home.join(".qwen")).unwrap();
    std::fs::create_dir_all(home.join(".local/share/amp")).unwrap();
    assert_eq!(files.check(), []);
    assert!(made("tmp/gemini/ide") && made(".qwen/ide") && made(".local/share/amp/ide"));
    assert!(!made(".copilot"));
    assert_eq!(files.paths().len(), 5);
    case.environment.home = None;
    case.environment.auto.retain(|family| *family != Family::Amp);
    let (_files, errors) = case.publish(&["/w"]);
    let families: Vec<Family> = errors.iter().map(|error| error.family).collect();
    assert_eq!(families, [Family::Pi, Family::Claude, Family::Amp], "those that are on");
}

#[test]
fn what_others_left_for_any_agent_is_cleaned_up_with_its_socket() {
    let case = everybody();
    let (dead, port) = (dead_pid(), closed_port());
    let socket = crate::server::place_for_socket(&[case.dir.path()], "gangway-1").unwrap();
    let mode = socket.parent().unwrap().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    std::fs::write(&socket, "").unwrap();
    let plant = |family, name: String, content: Value| {
        let path = case.environment.directory(family).unwrap().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content.to_string()).unwrap();
        path
    };
    let info = json!({"name": "neovim", "displayName": "Neovim (a)"});
    let left = [
        plant(
            Family::Gemini,
            format!("gemini-ide-server-{dead}-{port}.json"),
            json!({"authToken": "x", "ideInfo": info}),
        ),
        plant(
            Family::Qwen,
            format!("{port}.lock"),
            json!({"ppid": dead, "authToken": "x", "ideName": "Neovim (a)"}),
        ),
        plant(
            Family::Copilot,
            format!("{port}.lock"),
            json!({"pid": dead, "headers": {"Authorization": "Nonce x"},
                "ideName": "Neovim (a)", "socketPath": socket}),
        ),
        plant(
            Family::Amp,
            format!("{port}.json"),
            json!({"pid": dead, "authToken": "x", "ideName": "Neovim (a)"}),
        ),
    ];
    let kept = plant(
        Family::Gemini,
        format!("gemini-ide-server-{dead}-{}.json", port + 1),
        json!({"authToken": "x", "ideInfo": {"displayName": "Some Editor"}}),
    );
    let (_files, errors) = case.publish(&["/w"]);
    assert_eq!(errors, []);
    assert!(left.iter().all(|path| !path.exists()) && kept.exists());
    assert!(!socket.parent().unwrap().exists());
}
