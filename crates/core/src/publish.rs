//! Messages enter: a publish is planned, and then carried out.
//!
//! The *plan* checks everything and changes nothing. It says which messages go
//! to which queues, and that there is room for them, or why the publish is
//! refused. To *carry out* a plan cannot fail, as long as nothing happens in
//! between but other plans that one [`Account`] was kept of. So several publishes
//! can be planned together before any of them is done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::broker::Broker;
use crate::command::{Labels, NewMessage, Publish, Target};
use crate::dead_letter::Address;
use crate::dedup::Sightings;
use crate::event::Change;
use crate::exchange::{ExchangeId, Flow, NO_HEADERS, Routed, check_header_bytes, check_routing_key};
use crate::ids::{ExchangeName, MessageId, QueueId, Timestamp};
use crate::limits;
use crate::outcome::{Duplicate, Outcome, Published, Rejection, Reply};
use crate::queue::{Extra, Record, State, Tally, check_label, check_span, invalid};
use crate::room::{Account, Displacing};

/// A publish of which it is known what becomes of every message.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub(crate) messages: &'a [NewMessage],
    /// The exchange it is published to.
    pub(crate) exchange: Option<&'a ExchangeName>,
    /// Lengths in bytes, one for each message.
    contents: &'a [u32],
    /// Number of the first content in the entry.
    first: u32,
    routes: Routes,
    /// By place in the publish; these go nowhere.
    unroutable: Vec<u32>,
    /// What came through each exchange.
    flows: BTreeMap<ExchangeId, Flow>,
    /// In order; these go nowhere.
    pub(crate) duplicates: Vec<Duplicate>,
    /// What windows say of that.
    pub(crate) sightings: Sightings,
}

/// Where the messages of a plan go.
#[derive(Debug)]
enum Routes {
    /// All that are no duplicates go to one queue: nothing is kept of each.
    One(QueueId),
    /// By queue, and for each by place in the publish.
    Many(Vec<(QueueId, u32)>),
}

/// What the copies of one message have in common.
#[derive(Default)]
struct Copies {
    /// How many there are of each message; empty if there is one of each.
    counts: Vec<u32>,
    /// Of those that are kept.
    addresses: BTreeMap<u32, Arc<Address>>,
}

impl Broker {
    /// `first` is the number of the first message's content in the entry.
    pub(crate) fn publish(&mut self, publish: &Publish, first: u32, contents: &[u32]) -> Outcome {
        let plan = self.plan_publish(publish, first, contents, &mut Account::default())?;
        let mut displacing = Displacing::default();
        if let Routes::Many(_) = plan.routes {
            displacing.promised = plan.needs().collect();
        }
        let published = self.carry_out(&plan, &mut displacing);
        Ok(Reply::Published(published))
    }

    /// What would become of a publish, if what `account` says came before it.
    pub(crate) fn plan_publish<'a>(
        &self,
        publish: &'a Publish,
        first: u32,
        contents: &'a [u32],
        account: &mut Account,
    ) -> Result<Plan<'a>, Rejection> {
        self.check_messages(&publish.messages, contents)?;
        let mut plan = Plan {
            messages: &publish.messages,
            exchange: None,
            contents,
            first,
            routes: Routes::Many(Vec::new()),
            unroutable: Vec::new(),
            flows: BTreeMap::new(),
            duplicates: Vec::new(),
            sightings: Sightings::default(),
        };
        match &publish.target {
            Target::Queue(name) => plan.routes = Routes::One(self.queue_id(name)?),
            Target::Exchange { name, mandatory } => self.route_all(&mut plan, name, *mandatory)?,
        }
        // What is a duplicate needs no room.
        self.deduplicate(&mut plan, &mut account.drafts);
        plan.needs()
            .try_for_each(|(queue, more)| self.check_room(queue, more, account))?;
        Ok(plan)
    }

    /// Finds the queues of all messages.
    fn route_all<'a>(
        &self,
        plan: &mut Plan<'a>,
        name: &'a ExchangeName,
        mandatory: bool,
    ) -> Result<(), Rejection> {
        let exchange = self.exchanges.id(name)?;
        plan.exchange = Some(name);
        let mut routed = Routed::default();
        let mut routes = Vec::new();
        for (place, message) in (0..).zip(plan.messages) {
            let labels = message.labels.as_deref();
            let key = labels.map_or("", |labels| &labels.routing_key);
            let headers = labels.map_or(&NO_HEADERS, |labels| &labels.headers);
            self.route(exchange, key, headers, &mut routed);
            if routed.queues.is_empty() {
                if mandatory {
                    let (exchange, routing_key) = (name.clone(), key.to_owned());
                    return Err(Rejection::Unroutable {
                        exchange,
                        routing_key,
                    });
                }
                plan.unroutable.push(place);
            }
            routes.extend(routed.queues.iter().map(|queue| (*queue, place)));
            if routes.len() > limits::ROUTES_PER_PUBLISH_MAX {
                let max = limits::ROUTES_PER_PUBLISH_MAX;
                return Err(Rejection::LimitExceeded(format!("{max} messages by one publish")));
            }
        }
        routes.sort_unstable();
        plan.routes = Routes::Many(routes);
        plan.flows = routed.flows;
        Ok(())
    }

    /// Does what was planned. `displacing` has the room that was promised to this
    /// plan among others, if there are others.
    pub(crate) fn carry_out(&mut self, plan: &Plan<'_>, displacing: &mut Displacing) -> Published {
        match &plan.routes {
            Routes::One(queue) => {
                self.enter(plan, *queue, plan.taken(), &mut Copies::default(), displacing);
            }
            Routes::Many(routes) => {
                let mut copies = Copies::of(plan, routes);
                for routes in by_queue(routes) {
                    let places = routes.iter().map(|(_, place)| *place);
                    self.enter(plan, routes[0].0, places, &mut copies, displacing);
                }
            }
        }
        self.count_flows(&plan.flows);
        self.record_sightings(plan);
        plan.published(self.index)
    }

    /// Messages enter a queue by a publish.
    fn enter(
        &mut self,
        plan: &Plan<'_>,
        queue: QueueId,
        places: impl Iterator<Item = u32> + Clone,
        copies: &mut Copies,
        displacing: &mut Displacing,
    ) {
        let more: Tally = places.clone().map(|place| plan.tally(place)).sum();
        if more.count == 0 {
            return;
        }
        self.make_room(queue, more, displacing);
        displacing.redeem(queue, more);
        let addressed = self.held(queue).head.settings.dead_letter_exchange.is_some();
        for place in places {
            let mut record = self.new_record(queue, plan, place);
            if addressed && let Some(address) = copies.address(plan, place) {
                record.extra_mut().address = Some(address);
            }
            if copies.is_shared(place) {
                record.shared = true;
                self.shared.count(&record);
            }
            self.remember_in_queue(queue, &record);
            let published = Change::Published {
                exchange: plan.exchange.cloned(),
                delayed_until: match record.state {
                    State::Delayed { until } => Some(until),
                    _ => None,
                },
                dedup_id: record.dedup_id().map(ToString::to_string).unwrap_or_default(),
            };
            self.tell(queue, record.id, published);
            self.insert(queue, record, plan.messages[place as usize].group());
        }
    }

    fn new_record(&self, queue: QueueId, plan: &Plan<'_>, place: u32) -> Record {
        let message = &plan.messages[place as usize];
        let due = self.due(message);
        Record {
            id: plan.id(self.index, place),
            content_bytes: plan.contents[place as usize],
            group: 0,
            failures: 0,
            priority: message.priority,
            shared: false,
            grants: 0,
            published_at: self.now,
            expires_at: self.life_end(queue, due.unwrap_or(self.now), message.ttl),
            state: due.map_or(State::Ready, |until| State::Delayed { until }),
            extra: plan.extra(message),
        }
    }

    /// When a new message becomes ready, if not at once.
    pub(crate) fn due(&self, message: &NewMessage) -> Option<Timestamp> {
        let until = self.now.after(message.delay).max(message.deliver_at);
        (until > self.now).then_some(until)
    }

    /// Every message is within its bounds, and has a content.
    fn check_messages(&self, messages: &[NewMessage], contents: &[u32]) -> Result<(), Rejection> {
        let count = messages.len();
        if count == 0 || count > limits::PUBLISH_MESSAGES_MAX {
            let problem = format!("1 to {}, not {count}", limits::PUBLISH_MESSAGES_MAX);
            return Err(invalid("messages", problem));
        }
        if contents.len() != count {
            let problem = format!("{count}, with {} contents", contents.len());
            return Err(invalid("messages", problem));
        }
        for message in messages {
            if message.priority > limits::PRIORITY_MAX {
                let problem = format!("0 to {}, not {}", limits::PRIORITY_MAX, message.priority);
                return Err(invalid("priority", problem));
            }
            check_label("group", message.group())?;
            check_span("delay_ms", message.delay)?;
            check_span("ttl_ms", message.ttl)?;
            message.labels.as_deref().map_or(Ok(()), check_labels)?;
            self.check_deliver_at(message.deliver_at)?;
        }
        if let Some(bytes) = contents.iter().find(|bytes| **bytes > limits::CONTENT_BYTES_MAX) {
            let max = limits::CONTENT_BYTES_MAX;
            let problem = format!("at most {max} bytes in one message, not {bytes}");
            return Err(invalid("messages", problem));
        }
        Ok(())
    }
}

fn check_labels(labels: &Labels) -> Result<(), Rejection> {
    check_label("dedup_id", &labels.dedup_id)?;
    check_routing_key("routing_key", &labels.routing_key)?;
    let headers = labels.headers.iter();
    check_header_bytes(headers.map(|(name, value)| name.len() + value.len()).sum())
}

impl Plan<'_> {
    /// What will enter each queue that anything enters, in the order of their ids.
    pub(crate) fn needs(&self) -> impl Iterator<Item = (QueueId, Tally)> + '_ {
        let (one, many) = match &self.routes {
            Routes::One(queue) => {
                let tally: Tally = self.taken().map(|place| self.tally(place)).sum();
                ((tally.count > 0).then_some((*queue, tally)), &[][..])
            }
            Routes::Many(routes) => (None, &routes[..]),
        };
        let many = by_queue(many).map(|routes| {
            let tallies = routes.iter().map(|(_, place)| self.tally(*place));
            (routes[0].0, tallies.sum())
        });
        one.into_iter().chain(many)
    }

    /// The places of the messages that are no duplicates.
    fn taken(&self) -> impl Iterator<Item = u32> + Clone + '_ {
        let mut duplicates = self.duplicates.iter().map(|duplicate| duplicate.place).peekable();
        (0..self.count()).filter(move |place| duplicates.next_if_eq(place).is_none())
    }

    /// The queues of the messages that have any, in the order of ids.
    pub(crate) fn queues_by_place(&self) -> BTreeMap<u32, Vec<QueueId>> {
        match &self.routes {
            Routes::One(queue) => (0..self.count()).map(|place| (place, vec![*queue])).collect(),
            Routes::Many(routes) => {
                let mut queues: BTreeMap<u32, Vec<QueueId>> = BTreeMap::new();
                for (queue, place) in routes {
                    queues.entry(*place).or_default().push(*queue);
                }
                queues
            }
        }
    }

    /// Certain queues do not take certain messages after all. Those that none
    /// takes are among the duplicates.
    pub(crate) fn withdraw(&mut self, not_taken: &BTreeSet<(QueueId, u32)>) {
        if let Routes::Many(routes) = &mut self.routes {
            routes.retain(|route| !not_taken.contains(route));
        }
    }

    pub(crate) fn id(&self, index: u64, place: u32) -> MessageId {
        MessageId {
            index,
            number: self.first + place,
        }
    }

    /// What is kept of a message's labels.
    fn extra(&self, message: &NewMessage) -> Option<Box<Extra>> {
        let dedup_id = Some(message.dedup_id()?.into());
        let exchange = self.sightings.exchange.and(self.exchange).cloned();
        Some(Box::new(Extra {
            dedup_id,
            exchange,
            ..Extra::default()
        }))
    }

    fn tally(&self, place: u32) -> Tally {
        Tally {
            count: 1,
            bytes: u64::from(self.contents[place as usize]),
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.messages.len()).expect("within its bound")
    }

    fn published(&self, index: u64) -> Published {
        Published {
            first: self.id(index, 0),
            count: self.count(),
            unroutable: self.unroutable.clone(),
            duplicates: self.duplicates.clone(),
        }
    }
}

impl Copies {
    fn of(plan: &Plan<'_>, routes: &[(QueueId, u32)]) -> Self {
        let mut counts = vec![0; plan.messages.len()];
        for (_, place) in routes {
            counts[*place as usize] += 1;
        }
        let addresses = BTreeMap::new();
        Self { counts, addresses }
    }

    fn is_shared(&self, place: u32) -> bool {
        self.counts.get(place as usize).is_some_and(|count| *count > 1)
    }

    /// How exchanges would find the message once more; None if its queue says it all.
    fn address(&mut self, plan: &Plan<'_>, place: u32) -> Option<Arc<Address>> {
        let labels = plan.messages[place as usize].labels.as_deref();
        let (key, headers) =
            labels.map_or(("", &NO_HEADERS), |labels| (&labels.routing_key, &labels.headers));
        if plan.exchange.is_none() && key.is_empty() && headers.is_empty() {
            return None;
        }
        let address_of = || Address {
            routing_key: (plan.exchange.is_some() || !key.is_empty()).then(|| key.to_owned()),
            headers: headers.clone(),
        };
        let address = self.addresses.entry(place);
        Some(address.or_insert_with(|| Arc::new(address_of())).clone())
    }
}

fn by_queue(routes: &[(QueueId, u32)]) -> impl Iterator<Item = &[(QueueId, u32)]> {
    routes.chunk_by(|(one, _), (next, _)| one == next)
}
