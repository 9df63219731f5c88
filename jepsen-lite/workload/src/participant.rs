//! What every participant has: a number, a way to the cluster, a pen, and ears.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jepsen_lite_core::history::{MessageId, Outcome, Place, Publish, Receive, Record, Settle, Wish};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use tokio::time::{Instant, sleep_until};

use crate::access::Access;
use crate::crew::{Post, Side, Signals};
use crate::letter::{Letter, millis};
use crate::native::{Native, NativeLease};
use crate::operator::Operator;
use crate::protocol::{Answer, Leased, Placed, Protocol, Settlement};
use crate::recorder::{Pending, Recorder};

/// How long a call of one in no crew may take.
const ALONE_LIMIT: Duration = Duration::from_secs(30);

/// One who takes part in a load.
#[derive(Clone, Debug)]
pub struct Participant {
    process: u32,
    post: Post,
    access: Access,
    seed: u64,
    recorder: Recorder,
    signals: Arc<Signals>,
    hands: Arc<AtomicU64>,
}

/// A message in the hands of a participant. Dropped, it is there no more: its process may be killed without
/// that this harms it.
#[derive(Debug)]
pub struct Held<L> {
    pub(crate) lease: L,
    pub(crate) token: String,
    _hand: Hand,
}

/// Counts as one message in hand.
#[derive(Debug)]
struct Hand(Arc<AtomicU64>);

/// Keeps the beat of a publisher.
#[derive(Debug)]
pub(crate) struct Pace {
    next: Instant,
    between: Option<Duration>,
}

impl Participant {
    /// One who takes part by itself, in no crew.
    #[must_use]
    pub fn alone(process: u32, access: &Access, recorder: &Recorder) -> Self {
        let post = Post {
            role: "alone",
            side: Side::Worker,
            place: 0,
            part: 0,
            timeout: ALONE_LIMIT,
            attempt: None,
        };
        Self::new(
            process,
            post,
            access.clone(),
            process.into(),
            recorder.clone(),
            Arc::default(),
        )
    }

    pub(crate) fn new(
        process: u32,
        post: Post,
        access: Access,
        seed: u64,
        recorder: Recorder,
        signals: Arc<Signals>,
    ) -> Self {
        Self {
            process,
            post,
            access: access.with_attempts_of(post.attempt),
            seed,
            recorder,
            signals,
            hands: Arc::default(),
        }
    }

    /// Its number, which no other has.
    #[must_use]
    pub fn process(&self) -> u32 {
        self.process
    }

    /// What it is there for.
    #[must_use]
    pub fn post(&self) -> Post {
        self.post
    }

    /// Where it writes.
    #[must_use]
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    pub(crate) fn hands(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.hands)
    }

    /// A way to talk to the broker, on connections of its own.
    pub(crate) fn connect<P: Protocol>(&self) -> P {
        P::connect(&self.access, self.post.timeout)
    }

    /// The native API, with so little patience for one attempt that requests are sent again while the first is
    /// under way.
    pub(crate) fn connect_hastily(&self, attempt: Duration) -> Native {
        Native(self.access.hasty_client(self.post.timeout, attempt))
    }

    /// Its random numbers, the same in each run.
    pub(crate) fn rng(&self) -> StdRng {
        StdRng::seed_from_u64(self.seed)
    }

    pub(crate) fn is_running(&self) -> bool {
        match self.post.side {
            Side::Publisher => !self.signals.publishers_end.is_on(),
            Side::Worker => !self.signals.workers_end.is_on(),
        }
    }

    /// Resolves when it is time to end.
    pub(crate) fn told_to_end(&self) -> impl Future<Output = ()> + use<> {
        let (signals, side) = (Arc::clone(&self.signals), self.post.side);
        async move {
            match side {
                Side::Publisher => signals.publishers_end.wait(true).await,
                Side::Worker => signals.workers_end.wait(true).await,
            }
        }
    }

    /// Stands still while workers are paused.
    pub(crate) async fn go_on(&self) {
        if self.post.side == Side::Worker {
            self.signals.paused.wait(false).await;
        }
    }

    /// Sleeps, but not beyond the time to end.
    pub(crate) async fn rest(&self, span: Duration) {
        // Whichever comes first.
        let _ = tokio::time::timeout(span, self.told_to_end()).await;
    }

    /// Whether workers are to nack everything; if so, it counts as one more.
    pub(crate) fn nacks(&self) -> bool {
        let nacks = self.signals.nacking.is_on();
        if nacks {
            self.signals.nacks.fetch_add(1, Ordering::Relaxed);
        }
        nacks
    }

    /// Keys are unique and grow in the order of sending.
    pub(crate) fn key(&self, count: u32) -> u64 {
        (u64::from(self.process) << 32) | u64::from(count)
    }

    /// Publishes letters as one, and writes it down.
    pub async fn publish<P: Protocol>(
        &self,
        protocol: &P,
        queue: &str,
        letters: &[Letter],
    ) -> Answer<Vec<Placed>> {
        let asked = self.publishing(queue, false, letters);
        let answer = protocol.publish(queue, letters).await;
        published(asked, &answer);
        answer
    }

    /// Notes that letters are about to be published as one.
    pub(crate) fn publishing(&self, queue: &str, exchange: bool, letters: &[Letter]) -> Pending {
        let batch = (letters.len() > 1).then(|| self.recorder.number());
        self.recorder.ask(letters.iter().map(|letter| {
            Record::Publish(Publish {
                batch,
                exchange,
                ..letter.record(self.process, queue)
            })
        }))
    }

    /// Fetches messages, and writes them down.
    pub async fn pull<P: Protocol>(
        &self,
        protocol: &P,
        queue: &str,
        max: u32,
        lease: Duration,
        wait: Duration,
    ) -> Vec<Held<P::Lease>> {
        let asked = self.recorder.ask([Record::Receive(Receive {
            process: self.process,
            queue: queue.to_owned(),
            max,
            ..Receive::default()
        })]);
        let answer = protocol.pull(queue, max, lease, wait).await;
        let (leases, told) = match answer.outcome {
            Outcome::Done(leases) => {
                let count = leases.len();
                (leases, Outcome::Done(u32::try_from(count).unwrap_or(u32::MAX)))
            }
            Outcome::Refused(reason) => (Vec::new(), Outcome::Refused(reason)),
            Outcome::Unknown => (Vec::new(), Outcome::Unknown),
        };
        asked.answer(|_, record| {
            if let Record::Receive(receive) = record {
                receive.outcome.clone_from(&told);
                receive.request = answer.request;
            }
        });
        leases.into_iter().map(|lease| self.received(lease)).collect()
    }

    /// Writes down that it has a message in hand.
    pub fn received<L: Leased>(&self, lease: L) -> Held<L> {
        let delivery = lease.delivery();
        let token = delivery.token.clone();
        self.recorder.received(self.process, delivery);
        self.hands.fetch_add(1, Ordering::Relaxed);
        Held {
            lease,
            token,
            _hand: Hand(Arc::clone(&self.hands)),
        }
    }

    /// Settles a message in hand, and writes it down.
    pub async fn settle<L: Leased>(&self, held: &mut Held<L>, settlement: Settlement) -> Answer<Option<u64>> {
        let asked = self.settling(&held.token, settlement, None);
        let answer = held.lease.settle(settlement).await;
        settled(asked, &answer);
        answer
    }

    /// Settles a lease by its token alone, and writes it down.
    pub(crate) async fn settle_token<P: Protocol>(
        &self,
        protocol: &P,
        token: &str,
        settlement: Settlement,
    ) -> Answer<Option<u64>> {
        let asked = self.settling(token, settlement, None);
        let answer = protocol.settle(token, settlement).await;
        settled(asked, &answer);
        answer
    }

    fn settling(&self, token: &str, settlement: Settlement, transaction: Option<u64>) -> Pending {
        self.recorder
            .ask([self.settle_record(token, settlement, transaction)])
    }

    fn settle_record(&self, token: &str, settlement: Settlement, transaction: Option<u64>) -> Record {
        let Settlement { wish, span } = settlement;
        Record::Settle(Settle {
            process: self.process,
            token: token.to_owned(),
            wish,
            delay_ms: span.filter(|_| wish.is_final()).map(millis),
            transaction,
            ..Settle::default()
        })
    }

    /// Acks a message in hand and publishes letters as one transaction, and writes that down.
    pub(crate) async fn ack_and_publish(
        &self,
        held: &mut Held<NativeLease>,
        queue: &str,
        letters: &[Letter],
    ) -> Outcome<Vec<Placed>> {
        let transaction = Some(self.recorder.number());
        let ack = self.settle_record(&held.token, Settlement::of(Wish::Ack), transaction);
        let publishes = letters.iter().map(|letter| {
            Record::Publish(Publish {
                transaction,
                ..letter.record(self.process, queue)
            })
        });
        let asked = self.recorder.ask(std::iter::once(ack).chain(publishes));
        let answer = held.lease.ack_and_publish(queue, letters).await;
        asked.answer(|number, record| match record {
            Record::Settle(settle) => {
                settle.request = answer.request;
                settle.place = answer.place;
                settle.outcome = answer.outcome.clone().map(|_| ());
            }
            Record::Publish(publish) => {
                let mine = answer
                    .outcome
                    .clone()
                    .map(|placed| placed.get(number - 1).copied());
                publish.request = answer.request;
                fill(publish, answer.place, mine);
            }
            _ => {}
        });
        answer.outcome
    }

    /// The means of an operator, under this participant's number.
    pub(crate) fn operator(&self) -> Operator {
        Operator::new(
            self.access.client(self.post.timeout),
            self.process,
            &self.recorder,
        )
    }
}

/// Fills in what came of a publish of several letters.
pub(crate) fn published(asked: Pending, answer: &Answer<Vec<Placed>>) {
    asked.answer(|number, record| {
        if let Record::Publish(publish) = record {
            let mine = answer.outcome.clone().map(|placed| placed.get(number).copied());
            publish.request = answer.request;
            fill(publish, answer.place, mine);
        }
    });
}

fn fill(publish: &mut Publish, at: Option<Place>, placed: Outcome<Option<Placed>>) {
    publish.place = at;
    publish.outcome = match placed {
        Outcome::Done(Some(placed)) => {
            publish.duplicate = placed.duplicate;
            Outcome::Done(placed.message)
        }
        // An answer that does not name the message does not say what came of it.
        Outcome::Done(None) | Outcome::Unknown => Outcome::<MessageId>::Unknown,
        Outcome::Refused(reason) => Outcome::Refused(reason),
    };
}

fn settled(asked: Pending, answer: &Answer<Option<u64>>) {
    asked.answer(|_, record| {
        if let Record::Settle(settle) = record {
            settle.request = answer.request;
            settle.place = answer.place;
            settle.leased_until_ms = answer.outcome.done().copied().flatten();
            settle.outcome = answer.outcome.clone().map(|_| ());
        }
    });
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pace {
    pub(crate) fn new(between: Option<Duration>) -> Self {
        Self {
            next: Instant::now(),
            between,
        }
    }

    /// Waits until `count` messages more may go out. Time that was lost is not caught up.
    pub(crate) async fn wait(&mut self, count: u32) {
        let Some(between) = self.between else { return };
        sleep_until(self.next).await;
        self.next = self.next.max(Instant::now()) + between * count;
    }
}
