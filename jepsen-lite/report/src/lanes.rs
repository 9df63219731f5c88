//! One lane for each client and each node: who did what, when.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jepsen_lite_core::cluster::Effect;

use crate::axis::{Time, WIDTH};
use crate::bands::{until_ms, was_done};
use crate::escape::Text;
use crate::run::{Answer, Call, Role, Run, Status};
use crate::words;

/// Most lanes of clients; more clients than this share lanes.
const CLIENT_LANES_MAX: usize = 16;
/// Parts of the time in which calls are counted together.
const BINS: usize = 300;
/// Most calls of a lane that are drawn as waiting.
const WAITS_MAX: usize = 60;
/// Height of a lane, in its own units.
const HEIGHT: f64 = 20.0;

/// The lanes of the clients.
pub(crate) fn clients(run: &Run, time: Time) -> String {
    let mut html = String::new();
    for (name, calls) in lanes_of(&run.calls) {
        lane(&mut html, &name, "client", &client(&calls, time), "");
    }
    html
}

/// The lanes of the nodes.
pub(crate) fn nodes(run: &Run, time: Time) -> String {
    let mut html = String::new();
    let named = run.effects.iter().flat_map(|effect| effect.nodes.iter().copied());
    let count = run
        .statuses
        .iter()
        .map(|status| status.node)
        .chain(named)
        .map(|node| node + 1)
        .fold(run.schedule.nodes, usize::max);
    for node in 0..count {
        let stays = stays(&run.statuses, node, time);
        let mut svg = String::new();
        let mut labels = String::new();
        for stay in &stays {
            let (from, until) = (time.x(stay.from_ms), time.x(stay.until_ms));
            let _ = write!(
                svg,
                "<rect class=\"{}\" x=\"{from:.0}\" y=\"0\" width=\"{:.0}\" height=\"15\"><title>{}</title></rect>",
                stay.class(),
                (until - from).max(8.0),
                Text(&stay.words(node)),
            );
            if stay.role == Role::Leader {
                let _ = write!(
                    labels,
                    "<span class=\"term\" style=\"left:{:.2}%;width:{:.2}%\"><b><i>term </i>{}</b></span>",
                    from / WIDTH * 100.0,
                    (until - from) / WIDTH * 100.0,
                    stay.term
                );
            }
        }
        faults_on(&mut svg, &run.effects, node, time);
        lane(&mut html, &format!("node {node}"), "node", &svg, &labels);
    }
    html
}

fn lane(html: &mut String, name: &str, class: &str, svg: &str, labels: &str) {
    let _ = write!(
        html,
        "<div class=\"lane {class}\"><span class=\"label\">{}</span><div class=\"plot\">\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\" \
         aria-label=\"{}\">{svg}</svg>{labels}</div></div>",
        Text(name),
        Text(name),
    );
}

/// Clients in lanes: each one its own, or neighbours of a kind together where there are too many.
fn lanes_of(calls: &[Call]) -> Vec<(String, Vec<&Call>)> {
    let mut of_client: BTreeMap<(&str, u64, &str), Vec<&Call>> = BTreeMap::new();
    for call in calls {
        let kind = call.client.trim_end_matches(|c: char| c.is_ascii_digit());
        let number = call.client[kind.len()..].parse().unwrap_or(0);
        of_client
            .entry((kind, number, &call.client))
            .or_default()
            .push(call);
    }
    let together = of_client.len().div_ceil(CLIENT_LANES_MAX);
    let mut kinds: BTreeMap<&str, Vec<(&str, Vec<&Call>)>> = BTreeMap::new();
    for ((kind, _, client), calls) in of_client {
        kinds.entry(kind).or_default().push((client, calls));
    }
    let mut lanes = Vec::new();
    for (kind, clients) in kinds {
        for group in clients.chunks(together.max(1)) {
            let name = match group {
                [(only, _)] => (*only).to_owned(),
                [(first, _), .., (last, _)] => format!("{first}–{}", &last[kind.len()..]),
                [] => continue,
            };
            let calls = group
                .iter()
                .flat_map(|(_, calls)| calls.iter().copied())
                .collect();
            lanes.push((name, calls));
        }
    }
    lanes
}

/// Bars of calls that were done, marks of refused and unknown ones, lines for those that waited.
fn client(calls: &[&Call], time: Time) -> String {
    let mut done = [0_u32; BINS];
    let (mut refused, mut unknown) = ([false; BINS], [false; BINS]);
    let mut waits: Vec<(f64, f64)> = Vec::new();
    for call in calls {
        let end_ms = call.end_ms.unwrap_or(time.until_ms());
        let bin = time.bin(call.end_ms.unwrap_or(call.begin_ms), BINS);
        match call.answer {
            Answer::Done => done[bin] += 1,
            Answer::Refused => refused[bin] = true,
            Answer::Unknown => unknown[bin] = true,
        }
        if end_ms - call.begin_ms > time.length_ms() / 100.0 {
            waits.push((call.begin_ms, end_ms));
        }
    }
    waits.sort_by(|a, b| (b.1 - b.0).total_cmp(&(a.1 - a.0)));
    waits.truncate(WAITS_MAX);

    let most = f64::from(done.iter().copied().max().unwrap_or(0).max(1));
    let width = WIDTH / BINS as f64;
    let mut bars = String::new();
    let (mut crosses, mut lines) = (String::new(), String::new());
    for bin in 0..BINS {
        let x = bin as f64 * width;
        if done[bin] > 0 {
            // A single call is seen beside a thousand.
            let height = 3.0 + f64::from(done[bin]) / most * (HEIGHT - 7.0);
            let _ = write!(bars, "M{x:.0} {HEIGHT}v-{height:.1}h{width:.0}v{height:.1}");
        }
        if refused[bin] {
            let _ = write!(lines, "M{x:.0} 1.5h{width:.0}");
        }
        if unknown[bin] {
            let _ = write!(crosses, "M{:.0} 0V{HEIGHT}", x + width / 2.0);
        }
    }
    let mut waiting = String::new();
    for (from, until) in waits {
        let _ = write!(waiting, "M{:.0} 10H{:.0}", time.x(from), time.x(until));
    }
    format!(
        "<path class=\"bars\" d=\"{bars}\"/><path class=\"waiting\" d=\"{waiting}\"/>\
         <path class=\"refused\" d=\"{lines}\"/><path class=\"unknown\" d=\"{crosses}\"/>"
    )
}

/// A time in which a node said the same of itself.
#[derive(Clone, Debug, PartialEq)]
struct Stay {
    from_ms: f64,
    until_ms: f64,
    role: Role,
    term: u64,
}

impl Stay {
    fn class(&self) -> String {
        match self.role {
            // Four colours, so that neighbours in time differ.
            Role::Leader => format!("leader term-{}", self.term % 4),
            Role::Follower => "follower".to_owned(),
            Role::Candidate => "candidate".to_owned(),
            Role::Learner => "learner".to_owned(),
            Role::Outside => "outside".to_owned(),
            Role::Silent => "silent".to_owned(),
        }
    }

    fn words(&self, node: usize) -> String {
        let is = match self.role {
            Role::Leader => format!("leads in term {}", self.term),
            Role::Follower => format!("follows in term {}", self.term),
            Role::Candidate => format!("wants to lead in term {}", self.term),
            Role::Learner => "learns, without a vote".to_owned(),
            Role::Outside => "belongs to no cluster".to_owned(),
            Role::Silent => "does not answer".to_owned(),
        };
        format!(
            "node {node} {is}, {} to {}",
            words::moment(self.from_ms),
            words::moment(self.until_ms)
        )
    }
}

/// What a node said it was, from each answer to the next.
fn stays(statuses: &[Status], node: usize, time: Time) -> Vec<Stay> {
    let mut of_node: Vec<&Status> = statuses.iter().filter(|status| status.node == node).collect();
    of_node.sort_by_key(|status| status.at_ms);
    let mut stays: Vec<Stay> = Vec::new();
    for status in of_node {
        let at_ms = status.at_ms as f64;
        if let Some(last) = stays.last_mut() {
            last.until_ms = at_ms;
            // The term of followers changes without anything to see.
            if last.role == status.role && (last.role != Role::Leader || last.term == status.term) {
                continue;
            }
        }
        stays.push(Stay {
            from_ms: at_ms,
            until_ms: time.until_ms(),
            role: status.role,
            term: status.term,
        });
    }
    if let Some(last) = stays.last_mut() {
        last.until_ms = time.until_ms();
    }
    stays
}

/// A bar under the lane wherever a fault is done to the node.
fn faults_on(svg: &mut String, effects: &[Effect], node: usize, time: Time) {
    for (place, effect) in effects.iter().enumerate() {
        if !was_done(effect) || !effect.nodes.contains(&node) {
            continue;
        }
        let (from, until) = (time.x(effect.from_ms as f64), time.x(until_ms(effect, time)));
        let _ = write!(
            svg,
            "<rect class=\"fault\" x=\"{from:.0}\" y=\"16\" width=\"{:.0}\" height=\"4\"><title>{}: {}</title></rect>",
            (until - from).max(WIDTH / 400.0),
            place + 1,
            Text(&words::fault(&effect.fault, &effect.nodes)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Act;

    fn call(client: String) -> Call {
        Call {
            client,
            act: Act::Publish,
            begin_ms: 0.0,
            end_ms: Some(1.0),
            answer: Answer::Done,
            message: None,
            queue: "q".to_owned(),
        }
    }

    #[test]
    fn lanes_stand_by_number_and_share_where_there_are_many() {
        let few: Vec<Call> = [10, 9, 1].map(|n| call(format!("worker {n}"))).into();
        let names: Vec<String> = lanes_of(&few).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["worker 1", "worker 9", "worker 10"]);

        let many: Vec<Call> = (0..100).map(|n| call(format!("worker {n}"))).collect();
        let lanes = lanes_of(&many);
        assert!(lanes.len() <= CLIENT_LANES_MAX, "{}", lanes.len());
        assert_eq!(lanes[0].0, "worker 0–6");
        assert_eq!(lanes.iter().map(|(_, calls)| calls.len()).sum::<usize>(), 100);
    }

    #[test]
    fn a_node_stays_what_it_said_until_it_says_something_else() {
        let status = |at_ms, role, term| Status {
            at_ms,
            node: 0,
            role,
            term,
        };
        let statuses = [
            status(0, Role::Follower, 1),
            status(100, Role::Follower, 2),
            status(200, Role::Leader, 3),
            status(300, Role::Leader, 3),
            status(400, Role::Silent, 0),
        ];
        let seen: Vec<(f64, f64, Role)> = stays(&statuses, 0, Time::spanning([]))
            .into_iter()
            .map(|stay| (stay.from_ms, stay.until_ms, stay.role))
            .collect();
        assert_eq!(
            seen,
            [
                (0.0, 200.0, Role::Follower),
                (200.0, 400.0, Role::Leader),
                (400.0, 1000.0, Role::Silent)
            ]
        );
    }
}
