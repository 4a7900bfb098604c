//! `openDiff` and what becomes of it: every call is answered exactly once, or never if taken back.

use std::sync::atomic::Ordering;
use std::time::Duration;

use gangway::agents::mcp::Family;
use gangway::review::text::OldText;
use gangway::review::{Kind, Verdict};
use serde_json::{Value, json};

use super::support::{Rig, failure, texts, until};

#[tokio::test(flavor = "multi_thread")]
async fn accept_reject_and_dismiss_in_both_dialects() {
    let rig = Rig::new().await;
    let path = rig.file("a.txt", "one\r\ntwo");
    for (family, origin) in [(Family::Pi, "Pi"), (Family::Claude, "Claude Code")] {
        let mut client = rig.client(family).await;
        let id = client.ask_diff(&path, "one\nTWO\n", "tab ✻").await;
        let review = rig.reviews(1).await.remove(0);
        assert_eq!((&*review.origin, &*review.name), (origin, "tab ✻"));
        assert!(review.editable && !review.can_always);
        let Kind::Write { path: new_path, old_path, old, new } = &review.kind else { panic!() };
        assert_eq!((new_path.to_str().unwrap(), old_path), (path.as_str(), new_path));
        assert_eq!((old, &**new), (&OldText::new("one\r\ntwo"), "one\nTWO\n"));
        rig.accept(&review, "edited\0\r\n");
        assert_eq!(texts(&client.answer(&id).await), ["FILE_SAVED", "edited\0\r\n"]);
        for verdict in [Verdict::Reject, Verdict::Dismissed] {
            let id = client.ask_diff(&path, "x", "tab ✻").await;
            let review = rig.reviews(1).await.remove(0);
            assert!(rig.desk.decide(&review.id, verdict));
            assert_eq!(texts(&client.answer(&id).await), ["DIFF_REJECTED", "tab ✻"]);
        }
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"one\r\ntwo", "the agent writes, not we");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_on_disk_is_read_whatever_it_is() {
    let rig = Rig::new().await;
    let mut client = rig.client(Family::Claude).await;
    let at = |name: &str| rig.dir.path().join(name).to_str().unwrap().to_owned();
    std::os::unix::fs::symlink(at("nowhere"), at("dangling")).unwrap();
    let latin = rig.file("latin.txt", b"caf\xe9\n");
    let png = rig.file("a.png", b"\x89PNG\r\n\x1a\n\0\0");
    let decoded = OldText::Text { text: "café\n".into(), decoded_from: Some("latin1".into()) };
    for (path, expected) in [
        (at("new.txt"), Some(OldText::Missing)),
        (at("no such dir/new.txt"), Some(OldText::Missing)),
        (at("dangling"), Some(OldText::Missing)),
        (latin, Some(decoded)),
        (png, None),
    ] {
        let id = client.ask_diff(&path, "x", "t").await;
        let review = rig.reviews(1).await.remove(0);
        let Kind::Write { old, .. } = &review.kind else { panic!() };
        match expected {
            Some(expected) => assert_eq!(*old, expected, "{path}"),
            None => assert!(matches!(old, OldText::Binary { length: 10, .. }), "{old:?}"),
        }
        rig.accept(&review, "x");
        client.answer(&id).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rename_keeps_both_names() {
    let rig = Rig::new().await;
    let old = rig.file("a.txt", "one\n");
    let new = rig.dir.path().join("b.txt");
    let mut client = rig.client(Family::Claude).await;
    client
        .ask_tool(
            "openDiff",
            json!({"old_file_path": old, "new_file_path": new, "new_file_contents": "x",
                "tab_name": "t"}),
        )
        .await;
    let review = rig.reviews(1).await.remove(0);
    let Kind::Write { path, old_path, old: text, .. } = &review.kind else { panic!() };
    assert_eq!((path.as_path(), old_path.to_str().unwrap()), (new.as_path(), old.as_str()));
    assert_eq!(*text, OldText::new("one\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_plain_file_is_an_error_to_claude_and_a_rejection_with_a_reason_to_pi() {
    let rig = Rig::new().await;
    let file = rig.file("a.txt", "one\n");
    let at = |name: &str| rig.dir.path().join(name).to_str().unwrap().to_owned();
    assert!(std::process::Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    std::os::unix::fs::symlink(at("loop"), at("loop")).unwrap();
    let large = std::fs::File::create(at("large")).unwrap();
    large.set_len((64 << 20) + 1).unwrap();
    let mut claude = rig.client(Family::Claude).await;
    let mut pi = rig.client(Family::Pi).await;
    for (path, named) in [
        (at(""), "directory"),
        (at("new/"), "directory"),
        (at("fifo"), "named pipe"),
        ("/dev/zero".into(), "device"),
        ("/proc/self/mem".into(), "/proc/self/mem"),
        (format!("{file}/below"), "below"),
        (at("loop"), "loop"),
        (at("large"), "too large"),
        ("rel/x.txt".into(), "rel/x.txt"),
        ("~/x.txt".into(), "~/x.txt"),
        ("/nul\0byte".into(), "NUL"),
        (String::new(), "absolute"),
    ] {
        if path.starts_with("/proc/") && cfg!(not(target_os = "linux")) {
            continue;
        }
        let id = claude.ask_diff(&path, "x", "t").await;
        let sentence = failure(&claude.answer(&id).await);
        assert!(sentence.contains(named), "{path:?}: {sentence}");
        let id = pi.ask_diff(&path, "x", "t").await;
        let answer = texts(&pi.answer(&id).await);
        assert_eq!(answer[..2], ["DIFF_REJECTED", "t"]);
        assert!(answer[2].contains(named), "{path:?}: {answer:?}");
        // The other end of a rename is looked at as well.
        if path != at("large") {
            let answer = claude
                .tool(
                    "openDiff",
                    json!({"old_file_path": file, "new_file_path": path,
                        "new_file_contents": "x", "tab_name": "t"}),
                )
                .await;
            failure(&answer);
        }
    }
    rig.reviews(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_is_taken_back_and_never_answered() {
    let rig = Rig::new().await;
    let path = rig.file("a.txt", "one\n");
    for family in [Family::Pi, Family::Claude] {
        let mut client = rig.client(family).await;
        let kept = client.ask_diff(&path, "kept", "kept").await;
        rig.reviews(1).await;
        let id = client.ask_diff(&path, "x", "t").await;
        rig.reviews(2).await;
        client.notify("notifications/cancelled", json!({"requestId": id})).await;
        let review = rig.reviews(1).await.remove(0);
        assert_eq!(&*review.name, "kept");
        // At once, before it has reached the desk.
        for _ in 0..20 {
            let id = client.ask_diff(&path, "x", "t").await;
            client.notify("notifications/cancelled", json!({"requestId": id})).await;
        }
        assert!(rig.desk.decide(&review.id, Verdict::Reject));
        assert_eq!(texts(&client.answer(&kept).await), ["DIFF_REJECTED", "kept"]);
        let heard = client.listen(Duration::from_millis(150)).await;
        assert!(heard.iter().all(|message| message.get("method").is_some()), "{heard:?}");
        rig.reviews(0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn close_tab_answers_the_pending_diff_and_knows_no_other_connection() {
    let rig = Rig::new().await;
    let path = rig.file("a.txt", "one\n");
    let mut a = rig.client(Family::Claude).await;
    let mut b = rig.client(Family::Claude).await;
    let theirs = b.ask_diff(&path, "b", "t").await;
    rig.reviews(1).await;
    let mine = a.ask_diff(&path, "a", "t").await;
    rig.reviews(2).await;
    for _ in 0..2 {
        assert_eq!(a.texts("close_tab", json!({"tab_name": "t"})).await, ["TAB_CLOSED"]);
    }
    assert_eq!(texts(&a.answer(&mine).await), ["DIFF_REJECTED", "t"]);
    assert_eq!(a.texts("close_tab", json!({"tab_name": "none"})).await, ["TAB_CLOSED"]);
    assert_eq!(a.texts("closeAllDiffTabs", json!({})).await, ["CLOSED_0_DIFF_TABS"]);
    let review = rig.reviews(1).await.remove(0);
    rig.accept(&review, "b");
    assert_eq!(texts(&b.answer(&theirs).await), ["FILE_SAVED", "b"]);
    // In one breath: the diff must not come up after it was closed.
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.push(a.ask_diff(&path, "a", "t").await);
        a.ask_tool("close_tab", json!({"tab_name": "t"})).await;
    }
    for id in ids {
        assert_eq!(texts(&a.answer(&id).await), ["DIFF_REJECTED", "t"]);
    }
    rig.reviews(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn close_all_counts_what_it_closed() {
    let rig = Rig::new().await;
    let path = rig.file("a.txt", "one\n");
    let mut client = rig.client(Family::Claude).await;
    let one = client.ask_diff(&path, "x", "one").await;
    let two = client.ask_diff(&path, "x", "two").await;
    rig.reviews(2).await;
    assert_eq!(client.texts("closeAllDiffTabs", json!({})).await, ["CLOSED_2_DIFF_TABS"]);
    for id in [one, two] {
        assert_eq!(texts(&client.answer(&id).await)[0], "DIFF_REJECTED");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_name_again_replaces_and_different_names_do_not() {
    let rig = Rig::new().await;
    let path = rig.file("a.txt", "one\n");
    let mut client = rig.client(Family::Claude).await;
    let mut ids = Vec::new();
    for turn in 0..10 {
        ids.push(client.ask_diff(&path, &format!("{turn}"), "t").await);
    }
    for id in &ids[..9] {
        assert_eq!(texts(&client.answer(id).await), ["DIFF_REJECTED", "t"]);
    }
    let review = rig.reviews(1).await.remove(0);
    let Kind::Write { new, .. } = &review.kind else { panic!() };
    assert_eq!(&**new, "9", "the last one stays");
    rig.accept(&review, "9");
    assert_eq!(texts(&client.answer(&ids[9]).await), ["FILE_SAVED", "9"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn five_at_once_are_independent() {
    let rig = Rig::new().await;
    let mut client = rig.client(Family::Pi).await;
    let mut ids = Vec::new();
    for turn in 0..5 {
        let path = rig.file(&format!("{turn}.txt"), "old\n");
        ids.push(client.ask_diff(&path, &format!("new {turn}\n"), &format!("t{turn}")).await);
    }
    let reviews = rig.reviews(5).await;
    let of = |name: &str| reviews.iter().find(|review| &*review.name == name).unwrap();
    assert_eq!(rig.mcp.clients()[0].pending, 5);
    rig.accept(of("t3"), "edited 3\n");
    assert!(rig.desk.decide(&of("t2").id, Verdict::Reject));
    rig.accept(of("t1"), "new 1\n");
    assert_eq!(texts(&client.answer(&ids[1]).await), ["FILE_SAVED", "new 1\n"]);
    assert_eq!(texts(&client.answer(&ids[2]).await), ["DIFF_REJECTED", "t2"]);
    assert_eq!(texts(&client.answer(&ids[3]).await), ["FILE_SAVED", "edited 3\n"]);
    assert_eq!(client.call("ping", json!({})).await["result"], json!({}));
    client.reset();
    rig.reviews(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_takes_its_reviews_along_and_only_those() {
    let rig = Rig::new().await;
    let path = rig.file("a.txt", "one\n");
    let mut stays = rig.client(Family::Claude).await;
    let id = stays.ask_diff(&path, "stays", "t").await;
    rig.reviews(1).await;
    for turn in 0..3 {
        let mut leaves = rig.client(Family::Claude).await;
        for name in ["one", "two", "three"] {
            leaves.ask_diff(&path, "leaves", name).await;
        }
        rig.reviews(4).await;
        match turn {
            0 => leaves.reset(),
            1 => leaves.socket.close(None).await.unwrap(),
            _ => drop(leaves),
        }
        rig.reviews(1).await;
    }
    let review = rig.reviews(1).await.remove(0);
    rig.accept(&review, "stays");
    assert_eq!(texts(&stays.answer(&id).await), ["FILE_SAVED", "stays"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_client_can_pile_up_diffs_without_end() {
    let rig = Rig::new().await;
    let path = rig.file("a.txt", "one\n");
    let mut pi = rig.client(Family::Pi).await;
    let mut last = Value::Null;
    for turn in 0..257 {
        last = pi.ask_diff(&path, "x", &format!("t{turn}")).await;
    }
    let refused = texts(&pi.answer(&last).await);
    assert_eq!(refused[0], "DIFF_REJECTED");
    assert!(refused[2].contains("too many"), "{refused:?}");
    rig.reviews(256).await;
    assert_eq!(pi.texts("closeAllDiffTabs", json!({})).await, ["CLOSED_256_DIFF_TABS"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_answers_every_pending_diff_before_the_close_frame() {
    let mut rig = Rig::new().await;
    let path = rig.file("a.txt", "one\n");
    let mut clients = Vec::new();
    for family in [Family::Pi, Family::Claude, Family::Claude] {
        let mut client = rig.client(family).await;
        let mut ids = Vec::new();
        for name in ["one", "two", "three"] {
            ids.push(client.ask_diff(&path, "x", name).await);
        }
        clients.push((client, ids));
    }
    rig.reviews(9).await;
    let port = rig.port;
    let stopping = tokio::spawn(async move {
        let begun = std::time::Instant::now();
        rig.stop().await;
        (rig, begun.elapsed())
    });
    for (mut client, ids) in clients {
        let (heard, code) = client.until_closed().await;
        let answers: Vec<&Value> = heard.iter().filter(|m| m.get("method").is_none()).collect();
        assert_eq!(answers.len(), 3, "{heard:?}");
        for id in ids {
            let answer = answers.iter().find(|answer| answer["id"] == id).unwrap();
            assert_eq!(texts(answer)[0], "DIFF_REJECTED");
        }
        assert_eq!(code, Some(1001));
        // Whoever comes back as soon as it is told to go finds nobody.
        assert!(tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err());
    }
    let (rig, took) = stopping.await.unwrap();
    assert!(took < Duration::from_millis(450), "{took:?}");
    assert!(rig.desk.is_empty());
    assert_eq!(rig.mcp.client_count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_edit_of_pis_turn_is_refused_as_well_when_stopping() {
    let mut rig = Rig::new().await;
    let path = rig.file("a.txt", "one\n");
    let mut pi = rig.client(Family::Pi).await;
    let first = pi.ask_diff(&path, "x", "one").await;
    rig.reviews(1).await;
    let stopping = tokio::spawn(async move { rig.stop().await });
    assert_eq!(texts(&pi.answer(&first).await)[0], "DIFF_REJECTED");
    // 4 ms in life; more here, so that the server cannot be that late by accident.
    tokio::time::sleep(Duration::from_millis(15)).await;
    let second = pi.ask_diff(&path, "x", "two").await;
    assert_eq!(texts(&pi.answer(&second).await)[0], "DIFF_REJECTED");
    assert_eq!(pi.until_closed().await.1, Some(1001));
    stopping.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_does_not_wait_for_neovim_nor_for_who_does_not_read() {
    let mut rig = Rig::new().await;
    let path = rig.file("a.txt", "one\n");
    let big = "some line of text\n".repeat(1_000_000);
    let mut narrow = rig.connect_narrow(Family::Claude).await;
    narrow.introduce("x", "2024-11-05").await;
    narrow.ask_diff(&path, &big, "t").await;
    let review = rig.reviews(1).await.remove(0);
    rig.accept(&review, &big);
    rig.host.busy.store(true, Ordering::Relaxed);
    let mut client = rig.client(Family::Claude).await;
    let id = client.ask_tool("getOpenEditors", json!({})).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    let begun = std::time::Instant::now();
    let stopping = tokio::spawn(async move {
        rig.stop().await;
        (rig, begun.elapsed())
    });
    assert_eq!(failure(&client.answer(&id).await), "Neovim is stopping");
    assert_eq!(client.until_closed().await.1, Some(1001));
    let (rig, took) = stopping.await.unwrap();
    assert!(took < Duration::from_millis(900), "{took:?}");
    until("the end of both", || (rig.mcp.client_count() == 0).then_some(())).await;
}
