//! The task behind a [`Consumer`](crate::Consumer): owns the stream, resumes the
//! session, passes deliveries on and settlements back.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quorate_proto::v1;
use quorate_proto::v1::consume_request::Request;
use quorate_proto::v1::consume_response::Response;
use quorate_proto::v1::settled::Outcome;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use crate::call::broker;
use crate::client::Client;
use crate::consumer::Passed;
use crate::delivery::{ConsumerOrigin, Delivery, Notice, Origin};
use crate::error::{Error, Result};
use crate::failure::Failure;
use crate::pipeline::{Fate, Pipeline};
use crate::settle::{Order, results};
use crate::steering::{Stall, Steering};

/// The most settlements of one frame.
const FRAME_SETTLEMENTS: usize = 1_024;
/// The most settle requests under way. Fewer make larger ones under load.
const SETTLES_UNDER_WAY: usize = 16;
/// Frames that wait for the connection. More would only age there.
const FRAMES_WAITING: usize = 2;
/// How often deadlines and silence are looked at.
const TICK: Duration = Duration::from_millis(100);
/// How long a closing consumer waits for the broker to end the stream.
const GOODBYE: Duration = Duration::from_secs(1);
/// Settled leases that are remembered, so that a late copy of their delivery is
/// not passed on.
const SETTLED_REMEMBERED: usize = 4_096;

/// What the handle asks of the task. Hanging up asks it to close.
#[derive(Debug)]
pub(crate) enum Command {
    Credit(u64),
}

pub(crate) struct Session {
    client: Client,
    /// How to open the stream; has the session number and the present credit.
    open: v1::ConsumeOpen,
    opened_before: bool,
    origin: Arc<ConsumerOrigin>,
    /// Grows when leases are lost with their session.
    epoch: Arc<AtomicU64>,
    passed: Leases,
    settles: Pipeline<Vec<Order>>,
    deliveries: mpsc::UnboundedSender<Result<Passed>>,
    steering: Steering,
}

/// The session's stream.
pub(crate) struct Link {
    address: String,
    frames: mpsc::Sender<v1::ConsumeRequest>,
    answers: Streaming<v1::ConsumeResponse>,
}

/// Why a stream is over.
enum End {
    /// Closed from this side.
    Closed,
    Failed(Failure),
}

/// Which leases were passed on, by their fence, which is theirs alone.
#[derive(Debug, Default)]
struct Leases {
    held: BTreeSet<u64>,
    settled: BTreeSet<u64>,
    settled_in_order: VecDeque<u64>,
}

impl Session {
    pub(crate) fn new(
        client: Client,
        open: v1::ConsumeOpen,
        origin: Arc<ConsumerOrigin>,
        epoch: Arc<AtomicU64>,
        deliveries: mpsc::UnboundedSender<Result<Passed>>,
    ) -> Self {
        Self {
            // The settlements have the session's number as their client id.
            settles: Pipeline::new("settle", open.session, client.random().clone()),
            steering: Steering::new(&client.caller.config),
            client,
            open,
            opened_before: false,
            origin,
            epoch,
            passed: Leases::default(),
            deliveries,
        }
    }

    /// Opens or resumes the session on the leader.
    pub(crate) async fn connect(&mut self, deadline: Instant) -> Result<Link> {
        loop {
            let link = timeout_at(deadline, self.client.caller.links.leader_apart()).await;
            let (pause, cause) = match link {
                Ok(Ok(link)) => {
                    let address = link.address.clone();
                    match self.open_on(link).await {
                        Ok(link) => return Ok(link),
                        Err(Failure::Final(refusal) | Failure::Forgotten(refusal)) => {
                            return Err(refusal.into());
                        }
                        Err(Failure::SessionLost(refusal)) => {
                            self.start_over();
                            (self.steering.pause(), refusal.to_string())
                        }
                        Err(Failure::Again(again)) => {
                            let pause = self.steering.turn(&self.client.caller.links, &address, &again);
                            (pause, again.cause)
                        }
                    }
                }
                Ok(Err(cause)) => (self.steering.pause(), cause),
                Err(_) => (Duration::ZERO, "no leader was found in time".to_owned()),
            };
            if Instant::now() + pause >= deadline {
                return Err(Error::no_leader(cause));
            }
            sleep(pause).await;
        }
    }

    /// Serves the session until it is closed or cannot go on.
    pub(crate) async fn run(
        mut self,
        first: Link,
        mut notices: mpsc::UnboundedReceiver<Notice>,
        mut commands: mpsc::Receiver<Command>,
    ) {
        let mut link = first;
        let mut closing = false;
        loop {
            let failure = match self
                .serve(&mut link, &mut notices, &mut commands, &mut closing)
                .await
            {
                End::Closed => {
                    say_goodbye(link).await;
                    break;
                }
                End::Failed(failure) => failure,
            };
            if closing && self.settles.is_empty() {
                break;
            }
            match self
                .reconnect(&link.address, failure, &mut commands, &mut closing)
                .await
            {
                Ok(next) => link = next,
                Err(error) => {
                    let cause = error.to_string();
                    // Nobody has to listen.
                    let _ = self.deliveries.send(Err(error));
                    self.give_up(&cause);
                    break;
                }
            }
        }
        // What is still to be settled goes another way.
        notices.close();
        while let Some(notice) = notices.recv().await {
            if let Notice::Settle(order) = notice {
                self.client.place(order);
            }
        }
    }

    /// A stream on which the session is open.
    async fn open_on(&mut self, link: crate::links::Link) -> Result<Link, Failure> {
        let (frames, receiver) = mpsc::channel(FRAMES_WAITING);
        // A session cannot be opened paused: `serve` pauses it right after.
        let open = v1::ConsumeOpen {
            credit: self.open.credit.max(1),
            ..self.open.clone()
        };
        let _ = frames.try_send(request(Request::Open(open)));
        let mut broker = broker(&link);
        let opening = async {
            let mut answers = broker.consume(ReceiverStream::new(receiver)).await?.into_inner();
            let first = answers.message().await?;
            Ok::<_, tonic::Status>((answers, first))
        };
        let patience = self.client.caller.config.attempt_timeout * 3;
        let (answers, first) = match timeout(patience, opening).await {
            Ok(Ok(opened)) => opened,
            Ok(Err(status)) => return Err(Failure::from_status(&status)),
            Err(_) => {
                return Err(Failure::lost(
                    format!("{} did not open a stream in time", link.address),
                    true,
                ));
            }
        };
        match first.and_then(|answer| answer.response) {
            Some(Response::Opened(opened)) => {
                if self.opened_before && !opened.resumed {
                    // A session of this number, but none of its leases.
                    self.forget_leases();
                }
                self.opened_before = true;
                self.settles.rewind();
                Ok(Link {
                    address: link.address,
                    frames,
                    answers,
                })
            }
            Some(Response::Ended(detail)) => Err(Failure::from_detail(detail)),
            _ => Err(Failure::lost(
                format!("{} did not open the session", link.address),
                true,
            )),
        }
    }

    async fn serve(
        &mut self,
        link: &mut Link,
        notices: &mut mpsc::UnboundedReceiver<Notice>,
        commands: &mut mpsc::Receiver<Command>,
        closing: &mut bool,
    ) -> End {
        let mut taken = Vec::new();
        let mut credit = (self.open.credit == 0).then_some(0);
        let mut stall = Stall::new(&self.client.caller.config);
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.settles.is_empty() {
                if *closing && notices.is_empty() {
                    return End::Closed;
                }
                stall.heard();
            }
            let to_send = credit.is_some() || self.settles.has_unsent();
            tokio::select! {
                biased;
                answer = link.answers.message() => {
                    stall.heard();
                    let failed = match answer {
                        Ok(Some(answer)) => self.take(answer),
                        Ok(None) => Some(Failure::lost("the broker ended the stream", true)),
                        Err(status) => Some(Failure::from_status(&status)),
                    };
                    if let Some(failure) = failed {
                        return End::Failed(failure);
                    }
                    self.steering.reset();
                }
                // An error means that the stream is over, which its answers tell.
                Ok(permit) = link.frames.reserve(), if to_send => {
                    if let Some(credit) = credit.take() {
                        permit.send(request(Request::Credit(v1::ConsumeCredit { credit })));
                    } else if let Some(settle) = self.next_settle() {
                        permit.send(request(Request::Settle(settle)));
                    }
                }
                count = notices.recv_many(&mut taken, FRAME_SETTLEMENTS),
                    if !self.settles.has_unsent() && self.settles.len() < SETTLES_UNDER_WAY =>
                {
                    debug_assert!(count > 0, "this task holds a sender");
                    self.hear(taken.drain(..));
                }
                command = commands.recv(), if !*closing => {
                    match command {
                        Some(Command::Credit(set)) => {
                            self.open.credit = set;
                            credit = Some(set);
                        }
                        None => *closing = true,
                    }
                }
                _ = ticks.tick(), if !self.settles.is_empty() => {
                    let overdue = self.settles.expire(Instant::now(), "no answer came in time");
                    self.tell_all(overdue);
                    if stall.is_elsewhere(&self.client.caller.links, &link.address).await {
                        return End::Failed(Failure::lost("another node leads", true));
                    }
                }
            }
        }
    }

    /// Turns to where the session can go on.
    async fn reconnect(
        &mut self,
        address: &str,
        failure: Failure,
        commands: &mut mpsc::Receiver<Command>,
        closing: &mut bool,
    ) -> Result<Link> {
        let pause = match failure {
            Failure::Final(refusal) | Failure::Forgotten(refusal) => return Err(refusal.into()),
            Failure::SessionLost(_) => {
                self.start_over();
                Duration::ZERO
            }
            Failure::Again(again) => {
                tracing::debug!(address, cause = again.cause, "consumer stream over");
                self.steering.turn(&self.client.caller.links, address, &again)
            }
        };
        let deadline = Instant::now() + self.client.timeout();
        sleep(pause).await;
        loop {
            tokio::select! {
                connected = self.connect(deadline) => return connected,
                command = commands.recv(), if !*closing => match command {
                    Some(Command::Credit(credit)) => self.open.credit = credit,
                    None => *closing = true,
                },
            }
        }
    }

    /// Handles an answer. Some = the stream is over.
    fn take(&mut self, answer: v1::ConsumeResponse) -> Option<Failure> {
        match answer.response {
            Some(Response::Deliveries(deliveries)) => {
                self.pass_on(deliveries.deliveries);
                None
            }
            Some(Response::Settled(settled)) => self.settled(settled),
            Some(Response::Ended(detail)) => Some(Failure::from_detail(detail)),
            Some(Response::Opened(_)) | None => None,
        }
    }

    fn pass_on(&mut self, deliveries: Vec<v1::Delivery>) {
        let epoch = self.epoch.load(Ordering::Acquire);
        for wire in deliveries {
            if !self.passed.is_new(wire.fence) {
                continue;
            }
            let delivery = Delivery::new(wire, Origin::Consumed(Arc::clone(&self.origin)));
            // An error means that the consumer is closing: the lease goes back.
            let _ = self.deliveries.send(Ok(Passed { epoch, delivery }));
        }
    }

    fn settled(&mut self, settled: v1::Settled) -> Option<Failure> {
        match settled.outcome? {
            Outcome::Response(answer) => {
                let id = self.settles.id(settled.sequence);
                if let Some(orders) = self.settles.answer(settled.sequence) {
                    let count = orders.len();
                    for (order, result) in orders.into_iter().zip(results(answer, count, Some(id))) {
                        self.tell(order, result);
                    }
                }
                None
            }
            Outcome::Error(detail) => {
                match self
                    .settles
                    .fail(settled.sequence, Failure::from_detail(detail))?
                {
                    Fate::Tell(orders, error) => {
                        self.tell_all([(orders, error)]);
                        None
                    }
                    Fate::Keep => None,
                    Fate::Reopen(again) => Some(Failure::Again(again)),
                    Fate::SessionLost(refusal) => Some(Failure::SessionLost(refusal)),
                }
            }
        }
    }

    fn hear(&mut self, notices: impl Iterator<Item = Notice>) {
        let mut orders = Vec::new();
        for notice in notices {
            match notice {
                Notice::Settle(order) => orders.push(order),
                Notice::Settled(fence) => self.passed.end(fence, true),
                Notice::Dropped(fence) => self.passed.drop_held(fence),
            }
        }
        if !orders.is_empty() {
            self.settles.push(orders, Instant::now() + self.client.timeout());
        }
    }

    fn next_settle(&mut self) -> Option<v1::SettleRequest> {
        let (id, orders) = self.settles.next_unsent()?;
        let settlements = orders.iter().map(|order| order.settlement.clone()).collect();
        Some(v1::SettleRequest {
            request_id: Some(id),
            settlements,
        })
    }

    fn tell(&mut self, order: Order, result: Result<crate::settle::Settled>) {
        let certain = !matches!(&result, Err(error) if error.may_have_applied());
        if !order.is_extend() {
            self.passed.end(order.fence, certain);
        }
        order.answer(result);
    }

    fn tell_all(&mut self, failed: impl IntoIterator<Item = (Vec<Order>, Error)>) {
        for (orders, error) in failed {
            for order in orders {
                self.tell(order, Err(error.clone()));
            }
        }
    }

    fn give_up(&mut self, cause: &str) {
        let failed = self.settles.give_up(cause);
        self.tell_all(failed);
    }

    /// The session is gone: goes on with a new one. Settlements under way keep
    /// their ids, which do not depend on the session.
    fn start_over(&mut self) {
        tracing::debug!(session = self.open.session, "session lost; opening another");
        self.open.session = self.client.random().id();
        self.opened_before = false;
        self.forget_leases();
    }

    fn forget_leases(&mut self) {
        self.epoch.fetch_add(1, Ordering::AcqRel);
        self.passed = Leases::default();
    }
}

/// Ends the stream from this side, which ends the session.
async fn say_goodbye(link: Link) {
    let Link {
        frames, mut answers, ..
    } = link;
    drop(frames);
    let ended = async { while let Ok(Some(_)) = answers.message().await {} };
    let _ = timeout(GOODBYE, ended).await;
}

impl Leases {
    /// Whether the lease was not seen before; from now on it was.
    fn is_new(&mut self, fence: u64) -> bool {
        !self.settled.contains(&fence) && self.held.insert(fence)
    }

    /// The lease was dropped unsettled: if it comes again, someone may want it.
    fn drop_held(&mut self, fence: u64) {
        self.held.remove(&fence);
    }

    /// The lease was settled; if that is not certain, it may come again.
    fn end(&mut self, fence: u64, certain: bool) {
        self.held.remove(&fence);
        if !certain || !self.settled.insert(fence) {
            return;
        }
        self.settled_in_order.push_back(fence);
        if self.settled_in_order.len() > SETTLED_REMEMBERED
            && let Some(oldest) = self.settled_in_order.pop_front()
        {
            self.settled.remove(&oldest);
        }
    }
}

fn request(request: Request) -> v1::ConsumeRequest {
    v1::ConsumeRequest {
        request: Some(request),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_passed_on_once_unless_it_was_dropped() {
        let mut leases = Leases::default();
        assert!(leases.is_new(5));
        assert!(!leases.is_new(5));
        leases.drop_held(5);
        assert!(leases.is_new(5));
        leases.end(5, true);
        assert!(!leases.is_new(5), "settled");
        assert!(leases.is_new(6));
        leases.end(6, false);
        assert!(leases.is_new(6), "perhaps not settled");
    }

    #[test]
    fn settled_leases_are_remembered_in_bounds() {
        let mut leases = Leases::default();
        for fence in 1..=SETTLED_REMEMBERED as u64 + 10 {
            leases.end(fence, true);
        }
        assert_eq!(leases.settled.len(), SETTLED_REMEMBERED);
        assert!(leases.is_new(1) && !leases.is_new(11));
    }
}
