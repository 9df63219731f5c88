//! The page: verdict, promises, the run in time, the lives of messages.

use std::fmt::Write as _;

use jepsen_lite_core::verdict::Verdict;

use crate::axis::Time;
use crate::bands::Change;
use crate::escape::{Text, json_in_script};
use crate::evidence::Links;
use crate::fate::{Fate, fates};
use crate::run::Run;
use crate::{bands, lanes, lives, plots, promises, scatter, summary, words};

/// Most changes of the leader that are told one by one.
const LEADERS_MAX: usize = 40;
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// The whole page.
pub(crate) fn page(run: &Run) -> String {
    let time = Time::spanning(moments(run));
    let fates = fates(run);
    let (dots, scale) = scatter::dots(run, &fates, time);
    let links = Links::of(run);
    let lives = lives::lives(run, &links, &dots, time);
    let verdict = run.results.verdict;
    let title = format!(
        "{}, seed {}: {}",
        run.schedule.name,
        run.schedule.seed,
        words::verdict(verdict)
    );

    let mut html = String::with_capacity(64 * 1024);
    let _ = write!(
        html,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{}</title><link rel=\"icon\" href=\"data:,\"><style>\n{STYLE}</style></head><body>\n",
        Text(&title)
    );
    head(&mut html, run);
    let _ = write!(
        html,
        "<main>\n<div class=\"columns\"><section aria-labelledby=\"done\"><h2 id=\"done\">What was done</h2>{}</section>\n\
         <section aria-labelledby=\"seen\"><h2 id=\"seen\">What was seen</h2>{}</section></div>\n\
         <section aria-labelledby=\"promises\"><h2 id=\"promises\">What was promised, and whether it held</h2>{}</section>\n",
        summary::done(run, time),
        summary::seen(run),
        promises::table(&run.results, &links)
    );
    run_in_time(&mut html, run, time, &scatter::draw(&dots, scale));
    life(&mut html, &lives);
    let _ = write!(
        html,
        "</main>\n<script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{SCRIPT}</script>\n</body></html>\n",
        json_in_script(&lives.json)
    );
    html
}

/// Everything that has a time, so that all of it is on the page.
fn moments(run: &Run) -> impl Iterator<Item = f64> {
    let calls = run
        .calls
        .iter()
        .flat_map(|call| [Some(call.begin_ms), call.end_ms]);
    let effects = run
        .effects
        .iter()
        .flat_map(|effect| [Some(effect.from_ms as f64), effect.until_ms.map(|ms| ms as f64)]);
    calls
        .chain(effects)
        .flatten()
        .chain(run.statuses.iter().map(|status| status.at_ms as f64))
        .chain([run.schedule.load_ms as f64])
}

fn head(html: &mut String, run: &Run) {
    let class = match run.results.verdict {
        Verdict::Valid => "valid",
        Verdict::Unknown => "unknown",
        Verdict::Violated => "violated",
        Verdict::Harness => "harness",
    };
    let schedule = &run.schedule;
    let _ = write!(
        html,
        "<header class=\"{class}\"><p class=\"what\">jepsen-lite · {} · seed {}</p>\
         <h1><span class=\"verdict {class}\">{}</span></h1><p class=\"sentence\">{}</p>",
        Text(&schedule.name),
        schedule.seed,
        words::verdict(run.results.verdict),
        Text(&summary::sentence(run)),
    );
    if !schedule.about.is_empty() {
        let _ = write!(html, "<p class=\"about\">{}</p>", Text(&schedule.about));
    }
    let notes: Vec<&String> = run.results.notes.iter().collect();
    if notes.len() > 1
        || (notes.len() == 1 && matches!(run.results.verdict, Verdict::Valid | Verdict::Violated))
    {
        html.push_str("<ul class=\"notes\">");
        for note in notes {
            let _ = write!(html, "<li>{}</li>", Text(note));
        }
        html.push_str("</ul>");
    }
    let parameters: Vec<String> = schedule
        .workload
        .parameters
        .iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let _ = write!(
        html,
        "<dl><div><dt>workload</dt><dd>{}{}</dd></div><div><dt>nodes</dt><dd>{}</dd></div>\
         <div><dt>load for</dt><dd>{}</dd></div>",
        Text(&schedule.workload.name),
        Text(&if parameters.is_empty() {
            String::new()
        } else {
            format!(" ({})", parameters.join(", "))
        }),
        schedule.nodes,
        words::duration(schedule.load_ms as f64),
    );
    if !schedule.settings.is_empty() {
        let settings: Vec<String> = schedule
            .settings
            .iter()
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        let _ = write!(
            html,
            "<div><dt>settings</dt><dd>{}</dd></div>",
            Text(&settings.join(", "))
        );
    }
    let _ = writeln!(
        html,
        "</dl><p class=\"repeat\"><span>The same again:</span> <code>{}</code></p></header>",
        Text(&run.results.repeat)
    );
}

fn run_in_time(html: &mut String, run: &Run, time: Time, scatter: &str) {
    let changes = bands::changes(&run.statuses);
    let axis = axis(time);
    let _ = write!(
        html,
        "<section aria-labelledby=\"time\"><h2 id=\"time\">The run in time</h2>\
         <p>Time runs from left to right, and is the same in all of it. Grey bands are faults, with the numbers of the \
         list above. A dashed line is a change of the leader. {}</p>\n\
         <div class=\"time\"><div class=\"behind\">{}<div class=\"cursor\" hidden><output></output></div></div>\n\
         {}<div class=\"row\"><span class=\"label\">faults</span>{}</div>{axis}",
        Text(&course(run)),
        bands::across(&run.effects, &changes, time),
        phases(run, time),
        bands::labels(&run.effects, time),
    );
    heading(
        html,
        "Clients",
        &[
            ("swatch bars", "calls that were done: the higher, the more"),
            ("swatch refused", "some were refused"),
            ("swatch unknown", "an answer never came"),
            ("swatch waiting", "a call that waited long"),
        ],
    );
    html.push_str(
        "<p class=\"hint\">The caretaker declares the queues, and takes what is left in them at the end.</p>",
    );
    html.push_str(&lanes::clients(run, time));
    heading(
        html,
        "Nodes",
        &[
            ("swatch leader", "leads (a colour for each term)"),
            ("swatch follower", "follows"),
            ("swatch candidate", "wants to lead"),
            ("swatch learner", "learns"),
            ("swatch silent", "does not answer"),
            ("swatch fault", "a fault is done to it"),
        ],
    );
    html.push_str(&lanes::nodes(run, time));
    html.push_str(&leaders(run, &changes));
    html.push_str(&axis);
    heading(
        html,
        "Time until a publish was confirmed",
        &[
            ("stroke p50", "half were faster"),
            ("stroke p99", "99 of 100 were faster"),
            ("stroke max", "the slowest"),
            ("swatch unknown dot", "gave up without an answer"),
        ],
    );
    html.push_str(&plots::latency(&run.calls, time));
    heading(
        html,
        "Answers a second",
        &[
            ("stroke published", "publishes confirmed"),
            ("stroke received", "deliveries received"),
            ("stroke settled", "settlements done"),
        ],
    );
    html.push_str(&plots::rate(&run.calls, time));
    html.push_str(&axis);
    let fates: Vec<(String, &str)> = Fate::ALL
        .iter()
        .map(|fate| {
            let kind = if fate.is_lost() { "key" } else { "swatch dot" };
            (format!("{kind} {}", fate.class()), fate.words())
        })
        .collect();
    let fates: Vec<(&str, &str)> = fates
        .iter()
        .map(|(class, words)| (class.as_str(), *words))
        .collect();
    heading(html, "Each publish, and how long until a worker had it", &fates);
    html.push_str("<p class=\"hint\">A click on a dot shows the life of its message.</p>");
    let _ = writeln!(
        html,
        "<div id=\"publishes\">{scatter}</div>{axis}</div></section>"
    );
}

/// Who led, from each change on. The nodes are asked now and then, and a short reign is missed.
fn leaders(run: &Run, changes: &[Change]) -> String {
    if changes.is_empty() {
        return String::new();
    }
    let told: Vec<String> = changes
        .iter()
        .take(LEADERS_MAX)
        .map(|change| {
            let at = words::moment(change.at_ms);
            format!("{at} node {} (term {})", change.node, change.term)
        })
        .collect();
    let drawn = changes.len() as u64;
    let of = match run.results.seen.get("leader_changes") {
        Some(&all) if all > drawn => format!("{} of {}", words::count(drawn), words::counted(all, "change")),
        _ => words::counted(drawn, "change"),
    };
    format!(
        "<details class=\"changes\"><summary>{of} of the leader, as far as nodes told when they were asked</summary>\
         <p>{}</p></details>",
        told.join("; ")
    )
}

/// The phases in a sentence: those that are too short for their name in the chart are told here.
fn course(run: &Run) -> String {
    let phases: Vec<String> = run
        .phases
        .iter()
        .map(|phase| format!("{} from {}", phase.name, words::moment(phase.from_ms)))
        .collect();
    match phases.is_empty() {
        true => String::new(),
        false => format!("The phases: {}.", phases.join("; ")),
    }
}

/// What the harness was about, as a row of its own, with the names for which there is room.
fn phases(run: &Run, time: Time) -> String {
    if run.phases.is_empty() {
        return String::new();
    }
    let mut html =
        String::from("<div class=\"row\"><span class=\"label\">phase</span><div class=\"plot phases\">");
    for (place, phase) in run.phases.iter().enumerate() {
        let next = run.phases.get(place + 1);
        let until_ms = next.map_or(time.until_ms(), |next| next.from_ms);
        let (from, until) = (time.percent(phase.from_ms), time.percent(until_ms));
        let needed = (phase.name.chars().count() + 2) as f64 * bands::CHARACTER_PERCENT;
        let shown = match until - from < needed {
            true => "",
            false => &phase.name,
        };
        let _ = write!(
            html,
            "<span class=\"phase\" style=\"left:{from:.2}%;width:{:.2}%\" title=\"{}\">{}</span>",
            (until - from).max(0.0),
            Text(&phase.name),
            Text(shown),
        );
    }
    html.push_str("</div></div>");
    html
}

/// The name of a group of lanes or of a plot, and what its colours and shapes mean.
fn heading(html: &mut String, title: &str, legend: &[(&str, &str)]) {
    let _ = write!(html, "<h3>{title}</h3><ul class=\"legend\">");
    for (class, words) in legend {
        let letter = match class.strip_prefix("key ") {
            Some("lost-prefix") => "P",
            Some("lost-middle") => "M",
            Some("lost-suffix") => "S",
            _ => "",
        };
        let _ = write!(
            html,
            "<li><i class=\"{class}\" aria-hidden=\"true\">{letter}</i>{words}</li>"
        );
    }
    html.push_str("</ul>\n");
}

/// The times, under or over a group of charts.
fn axis(time: Time) -> String {
    let mut html =
        String::from("<div class=\"row axis\" aria-hidden=\"true\"><span></span><div class=\"plot\">");
    for tick in time.ticks() {
        let percent = time.percent(tick);
        let side = match percent {
            p if p < 3.0 => " first",
            p if p > 94.0 => " last",
            _ => "",
        };
        let _ = write!(
            html,
            "<span class=\"tick{side}\" style=\"left:{percent:.2}%\">{}</span>",
            time.label(tick)
        );
    }
    html.push_str("</div></div>\n");
    html
}

fn life(html: &mut String, lives: &lives::Lives) {
    let (told, all) = (lives.told as u64, lives.all as u64);
    let which = match told == all {
        true => format!("the lives of all {}", words::counted(all, "message")),
        false => format!(
            "the lives of {} of {} messages: all that are evidence or were lost, then as many as there was room for. \
             The others are in <code>history.jsonl</code> and <code>audit/</code>",
            words::count(told),
            words::count(all)
        ),
    };
    let _ = writeln!(
        html,
        "<section aria-labelledby=\"messages\"><h2 id=\"messages\">The life of a message</h2>\
         <p>A message is called by its place in the log, such as <code>1042-0</code>. Choose one in the evidence or in \
         the plot of publishes, or ask for it. This page holds {which}.</p>\
         <noscript><p><strong>Without JavaScript this part does not work; everything above does.</strong></p></noscript>\
         <form id=\"ask\"><label for=\"wanted\">message</label> <input id=\"wanted\" autocomplete=\"off\" spellcheck=\"false\" \
         inputmode=\"text\" placeholder=\"1042-0\"> <button>show its life</button> <span id=\"answer\" role=\"status\"></span></form>\
         <dialog id=\"life\" aria-labelledby=\"life-of\"></dialog></section>"
    );
}
