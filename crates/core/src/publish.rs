//! Messages enter: a publish is planned, and then carried out.
//!
//! The *plan* checks everything and changes nothing. It says which messages go
//! to which queues, and that there is room for them, or why the publish is
//! refused. To *carry out* a plan cannot fail, as long as nothing happens in
//! between but other plans that one [`Account`] was kept of. So several publishes
//! can be planned together before any of them is done.

use crate::broker::Broker;
use crate::command::{NewMessage, Publish, Target};
use crate::event::Change;
use crate::ids::{ExchangeName, MessageId, QueueId};
use crate::limits;
use crate::outcome::{Duplicate, Outcome, Published, Rejection, Reply};
use crate::queue::{Record, State, Tally, check_group, check_span, invalid};
use crate::room::{Account, Displacing};

/// A publish of which it is known what becomes of every message.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    messages: &'a [NewMessage],
    /// Lengths in bytes, one for each message.
    contents: &'a [u32],
    /// Number of the first content in the entry.
    first: u32,
    routes: Routes,
    /// By place in the publish.
    unroutable: Vec<u32>,
    /// In order; these go nowhere.
    duplicates: Vec<Duplicate>,
}

/// Where the messages of a plan go.
#[derive(Debug)]
enum Routes {
    /// All that are no duplicates go to one queue: nothing is kept of each.
    One(QueueId),
}

impl Broker {
    /// `first` is the number of the first message's content in the entry.
    pub(crate) fn publish(&mut self, publish: &Publish, first: u32, contents: &[u32]) -> Outcome {
        let plan = self.plan_publish(publish, first, contents, &Account::default())?;
        let published = self.carry_out(&plan, &mut Displacing::default());
        Ok(Reply::Published(published))
    }

    /// What would become of a publish, if what `account` says came before it.
    pub(crate) fn plan_publish<'a>(
        &self,
        publish: &'a Publish,
        first: u32,
        contents: &'a [u32],
        account: &Account,
    ) -> Result<Plan<'a>, Rejection> {
        let messages = &publish.messages;
        self.check_messages(messages, contents)?;
        let routes = match &publish.target {
            Target::Queue(name) => Routes::One(self.queue_id(name)?),
            Target::Exchange { name, .. } => return Err(Rejection::ExchangeNotFound(name.clone())),
        };
        // Deduplication decides here: what is a duplicate needs no room.
        let plan = Plan {
            messages,
            contents,
            first,
            routes,
            unroutable: Vec::new(),
            duplicates: Vec::new(),
        };
        plan.needs()
            .try_for_each(|(queue, more)| self.check_room(queue, more, account))?;
        Ok(plan)
    }

    /// Does what was planned. `displacing` has the room that was promised to this
    /// plan among others, if there are others.
    pub(crate) fn carry_out(&mut self, plan: &Plan<'_>, displacing: &mut Displacing) -> Published {
        for (queue, more) in plan.needs() {
            displacing.redeem(queue, more);
            self.make_room(queue, more, displacing);
        }
        match plan.routes {
            Routes::One(queue) => {
                for place in plan.taken() {
                    let record = self.new_record(queue, plan, place);
                    self.enter(queue, record, None);
                }
            }
        }
        plan.published(self.index)
    }

    /// A message enters a queue by a publish.
    fn enter(&mut self, queue: QueueId, record: Record, exchange: Option<ExchangeName>) {
        let published = Change::Published {
            exchange,
            delayed_until: match record.state {
                State::Delayed { until } => Some(until),
                _ => None,
            },
            dedup_id: record.dedup_id().map(ToString::to_string).unwrap_or_default(),
        };
        self.tell(queue, record.id, published);
        self.insert(queue, record);
    }

    fn new_record(&self, queue: QueueId, plan: &Plan<'_>, place: u32) -> Record {
        let message = &plan.messages[place as usize];
        let until = self.now.after(message.delay).max(message.deliver_at);
        Record {
            id: MessageId {
                index: self.index,
                number: plan.first + place,
            },
            content_bytes: plan.contents[place as usize],
            group: 0,
            failures: 0,
            priority: message.priority,
            shared: false,
            grants: 0,
            published_at: self.now,
            expires_at: self.life_end(queue, until, message.ttl),
            state: if until > self.now {
                State::Delayed { until }
            } else {
                State::Ready
            },
            extra: None,
        }
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
        let latest = self.now.after(limits::SPAN_MAX);
        for message in messages {
            if message.priority > limits::PRIORITY_MAX {
                let problem = format!("0 to {}, not {}", limits::PRIORITY_MAX, message.priority);
                return Err(invalid("priority", problem));
            }
            check_group("group", message.group())?;
            check_span("delay_ms", message.delay)?;
            check_span("ttl_ms", message.ttl)?;
            if message.deliver_at > latest {
                let (days, at) = (limits::SPAN_MAX.0, message.deliver_at.0);
                return Err(invalid(
                    "deliver_at_ms",
                    format!("at most {days} ms (10 years) from now, not {at}"),
                ));
            }
        }
        if let Some(bytes) = contents.iter().find(|bytes| **bytes > limits::CONTENT_BYTES_MAX) {
            let max = limits::CONTENT_BYTES_MAX;
            let problem = format!("at most {max} bytes in one message, not {bytes}");
            return Err(invalid("messages", problem));
        }
        Ok(())
    }
}

impl Plan<'_> {
    /// What will enter each queue, in the order of their ids.
    pub(crate) fn needs(&self) -> impl Iterator<Item = (QueueId, Tally)> + '_ {
        match self.routes {
            Routes::One(queue) => std::iter::once((queue, self.taken().map(|place| self.tally(place)).sum())),
        }
    }

    /// The places of the messages that are no duplicates.
    fn taken(&self) -> impl Iterator<Item = u32> + '_ {
        let mut duplicates = self.duplicates.iter().map(|duplicate| duplicate.place).peekable();
        (0..self.count()).filter(move |place| duplicates.next_if_eq(place).is_none())
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
            first: MessageId {
                index,
                number: self.first,
            },
            count: self.count(),
            unroutable: self.unroutable.clone(),
            duplicates: self.duplicates.clone(),
        }
    }
}
