//! The native API, and how its types become those of the history.

use std::time::Duration;

use jepsen_lite_core::body;
use jepsen_lite_core::history::{self, MessageId, Outcome, Place, RequestId, Wish};
use jepsen_lite_core::view::{Counts, Obstacle, Seen, SeenLease};
use quorate_client::{
    Client, Commit, Consumer, Delivery, Error, Explanation, Message, MessageInfo, Published, Publisher,
    QueueCounts, Settled, Target, Verdict,
};

use crate::access::Access;
use crate::letter::{Letter, millis};
use crate::protocol::{Answer, Consuming, Leased, Placed, Protocol, Publishing, Settlement};

/// The API `quorate.v1`, through the Rust client.
#[derive(Clone, Debug)]
pub struct Native(pub Client);

/// A stream of publishes to one queue.
#[derive(Debug)]
pub struct NativePublisher(Publisher);

/// A consumer of one queue.
#[derive(Debug)]
pub struct NativeConsumer {
    consumer: Consumer,
    lease: Duration,
}

/// A delivery, until it is settled.
#[derive(Debug)]
pub struct NativeLease {
    /// `None` = settled.
    delivery: Option<Delivery>,
    told: history::Delivery,
}

impl Native {
    /// Publishes to a queue or an exchange.
    pub async fn publish_to(&self, target: Target, letters: &[Letter]) -> Answer<Vec<Placed>> {
        let messages: Vec<Message> = letters.iter().map(Letter::message).collect();
        published(self.0.publish_all(target, messages).await)
    }
}

impl Protocol for Native {
    type Lease = NativeLease;
    type Publisher = NativePublisher;
    type Consumer = NativeConsumer;

    fn connect(access: &Access, timeout: Duration) -> Self {
        Self(access.client(timeout))
    }

    async fn publish(&self, queue: &str, letters: &[Letter]) -> Answer<Vec<Placed>> {
        self.publish_to(Target::queue(queue), letters).await
    }

    fn publisher(&self, queue: &str, window: usize) -> NativePublisher {
        NativePublisher(self.0.publisher(queue).window(window).start())
    }

    async fn consume(&self, queue: &str, prefetch: u32, lease: Duration) -> Option<NativeConsumer> {
        let consume = self.0.consume(queue).prefetch(prefetch).lease(lease);
        let consumer = consume.open().await.ok()?;
        Some(NativeConsumer { consumer, lease })
    }

    async fn pull(&self, queue: &str, max: u32, lease: Duration, wait: Duration) -> Answer<Vec<NativeLease>> {
        let pull = self.0.lease(queue).max(max).lease(lease).wait(wait);
        // A pulled lease hangs on nothing but its time and settlements.
        let leases = |deliveries: Vec<Delivery>| {
            let leases = deliveries.into_iter();
            leases
                .map(|delivery| NativeLease::of(delivery, lease, true))
                .collect()
        };
        Answer::of(pull.send().await, leases)
    }

    async fn settle(&self, token: &str, settlement: Settlement) -> Answer<Option<u64>> {
        let result = match self.0.settle([(token, verdict(settlement))]).await {
            Ok(mut results) => results.pop().unwrap_or_else(|| Err(no_result())),
            Err(error) => Err(error),
        };
        settled(result)
    }
}

impl Publishing for NativePublisher {
    async fn send(&self, letter: &Letter) -> impl Future<Output = Answer<Placed>> + Send + 'static {
        let confirm = self.0.send(letter.message()).await;
        async move { published(confirm.await).map(|placed| placed[0]) }
    }

    async fn close(self) {
        self.0.close().await;
    }
}

impl Consuming for NativeConsumer {
    type Lease = NativeLease;

    async fn next(&mut self) -> Option<NativeLease> {
        let delivery = self.consumer.next().await?.ok()?;
        // Its lease goes with the consumer, too.
        Some(NativeLease::of(delivery, self.lease, false))
    }

    async fn close(self) {
        self.consumer.close().await;
    }
}

impl NativeLease {
    /// Of a delivery for which a lease of this length was asked; `ends_by_time` as in
    /// [`history::Delivery`].
    #[must_use]
    pub fn of(delivery: Delivery, lease: Duration, ends_by_time: bool) -> Self {
        let told = told(&delivery, lease, ends_by_time);
        Self {
            delivery: Some(delivery),
            told,
        }
    }

    /// Acks it and publishes letters to a queue, or does neither.
    pub async fn ack_and_publish(&mut self, queue: &str, letters: &[Letter]) -> Answer<Vec<Placed>> {
        let Some(delivery) = &mut self.delivery else {
            return Answer::of(Err(no_result()), |()| Vec::new());
        };
        let messages: Vec<Message> = letters.iter().map(Letter::message).collect();
        let result = delivery.ack_and().publish_all(queue, messages).commit().await;
        Answer::at(
            result,
            |done| (Some(done.commit), done.request_id),
            |done| done.published.iter().flat_map(placed).collect(),
        )
    }
}

impl Leased for NativeLease {
    fn delivery(&self) -> history::Delivery {
        self.told.clone()
    }

    async fn settle(&mut self, settlement: Settlement) -> Answer<Option<u64>> {
        let span = settlement.span;
        if settlement.wish == Wish::Extend {
            let Some(delivery) = &mut self.delivery else {
                return settled(Err(no_result()));
            };
            let result = delivery.extend(span.unwrap_or(Duration::ZERO)).await;
            let until = delivery.leased_until_ms();
            return Answer::of(result, |()| Some(until));
        }
        let Some(delivery) = self.delivery.take() else {
            return settled(Err(no_result()));
        };
        let settling = match (settlement.wish, span) {
            (Wish::Ack | Wish::Extend, _) => delivery.ack(),
            (Wish::Nack, Some(delay)) => delivery.nack_after(delay, REASON),
            (Wish::Nack, None) => delivery.nack(REASON),
            (Wish::Release, _) => delivery.release(),
            (Wish::DeadLetter, _) => delivery.dead_letter(REASON),
        };
        settled(settling.await)
    }
}

/// The reason that is given with a nack.
const REASON: &str = "by the seed";

impl<T> Answer<T> {
    /// What a call came to whose answer says neither where it stands nor what it was called.
    pub fn of<A>(result: Result<A, Error>, value: impl FnOnce(A) -> T) -> Self {
        Self::at(result, |_| (None, None), value)
    }

    /// What a call came to whose answer says where it stands and what it was called.
    pub fn at<A>(
        result: Result<A, Error>,
        at: impl FnOnce(&A) -> (Option<Commit>, Option<quorate_client::RequestId>),
        value: impl FnOnce(A) -> T,
    ) -> Self {
        let (commit, request) = match &result {
            Ok(answer) => at(answer),
            Err(error) => (None, error.request_id()),
        };
        Self {
            outcome: outcome(result).map(value),
            place: commit.map(place),
            request: request.map(request_id),
        }
    }
}

/// The name of a request.
#[must_use]
pub fn request_id(id: quorate_client::RequestId) -> RequestId {
    RequestId {
        client: id.client,
        sequence: id.sequence,
    }
}

/// What a call came to.
pub fn outcome<T>(result: Result<T, Error>) -> Outcome<T> {
    match result {
        Ok(value) => Outcome::Done(value),
        Err(error) if error.may_have_applied() => Outcome::Unknown,
        Err(error) => Outcome::Refused(error.reason().map(|reason| reason.as_str().to_owned())),
    }
}

/// Where in the log.
#[must_use]
pub fn place(commit: Commit) -> Place {
    Place {
        index: commit.log_index,
        term: commit.term,
        time_ms: commit.cluster_time_ms,
        node: None,
    }
}

/// Each message of a publish.
pub(crate) fn published(result: Result<Published, Error>) -> Answer<Vec<Placed>> {
    Answer::at(
        result,
        |published| (Some(published.commit), published.request_id),
        |published| placed(&published),
    )
}

/// Each message of a publish that was done.
pub(crate) fn placed(published: &Published) -> Vec<Placed> {
    let ids = published.message_ids.iter().enumerate();
    ids.map(|(place, id)| Placed {
        message: MessageId::of(id),
        duplicate: published
            .duplicates
            .iter()
            .any(|duplicate| duplicate.place == place),
    })
    .collect()
}

fn settled(result: Result<Settled, Error>) -> Answer<Option<u64>> {
    Answer::at(
        result,
        |settled| (Some(settled.commit), settled.request_id),
        |settled| settled.leased_until_ms,
    )
}

fn no_result() -> Error {
    Error::Invalid("nothing is said of this lease".to_owned())
}

pub(crate) fn verdict(settlement: Settlement) -> Verdict {
    let reason = REASON.to_owned();
    match settlement.wish {
        Wish::Ack => Verdict::Ack,
        Wish::Nack => Verdict::Nack {
            delay: settlement.span,
            reason,
        },
        Wish::Release => Verdict::Release,
        Wish::DeadLetter => Verdict::DeadLetter { reason },
        Wish::Extend => Verdict::Extend {
            lease: settlement.span,
        },
    }
}

fn told(delivery: &Delivery, lease: Duration, ends_by_time: bool) -> history::Delivery {
    let dead = delivery.dead_letter_info();
    history::Delivery {
        queue: delivery.queue().to_owned(),
        message: MessageId::of(delivery.message_id()),
        key: body::key(delivery.body()),
        group: delivery.group().map(str::to_owned),
        priority: delivery.priority(),
        dedup_id: delivery.dedup_id().map(str::to_owned),
        token: delivery.token().to_owned(),
        fence: delivery.fence(),
        attempt: delivery.attempt(),
        redelivered: delivery.redelivered(),
        lease_ms: millis(lease),
        leased_until_ms: delivery.leased_until_ms(),
        published_at_ms: delivery.published_at_ms(),
        ends_by_time,
        died_of: dead.as_ref().map(|dead| dead.reason.clone()),
        died_in: dead.as_ref().map(|dead| dead.origin_queue.clone()),
        died_after: dead.map(|dead| dead.attempts),
        ..history::Delivery::default()
    }
}

/// Counts of a queue.
#[must_use]
pub fn counts(counts: &QueueCounts) -> Counts {
    // Every field is named, so that a new one cannot be forgotten.
    let QueueCounts {
        ready,
        delayed,
        leased,
        dead,
        bytes,
        consumers,
        published,
        acked,
        expired,
        dead_lettered,
        dropped,
        deleted,
        redelivered,
        moved,
        duplicates,
        dead_letter_backlog,
        groups,
    } = *counts;
    Counts {
        ready,
        delayed,
        leased,
        dead,
        bytes,
        consumers,
        published,
        acked,
        expired,
        dead_lettered,
        dropped,
        deleted,
        moved,
        redelivered,
        duplicates,
        dead_letter_backlog,
        groups,
    }
}

/// A message that a look at its queue showed.
#[must_use]
pub fn seen(info: &MessageInfo) -> Seen {
    Seen {
        message: MessageId::of(&info.message_id),
        position: info.position,
        state: info.state.to_string(),
        ready_at_ms: info.ready_at_ms,
        lease: info.lease.as_ref().map(|lease| SeenLease {
            session: lease.session,
            consumer: lease.consumer,
            since_ms: lease.since_ms,
            until_ms: lease.until_ms,
            fence: lease.fence,
        }),
        priority: info.priority,
        group: info.group.clone(),
        dedup_id: info.dedup_id.clone(),
        attempts: info.attempts,
        grants: info.grants,
        expires_at_ms: info.expires_at_ms,
        dead: info.dead.as_ref().map(|dead| dead.reason.clone()),
    }
}

/// What is in the way of the deliveries of a queue.
#[must_use]
pub fn obstacles(explanation: &Explanation) -> Vec<Obstacle> {
    explanation
        .obstacles
        .iter()
        .map(|obstacle| Obstacle {
            kind: obstacle.kind.clone(),
            messages: obstacle.messages,
        })
        .collect()
}
