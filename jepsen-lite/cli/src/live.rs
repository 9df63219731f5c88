//! A line every second while a run goes on.

use std::time::Duration;

use jepsen_lite_core::schedule::Schedule;
use jepsen_lite_workload::access::Access;
use jepsen_lite_workload::recorder::Recorder;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::arguments::millis;
use crate::voice::Voice;

/// Between two lines.
const BETWEEN: Duration = Duration::from_secs(1);
/// How long the nodes may take to say who leads.
const ASK_LIMIT: Duration = Duration::from_millis(900);

/// Tells how a run goes, until it is dropped.
pub(crate) async fn tell(schedule: &Schedule, recorder: &Recorder, access: &Access, voice: Voice) {
    let client = access.client(ASK_LIMIT);
    let mut ticks = interval(BETWEEN);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let asked = timeout(ASK_LIMIT, client.cluster().status_all()).await;
        let answers = asked.unwrap_or_default().into_iter().enumerate();
        let leader = answers
            .filter_map(|(node, (_, status))| Some((node, status.ok()?)))
            .filter(|(_, status)| status.role == "leader")
            .max_by_key(|(_, status)| status.term);
        let leader = leader.map_or("nobody leads".to_owned(), |(node, status)| {
            format!("node {node} leads in term {}", status.term)
        });
        let now = recorder.now();
        voice.say(format!(
            "  {:>4} s  {leader:<26} {:>7} confirmed  {}",
            now.as_secs(),
            recorder.progress().confirmed,
            under_way(schedule, millis(now))
        ));
    }
}

/// What the schedule has on at this time.
fn under_way(schedule: &Schedule, now_ms: u64) -> String {
    if now_ms >= schedule.load_ms {
        return "healed, and to be whole and empty".to_owned();
    }
    let lasts_until = |step: &jepsen_lite_core::schedule::Step| match step.undo_at_ms {
        Some(undo_at_ms) => undo_at_ms,
        None if step.fault.lasts() => schedule.load_ms,
        None => step.at_ms + millis(BETWEEN),
    };
    let steps = schedule.steps.iter();
    let on = steps.filter(|step| (step.at_ms..lasts_until(step)).contains(&now_ms));
    on.map(|step| step.fault.name()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use jepsen_lite_core::schedule::{Fault, Step, Target};

    #[test]
    fn faults_are_on_while_they_last() {
        let mut schedule = jepsen_lite_workload::scenarios::by_name("none").expect("it is there");
        let step = |at_ms, fault, undo_at_ms| Step {
            at_ms,
            fault,
            target: Target::All,
            undo_at_ms,
        };
        schedule.steps = vec![
            step(1_000, Fault::Kill, Some(3_000)),
            step(2_500, Fault::Reset, None),
            step(4_000, Fault::Pause, None),
        ];
        let on = |now_ms| under_way(&schedule, now_ms);
        assert_eq!(on(999), "");
        assert_eq!(on(2_600), "kill, reset");
        assert_eq!(on(3_400), "reset");
        assert_eq!(on(schedule.load_ms - 1), "pause");
        assert_eq!(on(schedule.load_ms), "healed, and to be whole and empty");
    }
}
