//! I9: only the token of the current lease settles.

use std::collections::{HashMap, HashSet};

use super::Looked;
use crate::audit::{Entry, Request, Settlement};
use crate::history::{History, Outcome, STALE_LEASE, Wish};
use crate::ids::{MessageId, RequestId, Token};
use crate::model::{Place, Replay, Step};

/// A lease that is current.
#[derive(Clone, Copy)]
struct Current {
    message: MessageId,
    queue: usize,
    attempt: u32,
    until_ms: u64,
}

/// Whether a token is current at its place in the log.
enum Standing {
    Current(MessageId),
    Stale,
    /// Its lease ends in this entry, and the log does not tell whether before or after.
    Ends,
}

/// A settlement is accepted if its token is that of the current lease, whose time is not over, and it has its effect
/// in the same entry. Any other is refused as stale and has none: whatever is acked, nacked, given back, rejected or
/// extended is so by an accepted settlement of this lease. Fences grow from lease to lease. And holders were told what
/// became of it.
#[must_use]
pub fn tokens_are_fenced(replay: &Replay<'_>, history: &History) -> Looked {
    let mut looked = Looked::default();
    let mut current: HashMap<u64, Current> = HashMap::new();
    let mut last_fence = 0;
    for (entry, steps) in replay.entries() {
        settlements(replay, entry, steps, &current, &mut looked);
        for step in steps {
            let message = step.change.message;
            if let Some(why) = effect(step).filter(|_| !step.is_double) {
                looked.add(Some(message), || {
                    format!("{message}: {} in entry {}, {why}", step.change.change, step.index)
                });
            }
            if let Place::Leased(lease) = step.before.place
                && !step.is_double
            {
                current.remove(&lease.fence);
            }
            if let Place::Leased(lease) = step.after.place {
                if step.change.change == "leased" && lease.fence <= last_fence {
                    looked.add(Some(message), || {
                        format!(
                            "{message} was leased as {} in entry {}, after {last_fence}",
                            lease.fence, step.index
                        )
                    });
                }
                last_fence = last_fence.max(lease.fence);
                let known = Current {
                    message,
                    queue: step.queue,
                    attempt: lease.attempt,
                    until_ms: lease.until_ms,
                };
                current.insert(lease.fence, known);
            }
        }
    }
    answers(replay, history, &mut looked);
    looked
}

/// Requests of one entry in their order, each with the token as it is by then.
fn settlements(
    replay: &Replay<'_>,
    entry: &Entry,
    steps: &[Step<'_>],
    current: &HashMap<u64, Current>,
    looked: &mut Looked,
) {
    let mut settled: HashSet<u64> = HashSet::new();
    let with_effect: HashSet<(&str, &str)> = steps
        .iter()
        .filter_map(|step| step.settlement)
        .map(|settlement| (settlement.token.as_str(), settlement.verdict.as_str()))
        .collect();
    let mut ended: Option<HashSet<u64>> = None;
    for settlement in done(entry).flat_map(|request| &request.settlements) {
        let Ok(token) = settlement.token.parse::<Token>() else {
            looked.undecided += 1;
            continue;
        };
        let ended = ended.get_or_insert_with(|| ended_otherwise(steps));
        let standing = standing(replay, entry, token, current, &settled, ended);
        let (verdict, index) = (&settlement.verdict, entry.index);
        match (settlement.refused.as_deref(), standing) {
            (None, Standing::Current(message)) => {
                looked.checked += 1;
                if !with_effect.contains(&(settlement.token.as_str(), verdict)) {
                    looked.add(Some(message), || {
                        format!(
                            "{verdict} of {} in entry {index} was done, and did nothing",
                            settlement.token
                        )
                    });
                }
            }
            (None, Standing::Stale) => {
                looked.checked += 1;
                looked.add(current.get(&token.fence).map(|known| known.message), || {
                    format!(
                        "{verdict} of {} in entry {index} was done, and it was not current",
                        settlement.token
                    )
                });
            }
            (Some(STALE_LEASE), Standing::Current(message)) => {
                looked.checked += 1;
                looked.add(Some(message), || {
                    format!(
                        "{verdict} of {} in entry {index} was refused, and it was current",
                        settlement.token
                    )
                });
            }
            (Some(STALE_LEASE), Standing::Stale) => looked.checked += 1,
            (_, Standing::Ends) => looked.undecided += 1,
            // It was refused for what it asks, whatever the token.
            (Some(_), _) => {}
        }
        if settlement.refused.is_none() && verdict != "extend" {
            settled.insert(token.fence);
        }
    }
}

fn done(entry: &Entry) -> impl Iterator<Item = &Request> {
    entry.requests.iter().filter(|request| request.is_done())
}

/// Leases that end in the entry by something else than a settlement or their time.
fn ended_otherwise(steps: &[Step<'_>]) -> HashSet<u64> {
    let ends = |step: &Step<'_>| match step.before.place {
        Place::Leased(lease) if step.settlement.is_none() && step.at_ms < lease.until_ms => Some(lease.fence),
        _ => None,
    };
    steps.iter().filter_map(ends).collect()
}

fn standing(
    replay: &Replay<'_>,
    entry: &Entry,
    token: Token,
    current: &HashMap<u64, Current>,
    settled: &HashSet<u64>,
    ended: &HashSet<u64>,
) -> Standing {
    // What is due ends before anything that is asked for in the entry.
    let lasts = current.get(&token.fence).filter(|known| {
        let queue = &replay.queues[known.queue];
        queue.has_id(token.queue) && known.attempt == token.attempt && entry.at_ms < known.until_ms
    });
    let Some(known) = lasts.filter(|_| !settled.contains(&token.fence)) else {
        return Standing::Stale;
    };
    match replay.queues[known.queue].deleted {
        Some(deleted) if deleted < entry.index => Standing::Stale,
        _ if !replay.queues[known.queue].is_sure_in(entry.index) => Standing::Ends,
        _ if ended.contains(&token.fence) => Standing::Ends,
        _ => Standing::Current(known.message),
    }
}

/// What is wrong with what happened to a lease.
fn effect(step: &Step<'_>) -> Option<String> {
    let change = step.change.change.as_str();
    let needs = matches!(change, "acked" | "nacked" | "released" | "extended");
    let Some(Settlement { verdict, token, .. }) = step.settlement else {
        return needs.then(|| "and nobody who held it said so".to_owned());
    };
    let of_age = step.change.reason.as_deref() == Some("expired");
    let fits = match (verdict.as_str(), change) {
        ("ack", "acked") | ("nack", "nacked") | ("release", "released") | ("extend", "extended") => true,
        // The last attempt failed, or there is no life left to go on with.
        ("nack", "died" | "dead-lettered") => true,
        ("nack" | "release", "expired") => true,
        ("release", "died" | "dead-lettered") => of_age,
        ("dead-letter", "died" | "dead-lettered") => true,
        _ => false,
    };
    (!fits).then(|| format!("and {token} said {verdict}"))
}

/// What holders were told is what the log says.
fn answers(replay: &Replay<'_>, history: &History, looked: &mut Looked) {
    if history.settles.is_empty() {
        return;
    }
    let mut by_place: HashSet<(u64, &str, &str)> = HashSet::new();
    let mut by_request: HashMap<(RequestId, &str), bool> = HashMap::new();
    for (entry, _) in replay.entries() {
        for request in entry.requests.iter().filter(|request| request.repeats.is_none()) {
            for settlement in &request.settlements {
                let (token, verdict) = (settlement.token.as_str(), settlement.verdict.as_str());
                let accepted = request.refused.is_none() && settlement.refused.is_none();
                if accepted {
                    by_place.insert((entry.index, token, verdict));
                }
                if let Some(id) = request.id {
                    by_request.insert((id, token), accepted);
                }
            }
        }
    }
    for settle in &history.settles {
        let token = settle.token.as_str();
        let accepted = match (&settle.outcome, settle.place, settle.request) {
            (Outcome::Done(()), Some(place), _) => {
                by_place.contains(&(place.index, token, word(settle.wish)))
            }
            (Outcome::Refused(Some(reason)), _, Some(id)) if reason == STALE_LEASE => {
                by_request.get(&(id, token)).copied().unwrap_or(false)
            }
            _ => continue,
        };
        looked.checked += 1;
        if accepted != settle.outcome.is_done() {
            looked.add(None, || {
                format!(
                    "{:?} of {token} was answered {:?}, and the log has {}",
                    settle.wish,
                    settle.outcome,
                    if accepted {
                        "that it was done"
                    } else {
                        "no such thing"
                    }
                )
            });
        }
    }
}

fn word(wish: Wish) -> &'static str {
    match wish {
        Wish::Ack => "ack",
        Wish::Nack => "nack",
        Wish::Release => "release",
        Wish::DeadLetter => "dead-letter",
        Wish::Extend => "extend",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::replay::testing::{accepts, leaves_open, looked, refuses};
    use crate::history::{Place as At, Settle};

    const GOOD: &str = r#"
        1000 declare-queue queue=q created=true settings={"lease_ms":500,"max_deliveries":2}
        1000 publish queue=q count=3 first=2-0 / 2-0 published / 2-1 published / 2-2 published
        1000 lease queue=q / 2-0 leased fence=1 attempt=1 until_ms=1500
        1000 consume session="7" consumer=1 queue=q credit=2 / 2-1 leased fence=2 attempt=1 until_ms=1500 session="7" consumer=1 / 2-2 leased fence=3 attempt=1 until_ms=1500 session="7" consumer=1
        1100 settle id=5-1 settlements=[{"token":"9.0.1.1","verdict":"extend","until_ms":1600},{"token":"9.0.1.7","verdict":"ack","refused":"STALE_LEASE"}] / 2-0 extended until_ms=1600
        1200 settle id=5-2 settlements=[{"token":"9.1.1.2","verdict":"ack"},{"token":"9.1.1.2","verdict":"ack","refused":"STALE_LEASE"}] / 2-1 acked
        1500 settle id=5-3 settlements=[{"token":"9.2.1.3","verdict":"ack","refused":"STALE_LEASE"}] / 2-2 lease-expired / 2-2 leased fence=4 attempt=2 until_ms=2000 session="7" consumer=1
        1550 settle id=5-4 settlements=[{"token":"9.2.1.3","verdict":"nack","refused":"STALE_LEASE"},{"token":"9.0.1.1","verdict":"release"}] / 2-0 released
        1550 transact settlements=[{"token":"9.2.2.4","verdict":"ack"}] publishes=[{"queue":"q","count":1,"first":"9-0"}] / 2-2 acked / 9-0 published
    "#;

    #[test]
    fn stale_tokens_that_act_and_current_ones_that_do_not_are_found() {
        refuses(
            tokens_are_fenced,
            GOOD,
            &[
                // Honoured, with the effect or without: of nothing, twice, late, and of an earlier lease.
                (
                    "\"9.0.1.7\",\"verdict\":\"ack\",\"refused\":\"STALE_LEASE\"",
                    "\"9.0.1.7\",\"verdict\":\"ack\"",
                ),
                (
                    "\"9.1.1.2\",\"verdict\":\"ack\",\"refused\":\"STALE_LEASE\"",
                    "\"9.1.1.2\",\"verdict\":\"ack\"",
                ),
                (
                    "\"9.2.1.3\",\"verdict\":\"ack\",\"refused\":\"STALE_LEASE\"",
                    "\"9.2.1.3\",\"verdict\":\"ack\"",
                ),
                (
                    "\"9.2.1.3\",\"verdict\":\"nack\",\"refused\":\"STALE_LEASE\"",
                    "\"9.2.1.3\",\"verdict\":\"nack\"",
                ),
                ("\"9.2.2.4\"", "\"9.2.2.3\""),
                ("\"9.2.2.4\"", "\"8.2.2.4\""),
                // Refused, with the effect or without.
                (
                    "\"9.1.1.2\",\"verdict\":\"ack\"}",
                    "\"9.1.1.2\",\"verdict\":\"ack\",\"refused\":\"STALE_LEASE\"}",
                ),
                (
                    "{\"token\":\"9.0.1.1\",\"verdict\":\"release\"}",
                    "{\"token\":\"9.0.1.1\",\"verdict\":\"release\",\"refused\":\"STALE_LEASE\"}",
                ),
                // No effect, another one, and one that nobody asked for.
                (" / 2-0 released", ""),
                ("2-0 released", "2-0 nacked"),
                ("2-2 lease-expired", "2-2 acked"),
                (
                    "2-0 extended until_ms=1600",
                    "2-0 extended until_ms=1600 / 2-2 extended until_ms=1600",
                ),
                // A fence twice, and one that goes back.
                ("fence=4", "fence=2"),
                ("fence=3", "fence=1"),
            ],
        );
    }

    #[test]
    fn what_ends_in_the_same_entry_is_not_decided() {
        let bad = "close-session session=\"7\" epoch=1 / settle settlements=[{\"token\":\"9.1.1.2\",\"verdict\":\"ack\",\"refused\":\"STALE_LEASE\"}] / 2-1 session-ended";
        let from = "settle id=5-2 settlements=[{\"token\":\"9.1.1.2\",\"verdict\":\"ack\"},{\"token\":\"9.1.1.2\",\"verdict\":\"ack\",\"refused\":\"STALE_LEASE\"}] / 2-1 acked";
        leaves_open(tokens_are_fenced, GOOD, &[(from, bad)]);
    }

    #[test]
    fn holders_that_were_told_otherwise_are_found() {
        accepts(tokens_are_fenced, GOOD);
        let done = Settle {
            token: "9.1.1.2".to_owned(),
            place: Some(At {
                index: 6,
                ..At::default()
            }),
            outcome: Outcome::Done(()),
            ..Settle::default()
        };
        let stale = Settle {
            token: "9.2.1.3".to_owned(),
            request: Some(RequestId {
                client: 5,
                sequence: 3,
            }),
            outcome: Outcome::Refused(Some(STALE_LEASE.to_owned())),
            ..Settle::default()
        };
        let count = |settle: &Settle| {
            let settles = vec![settle.clone()];
            let history = History {
                settles,
                ..History::default()
            };
            looked(tokens_are_fenced, GOOD, &history).violations
        };
        assert_eq!((count(&done), count(&stale)), (0, 0));
        let elsewhere = Settle {
            place: Some(At {
                index: 7,
                ..At::default()
            }),
            ..done.clone()
        };
        let other_verdict = Settle {
            wish: Wish::Nack,
            ..done.clone()
        };
        let other_token = Settle {
            token: "9.0.1.7".to_owned(),
            ..done.clone()
        };
        let was_done = Settle {
            token: "9.1.1.2".to_owned(),
            request: Some(RequestId {
                client: 5,
                sequence: 2,
            }),
            ..stale
        };
        for bad in [elsewhere, other_verdict, other_token] {
            assert_eq!(count(&bad), 1, "{bad:?}");
        }
        // The second time it was refused.
        assert_eq!(count(&was_done), 0);
    }
}
