//! Settlements and publishes as one: all of it is done, or the whole is refused.
//!
//! First everything is planned, and nothing changed: each token must be current
//! and named once, each publish must have a route and room, where the messages
//! that are acked make room for those that are published. Then it is done in an
//! order in which nothing can fail: the acks, the publishes, the other
//! settlements.

use std::collections::BTreeMap;

use crate::broker::{Broker, Contents};
use crate::command::{Publish, Settlement, Verdict};
use crate::ids::QueueId;
use crate::limits::{PUBLISH_MESSAGES_MAX, ROUTES_PER_PUBLISH_MAX, SETTLEMENTS_MAX};
use crate::outcome::{Outcome, Published, Rejection, Reply, Settled};
use crate::publish::Plan;
use crate::queue::{Tally, invalid};
use crate::room::{Account, Displacing};

/// What a transaction will do.
struct Planned<'a> {
    settlements: Vec<(QueueId, u64, &'a Verdict)>,
    publishes: Vec<Plan<'a>>,
    account: Account,
}

impl Broker {
    pub(crate) fn transact(
        &mut self,
        settlements: &[Settlement],
        publishes: &[Publish],
        contents: Contents<'_>,
    ) -> Outcome {
        check_sizes(settlements, publishes)?;
        let mut planned = Planned {
            settlements: Vec::with_capacity(settlements.len()),
            publishes: Vec::with_capacity(publishes.len()),
            account: Account::default(),
        };
        self.plan_settlements(settlements, &mut planned)?;
        self.plan_publishes(publishes, contents, &mut planned)?;
        let (settled, published) = self.do_all(planned);
        Ok(Reply::Transacted { settled, published })
    }

    fn plan_settlements<'a>(
        &self,
        settlements: &'a [Settlement],
        planned: &mut Planned<'a>,
    ) -> Result<(), Rejection> {
        let mut named = BTreeMap::new();
        for (number, Settlement { token, verdict }) in settlements.iter().enumerate() {
            let refused = |cause| refused(format!("settlement {number}"), cause);
            let (queue, position) = self.current(*token).map_err(refused)?;
            verdict.check().map_err(refused)?;
            if let Some(before) = named.insert((queue, position), number) {
                let problem = format!("the same lease as in settlement {before}");
                return Err(refused(invalid("token", problem)));
            }
            if let Verdict::Ack = verdict {
                let freed = planned.account.freed.entry(queue).or_default();
                *freed = freed.plus(Tally::of(self.record(queue, position)));
            }
            planned.settlements.push((queue, position, verdict));
        }
        Ok(())
    }

    fn plan_publishes<'a>(
        &self,
        publishes: &'a [Publish],
        mut contents: Contents<'a>,
        planned: &mut Planned<'a>,
    ) -> Result<(), Rejection> {
        let mut records = 0;
        for (number, publish) in publishes.iter().enumerate() {
            let refused = |cause| refused(format!("publish {number}"), cause);
            let (first, bytes) = contents.next(publish.messages.len());
            let plan = self.plan_publish(publish, first, bytes, &mut planned.account);
            let plan = plan.map_err(refused)?;
            for (queue, more) in plan.needs() {
                records += more.count;
                planned.account.claim(queue, more);
            }
            if records > ROUTES_PER_PUBLISH_MAX as u64 {
                let problem = format!("{ROUTES_PER_PUBLISH_MAX} messages by one transaction");
                return Err(refused(Rejection::LimitExceeded(problem)));
            }
            planned.publishes.push(plan);
        }
        Ok(())
    }

    fn do_all(&mut self, planned: Planned<'_>) -> (Vec<Settled>, Vec<Published>) {
        let Planned {
            settlements,
            publishes,
            account,
        } = planned;
        let mut settled = vec![Settled { leased_until: None }; settlements.len()];
        let is_ack = |verdict: &Verdict| matches!(verdict, Verdict::Ack);
        for (queue, position, verdict) in &settlements {
            if is_ack(verdict) {
                self.carry_out_verdict(*queue, *position, verdict);
            }
        }
        let mut displacing = Displacing {
            promised: account.more,
            ..Displacing::default()
        };
        let published = publishes
            .iter()
            .map(|plan| self.carry_out(plan, &mut displacing))
            .collect();
        for (settled, (queue, position, verdict)) in settled.iter_mut().zip(&settlements) {
            if !is_ack(verdict) {
                *settled = self.carry_out_verdict(*queue, *position, verdict);
            }
        }
        (settled, published)
    }
}

fn check_sizes(settlements: &[Settlement], publishes: &[Publish]) -> Result<(), Rejection> {
    if settlements.is_empty() && publishes.is_empty() {
        return Err(invalid("transaction", "it does nothing".to_owned()));
    }
    if settlements.len() > SETTLEMENTS_MAX {
        let problem = format!("at most {SETTLEMENTS_MAX}, not {}", settlements.len());
        return Err(invalid("settlements", problem));
    }
    let messages: usize = publishes.iter().map(|publish| publish.messages.len()).sum();
    if messages > PUBLISH_MESSAGES_MAX {
        let problem = format!("at most {PUBLISH_MESSAGES_MAX} in all, not {messages}");
        return Err(invalid("messages", problem));
    }
    Ok(())
}

fn refused(part: String, cause: Rejection) -> Rejection {
    let cause = Box::new(cause);
    Rejection::TransactionRefused { part, cause }
}
