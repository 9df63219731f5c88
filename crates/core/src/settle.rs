//! What holders say of their leases.

use quorate_mutants::mutant;

use crate::broker::Broker;
use crate::command::{Settlement, Verdict};
use crate::effect::DeadReason;
use crate::event::{Change, Returned};
use crate::ids::{Millis, QueueId, Timestamp, Token};
use crate::limits::{REASON_BYTES_MAX, SETTLEMENTS_MAX};
use crate::outcome::{Exit, Outcome, Rejection, Reply, Settled};
use crate::queue::{State, check_lease, check_span, invalid};
use crate::room::Displacing;

impl Broker {
    /// Each settlement is done or refused by itself.
    pub(crate) fn settle(&mut self, settlements: &[Settlement]) -> Outcome {
        if settlements.is_empty() || settlements.len() > SETTLEMENTS_MAX {
            let problem = format!("1 to {SETTLEMENTS_MAX}, not {}", settlements.len());
            return Err(invalid("settlements", problem));
        }
        let settled = settlements
            .iter()
            .map(|settlement| self.settle_one(settlement))
            .collect();
        Ok(Reply::Settled(settled))
    }

    fn settle_one(&mut self, settlement: &Settlement) -> Result<Settled, Rejection> {
        let Settlement { token, verdict } = settlement;
        let (queue, position) = self.current(*token)?;
        verdict.check()?;
        Ok(self.carry_out_verdict(queue, position, verdict))
    }

    /// Of a verdict that was checked, on a lease that is current.
    pub(crate) fn carry_out_verdict(&mut self, queue: QueueId, position: u64, verdict: &Verdict) -> Settled {
        let mut leased_until = None;
        match verdict {
            Verdict::Ack => self.remove(queue, position, Exit::Acked),
            Verdict::Nack { delay, reason } => {
                self.fail(queue, position, Returned::Nacked, reason, *delay);
            }
            Verdict::Release => self.put_back(queue, position, Returned::Released, Millis(0)),
            Verdict::DeadLetter { reason } => {
                self.change(queue, position, |record| record.failed(reason));
                self.dead_letter(queue, position, DeadReason::Rejected, &mut Displacing::default());
            }
            Verdict::Extend { lease } => {
                leased_until = Some(self.extend(queue, position, *lease));
            }
        }
        Settled { leased_until }
    }

    /// Where the message is that this token holds. A lease whose time is up
    /// holds nothing, even if its end was not processed yet.
    pub(crate) fn current(&self, token: Token) -> Result<(QueueId, u64), Rejection> {
        let queue = self.queues.get(&token.queue).ok_or(Rejection::StaleLease)?;
        let record = queue.records.get(token.position).ok_or(Rejection::StaleLease)?;
        match record.state {
            State::Leased(lease)
                if (lease.grant == token.grant
                    && record.attempt() == token.attempt
                    && lease.until > self.now)
                    || mutant!("no-fencing") =>
            {
                Ok((token.queue, token.position))
            }
            _ => Err(Rejection::StaleLease),
        }
    }

    fn extend(&mut self, queue: QueueId, position: u64, lease: Option<Millis>) -> Timestamp {
        let span = lease.unwrap_or(self.held(queue).head.settings.lease);
        let until = self.now.after(span);
        self.change(queue, position, |record| {
            if let State::Leased(lease) = &mut record.state
                && !mutant!("extension-not-kept")
            {
                lease.until = until;
            }
        });
        let message = self.record(queue, position).id;
        self.tell(queue, message, Change::Extended { until });
        until
    }
}

impl Verdict {
    /// Every field is within its bounds.
    pub(crate) fn check(&self) -> Result<(), Rejection> {
        match self {
            Self::Ack | Self::Release => Ok(()),
            Self::Nack { delay, reason } => {
                check_span("delay_ms", delay.unwrap_or_default())?;
                check_reason(reason)
            }
            Self::DeadLetter { reason } => check_reason(reason),
            Self::Extend { lease } => check_lease("lease_ms", *lease),
        }
    }
}

fn check_reason(reason: &str) -> Result<(), Rejection> {
    if reason.len() > REASON_BYTES_MAX {
        let problem = format!("at most {REASON_BYTES_MAX} bytes, not {}", reason.len());
        return Err(invalid("reason", problem));
    }
    Ok(())
}
