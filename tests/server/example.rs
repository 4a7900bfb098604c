//! The example agent against the server: what `make demo` shows, without a Neovim.

#[allow(dead_code)]
#[path = "../../examples/agent.rs"]
mod agent;

use gangway::agents::mcp::Family;
use gangway::context::Severity;
use gangway::review::{Kind, Verdict};
use gangway::server::lockfile::{Environment, LockFiles};

use super::support::{Rig, at, diagnostic};

struct Case {
    rig: Rig,
    environment: Environment,
    _locks: LockFiles,
}

async fn case() -> Case {
    let rig = Rig::new().await;
    let home = rig.dir.path().to_path_buf();
    let environment =
        Environment { home: Some(home.join("home")), cwd: home, ..Environment::default() };
    let roots = [rig.dir.path()];
    let (locks, errors) = LockFiles::publish(&environment, rig.port, &rig.credentials, &roots);
    assert_eq!(errors, []);
    let mut snapshot = at("/work/a.txt", 2, Some((3, 9, "three\nfour long")));
    snapshot
        .diagnostics
        .insert("/work/a.txt".into(), [diagnostic(0, Severity::Error, "boom")].into());
    rig.show(snapshot);
    Case { rig, environment, _locks: locks }
}

async fn run(case: &Case, family: Family, more: &[&str]) -> Result<bool, String> {
    let directory = case.environment.directory(family).unwrap();
    let name = if family == Family::Pi { "pi" } else { "claude" };
    let workspace = case.rig.dir.path().join("sub");
    std::fs::create_dir_all(&workspace).unwrap();
    let base = [
        "--as",
        name,
        "--lock-dir",
        directory.to_str().unwrap(),
        "--workspace",
        workspace.to_str().unwrap(),
    ];
    let args = base.iter().chain(more).map(|arg| (*arg).to_owned());
    agent::run(args).await.map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_writes_what_was_accepted_and_nothing_else() {
    let case = case().await;
    for family in [Family::Pi, Family::Claude] {
        let path = case.rig.file("a.txt", "one");
        let propose = ["--propose", &path, "--append", "two"];
        let decide = async {
            let review = case.rig.reviews(1).await.remove(0);
            let Kind::Write { new, .. } = &review.kind else { panic!() };
            assert_eq!(&**new, "one\ntwo\n");
            case.rig.accept(&review, "edited\n");
        };
        let (accepted, ()) = tokio::join!(run(&case, family, &propose), decide);
        assert_eq!(accepted, Ok(true));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "edited\n");
        let decide = async {
            let review = case.rig.reviews(1).await.remove(0);
            assert!(case.rig.desk.decide(&review.id, Verdict::Reject));
        };
        let (accepted, ()) = tokio::join!(run(&case, family, &propose), decide);
        assert_eq!(accepted, Ok(false));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "edited\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_makes_a_new_file_from_another() {
    let case = case().await;
    let other = case.rig.file("other.txt", "content\n");
    let path = case.rig.dir.path().join("new dir/new file.txt");
    let propose = ["--quiet", "--propose", path.to_str().unwrap(), "--replace-with", &other];
    let decide = async {
        let review = case.rig.reviews(1).await.remove(0);
        case.rig.accept(&review, "content\n");
    };
    let (accepted, ()) = tokio::join!(run(&case, Family::Claude, &propose), decide);
    assert_eq!(accepted, Ok(true));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "content\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_it_cannot_do_it_says() {
    let case = case().await;
    let error = run(&case, Family::Pi, &["--nonsense"]).await.unwrap_err();
    assert!(error.contains("--nonsense"), "{error}");
    let error = run(&case, Family::Claude, &["--propose", "/"]).await.unwrap_err();
    assert!(error.contains("directory"), "{error}");
}
