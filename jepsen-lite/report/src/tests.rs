//! Pages of runs made by hand.
//!
//! To look at them: `JEPSEN_LITE_PAGES=DIR cargo test -p jepsen-lite-report` writes them there.

use std::time::Duration;

use jepsen_lite_core::audit::Audit;
use jepsen_lite_core::history::{Delivery, History, Mark, MessageId, Outcome, Publish, Settle};
use jepsen_lite_core::judge::judge;
use jepsen_lite_core::run::{Facts, Run as Recorded};

use crate::{Run, html, of, sample};

/// Elements that have no end tag.
const VOID: [&str; 5] = ["meta", "link", "input", "br", "img"];

/// Names of the elements of a page in the order of their starts, after checking that all of them end in order.
fn elements(html: &str) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    let mut seen = Vec::new();
    let mut rest = html.strip_prefix("<!DOCTYPE html>").expect("a doctype");
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        let end = rest.find('>').expect("a tag ends");
        let tag = &rest[..end];
        let name: String = tag
            .trim_start_matches('/')
            .chars()
            .take_while(char::is_ascii_alphanumeric)
            .collect();
        assert!(!name.is_empty(), "`<{tag}>` is no tag");
        assert_eq!(tag.matches('"').count() % 2, 0, "quotes of `<{tag}>`");
        rest = &rest[end + 1..];
        if tag.starts_with('/') {
            assert_eq!(
                open.pop().as_deref(),
                Some(name.as_str()),
                "`</{name}>` ends another element"
            );
            continue;
        }
        seen.push(name.clone());
        // What is inside of these is no markup.
        if name == "script" || name == "style" {
            let end = rest.find(&format!("</{name}>")).expect("it ends");
            rest = &rest[end..];
        }
        if !tag.ends_with('/') && !VOID.contains(&name.as_str()) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?} never end");
    seen
}

/// The page, checked for what every page must be, and kept for looking at it.
fn page(name: &str, run: &Run) -> String {
    let html = html(run);
    if let Some(directory) = std::env::var_os("JEPSEN_LITE_PAGES") {
        let file = std::path::Path::new(&directory).join(format!("{name}.html"));
        std::fs::write(file, &html).expect("the page can be written");
    }
    let elements = elements(&html);
    assert_eq!(elements.iter().filter(|element| *element == "script").count(), 2);
    for outside in ["http://", "https://", "@import", "url("] {
        assert!(!html.contains(outside), "the page asks for {outside}");
    }
    html
}

fn assert_all(html: &str, facts: &[&str]) {
    for fact in facts {
        assert!(html.contains(fact), "the page does not say {fact:?}");
    }
}

#[test]
fn a_valid_run() {
    let html = page("valid", &sample::valid());
    assert_all(
        &html,
        &[
            "<span class=\"verdict valid\">valid</span>",
            "went through 1\u{a0}×\u{a0}kill of a process, 1\u{a0}×\u{a0}network partition, 1\u{a0}×\u{a0}slow disk and 1\u{a0}×\u{a0}forced snapshot on 3 nodes",
            "all 6 promises that could be checked held.",
            "jepsen-lite sim --scenario kill-leader-loop --seed 42",
            "3.00 s to 7.00 s</span> node 0 was killed (SIGKILL).",
            "<span class=\"counters\">bytes held back: 48,213</span>",
            "not done: no disk shim here",
            "had no effect",
            "No confirmed message is lost.",
            "<span class=\"badge unseen\">nothing to check</span>",
            "at least 500",
            "<td>at most 30 %</td><td>few enough</td>",
            "title=\"faults are undone\"",
            "2 changes of the leader",
            "queues are drained from 23.50 s.",
            "<b>1</b><span> kill of a process · node 0</span>",
            "<i>term </i>5</b>",
        ],
    );
    // The skipped fault is told of, but is no band.
    assert_eq!(html.matches("class=\"band\"").count(), 4);
    assert_eq!(html.matches("class=\"change\"").count(), 2);
}

#[test]
fn a_violated_run_leads_to_the_messages_that_show_it() {
    let run = sample::violated();
    let html = page("violated", &run);
    assert_all(
        &html,
        &[
            "A promise was broken under",
            "“No confirmed message is lost” (I1; 3 of",
            "evidence: 3 cases",
        ],
    );
    for witness in &run.results.findings[0].witnesses {
        let message = witness.message.as_deref().unwrap();
        assert_eq!(
            html.matches(&format!("data-message=\"{message}\"")).count(),
            2,
            "once as evidence, once among the publishes"
        );
        assert!(
            html.contains(&format!("\"{message}\":[")),
            "its life is on the page"
        );
    }
    assert_all(
        &html,
        &[
            "class=\"lost lost-prefix\"",
            "class=\"lost lost-middle\"",
            "class=\"lost lost-suffix\"",
        ],
    );
    let broken = html.find("badge violated").unwrap();
    assert!(
        broken < html.find("badge valid").unwrap(),
        "what is broken comes first"
    );
}

#[test]
fn a_loss_is_told_from_the_history_to_the_page() {
    let message = |index| MessageId { index, number: 0 };
    let at = Duration::from_millis;
    let mut history = History::default();
    for index in [10, 20, 30] {
        let token = format!("1.{index}.1.{index}");
        history.publishes.push(Publish {
            invoked: at(index),
            answered: at(index + 5),
            key: index,
            queue: "jobs".to_owned(),
            outcome: Outcome::Done(message(index)),
            ..Publish::default()
        });
        if index == 20 {
            continue;
        }
        history.deliveries.push(Delivery {
            process: 1,
            received: at(index + 6),
            queue: "jobs".to_owned(),
            message: message(index),
            key: Some(index),
            token: token.clone(),
            fence: index,
            attempt: 1,
            ..Delivery::default()
        });
        history.settles.push(Settle {
            process: 1,
            invoked: at(index + 7),
            answered: at(index + 8),
            token,
            outcome: Outcome::Done(()),
            ..Settle::default()
        });
    }
    history.marks.push(Mark {
        at: at(100),
        name: Mark::DRAINED.to_owned(),
        ..Mark::default()
    });
    let run = Recorded {
        schedule: sample::empty().schedule,
        history,
        audit: Audit::default(),
        effects: Vec::new(),
        facts: Facts::default(),
        sights: Vec::new(),
    };
    let html = page("lost", &of(&run, &judge(&run)));
    assert_all(
        &html,
        &[
            "<span class=\"verdict violated\">violated</span>",
            "“No confirmed message is lost” (I1; 1 of 3 wrong)",
            "message <button class=\"message\" data-message=\"20-0\">20-0</button> is gone",
            "<button class=\"lost lost-middle\" data-message=\"20-0\"",
            "\"20-0\":[",
        ],
    );
}

#[test]
fn a_run_that_saw_too_little_says_what_was_missing() {
    let html = page("unknown", &sample::unknown());
    assert_all(
        &html,
        &[
            "This run proves nothing",
            "but leader changes: 0 seen, at least 2 needed.",
            "<tr class=\"short\"><th scope=\"row\">changes of the leader</th><td>0</td><td>at least 2</td><td>too little</td></tr>",
        ],
    );
}

#[test]
fn an_empty_run_is_a_page_too() {
    let html = page("empty", &sample::empty());
    assert_all(
        &html,
        &[
            "nothing was published",
            "Nothing: the cluster was left alone under its load.",
        ],
    );
}

#[test]
fn texts_of_a_run_are_never_markup() {
    let html = page("hostile", &sample::hostile());
    assert!(!html.contains("<script>alert"));
    assert!(!html.contains("<img"));
    assert_all(&html, &["&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;"]);
}

#[test]
fn a_hundred_thousand_operations_fit_into_five_megabytes() {
    let run = sample::large();
    assert!(run.calls.len() > 100_000, "{}", run.calls.len());
    let html = page("large", &run);
    assert!(html.len() < 5_000_000, "{} bytes", html.len());
    assert!(html.contains("the lives of"));
}
