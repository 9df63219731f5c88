//! What is published, alone or in a transaction: first all of it is planned.

use quorate_core::command::{Publish, Settlement, Target, Verdict};
use quorate_core::ids::{MessageId, QueueId};
use quorate_core::outcome::{Outcome, Published, Rejection, Reply, Settled};

use super::dedup::Windows;
use super::{Model, invalid};

/// Messages and bytes that enter a queue.
pub(super) type Need = (QueueId, u64, u64);

struct Plan<'a> {
    publish: &'a Publish,
    first: usize,
    bytes: &'a [u32],
    /// Of each message.
    routes: Vec<Vec<QueueId>>,
    needs: Vec<Need>,
    answer: Published,
}

impl Model {
    pub(super) fn publish(&mut self, publish: &Publish, first: usize, bytes: &[u32]) -> Outcome {
        let mut windows = self.windows();
        let plan = self.plan(publish, first, bytes, &mut windows, &[], &[])?;
        self.take_note(windows);
        self.promised = plan.needs.clone();
        Ok(Reply::Published(self.carry_out(plan)))
    }

    pub(super) fn transact(
        &mut self,
        settlements: &[Settlement],
        publishes: &[Publish],
        first: usize,
        bytes: &[u32],
    ) -> Outcome {
        if settlements.is_empty() && publishes.is_empty() {
            return Err(invalid());
        }
        let refused = |part: &str, n: usize, cause| Rejection::TransactionRefused {
            part: format!("{part} {n}"),
            cause: Box::new(cause),
        };
        let mut named = Vec::new();
        let mut acked = Vec::new();
        for (n, Settlement { token, verdict }) in settlements.iter().enumerate() {
            let Some(i) = self.current(*token) else {
                return Err(refused("settlement", n, Rejection::StaleLease));
            };
            if named.contains(&i) {
                return Err(refused("settlement", n, invalid()));
            }
            named.push(i);
            if *verdict == Verdict::Ack {
                acked.push(i);
            }
        }
        let mut windows = self.windows();
        let mut plans: Vec<Plan<'_>> = Vec::new();
        let mut taken = 0;
        for (n, publish) in publishes.iter().enumerate() {
            let bytes = &bytes[taken..taken + publish.messages.len()];
            let claimed: Vec<Need> = plans.iter().flat_map(|plan| plan.needs.clone()).collect();
            let plan = self.plan(publish, first + taken, bytes, &mut windows, &claimed, &acked);
            plans.push(plan.map_err(|cause| refused("publish", n, cause))?);
            taken += publish.messages.len();
        }
        self.take_note(windows);
        let mut settled: Vec<Option<Settled>> = vec![None; settlements.len()];
        for (n, settlement) in settlements.iter().enumerate() {
            if settlement.verdict == Verdict::Ack {
                settled[n] = Some(self.settle(settlement)?);
            }
        }
        self.promised = plans.iter().flat_map(|plan| plan.needs.clone()).collect();
        let published = plans.into_iter().map(|plan| self.carry_out(plan)).collect();
        for (n, settlement) in settlements.iter().enumerate() {
            if settlement.verdict != Verdict::Ack {
                settled[n] = Some(self.settle(settlement)?);
            }
        }
        let settled = settled.into_iter().map(Option::unwrap).collect();
        Ok(Reply::Transacted { settled, published })
    }

    /// `claimed` comes before it, `acked` will have gone by then.
    fn plan<'a>(
        &mut self,
        publish: &'a Publish,
        first: usize,
        bytes: &'a [u32],
        windows: &mut Windows,
        claimed: &[Need],
        acked: &[usize],
    ) -> Result<Plan<'a>, Rejection> {
        let messages = &publish.messages;
        if messages.is_empty() {
            return Err(invalid());
        }
        let (exchange, mut routes) = match &publish.target {
            Target::Queue(name) => {
                let queue = self.queues[self.queue(name)?].id;
                (None, vec![vec![queue]; messages.len()])
            }
            Target::Exchange { name, .. } => (Some(name), self.route_all(name, messages, false)?),
        };
        let places = 0..messages.len();
        let unroutable: Vec<u32> = places
            .clone()
            .filter(|n| routes[*n].is_empty())
            .map(|n| n as u32)
            .collect();
        if let (
            Target::Exchange {
                name,
                mandatory: true,
            },
            Some(n),
        ) = (&publish.target, unroutable.first())
        {
            let labels = messages[*n as usize].labels.as_deref();
            return Err(Rejection::Unroutable {
                exchange: name.clone(),
                routing_key: labels.map_or(String::new(), |labels| labels.routing_key.clone()),
            });
        }
        let duplicates = self.deduplicate(windows, exchange, messages, first, &mut routes);
        let mut queues: Vec<QueueId> = routes.iter().flatten().copied().collect();
        queues.sort();
        queues.dedup();
        let mut needs = Vec::new();
        for id in queues {
            let coming: Vec<usize> = places.clone().filter(|n| routes[*n].contains(&id)).collect();
            let need = (
                id,
                coming.len() as u64,
                coming.iter().map(|n| u64::from(bytes[*n])).sum(),
            );
            let before = claimed.iter().filter(|(queue, ..)| *queue == id);
            let (_, count, sum) = before.fold(need, |sum, next| (id, sum.1 + next.1, sum.2 + next.2));
            if !self.fits_without(acked, id, count, sum) {
                return Err(Rejection::QueueFull {
                    queue: self.queues[self.by_id(id)].name.clone(),
                    limit: String::new(),
                });
            }
            needs.push(need);
        }
        let answer = Published {
            first: MessageId {
                index: self.index,
                number: first as u32,
            },
            count: messages.len() as u32,
            unroutable,
            duplicates,
        };
        Ok(Plan {
            publish,
            first,
            bytes,
            routes,
            needs,
            answer,
        })
    }

    fn carry_out(&mut self, plan: Plan<'_>) -> Published {
        let Plan { publish, routes, .. } = plan;
        if let Target::Exchange { name, .. } = &publish.target {
            self.route_all(name, &publish.messages, true).unwrap();
        }
        for need in plan.needs {
            let (id, count, sum) = need;
            self.make_room(id, count, sum, &[]);
            let place = self.promised.iter().position(|promised| *promised == need);
            self.promised.remove(place.unwrap());
            for n in (0..routes.len()).filter(|n| routes[*n].contains(&id)) {
                self.enter_new(id, publish, n, plan.first, plan.bytes[n]);
            }
        }
        plan.answer
    }
}
