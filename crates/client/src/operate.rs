//! Deleting, moving, rescheduling and redriving messages that are named.

use std::time::Duration;

use quorate_proto::v1;
use quorate_proto::v1::operate_messages_request::Operation;

use crate::browse::Selector;
use crate::client::Client;
use crate::error::{Error, Result};
use crate::message::{Commit, commit, millis};
use crate::settle::error_of;

/// The most messages of one operation.
pub const OPERATE_MAX: usize = 4_096;

/// What came of an operation on messages, each by itself.
#[derive(Clone, Debug, Default)]
pub struct Operated {
    /// Where in the log.
    pub commit: Commit,
    /// One for each message, in the order of the call.
    pub results: Vec<OperateResult>,
}

/// What came of an operation on one message.
#[derive(Clone, Debug)]
pub struct OperateResult {
    /// The message; empty if there is none with that dedup id.
    pub message_id: String,
    /// Refused with `MESSAGE_NOT_FOUND`; with `WRONG_STATE`, most often because
    /// someone holds it; with `QUEUE_FULL` or `QUEUE_NOT_FOUND`, of the queue
    /// where it should go.
    pub result: Result<()>,
}

/// When a message is to be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// At once.
    Now,
    /// After this much cluster time: up to 10 years, in whole milliseconds.
    After(Duration),
    /// At this cluster time, in milliseconds since the Unix epoch.
    AtMs(u64),
}

impl Client {
    /// Deletes messages of a queue, in any state but leased: 1 to 4,096. Of a
    /// delayed message this cancels its schedule.
    ///
    /// ```no_run
    /// use quorate_client::Selector;
    ///
    /// # async fn example(client: quorate_client::Client) -> quorate_client::Result<()> {
    /// let reminder = [Selector::dedup_id("reminder-17")];
    /// for cancelled in client.delete_messages("reminders", reminder).await?.results {
    ///     cancelled.result?;
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The call as a whole: refused with `QUEUE_NOT_FOUND`; invalid if the number
    /// of messages is out of bounds; unknown; unreachable. What the broker says to
    /// each message is in the results.
    pub async fn delete_messages<I>(&self, queue: impl Into<String>, messages: I) -> Result<Operated>
    where
        I: IntoIterator,
        I::Item: Into<Selector>,
    {
        self.operate(queue.into(), messages, Operation::Delete(v1::Delete {}))
            .await
    }

    /// Moves messages, in any state but leased, to the end of another queue: 1 to
    /// 4,096. There they are ready, with no attempts made.
    ///
    /// # Errors
    ///
    /// Those of [`delete_messages`](Self::delete_messages).
    pub async fn move_messages<I>(
        &self,
        queue: impl Into<String>,
        messages: I,
        to: impl Into<String>,
    ) -> Result<Operated>
    where
        I: IntoIterator,
        I::Item: Into<Selector>,
    {
        self.operate(
            queue.into(),
            messages,
            Operation::Move(v1::Move { to: to.into() }),
        )
        .await
    }

    /// Lets ready or delayed messages of a queue be ready at another time: 1 to
    /// 4,096. [`Schedule::Now`] runs a scheduled message at once.
    ///
    /// # Errors
    ///
    /// Those of [`delete_messages`](Self::delete_messages).
    pub async fn reschedule_messages<I>(
        &self,
        queue: impl Into<String>,
        messages: I,
        schedule: Schedule,
    ) -> Result<Operated>
    where
        I: IntoIterator,
        I::Item: Into<Selector>,
    {
        let mut reschedule = v1::Reschedule::default();
        match schedule {
            Schedule::Now => {}
            Schedule::After(delay) => reschedule.delay_ms = millis(delay),
            Schedule::AtMs(at_ms) => reschedule.deliver_at_ms = at_ms,
        }
        self.operate(queue.into(), messages, Operation::Reschedule(reschedule))
            .await
    }

    /// Redrives dead letters that are named: 1 to 4,096, to the queue `to` or,
    /// without one, back to where each came from. [`redrive`](Self::redrive)
    /// chooses them by a filter. The log index of the answer names this redrive, for
    /// [`undo_redrive`](Self::undo_redrive).
    ///
    /// # Errors
    ///
    /// Those of [`delete_messages`](Self::delete_messages).
    pub async fn redrive_messages<I>(
        &self,
        queue: impl Into<String>,
        messages: I,
        to: Option<String>,
    ) -> Result<Operated>
    where
        I: IntoIterator,
        I::Item: Into<Selector>,
    {
        let redrive = v1::RedriveTo {
            to: to.unwrap_or_default(),
            continues: 0,
        };
        self.operate(queue.into(), messages, Operation::Redrive(redrive))
            .await
    }

    async fn operate<I>(&self, queue: String, messages: I, operation: Operation) -> Result<Operated>
    where
        I: IntoIterator,
        I::Item: Into<Selector>,
    {
        let messages: Vec<v1::MessageSelector> = messages
            .into_iter()
            .map(|message| message.into().into())
            .collect();
        if messages.is_empty() || messages.len() > OPERATE_MAX {
            let count = messages.len();
            return Err(Error::Invalid(format!(
                "one operation names 1 to {OPERATE_MAX} messages, not {count}"
            )));
        }
        let request = v1::OperateMessagesRequest {
            request_id: None,
            queue,
            messages,
            operation: Some(operation),
        };
        let answer = self.call(request).await?;
        Ok(Operated {
            commit: commit(answer.commit),
            results: answer.results.into_iter().map(OperateResult::from).collect(),
        })
    }
}

impl From<v1::OperateResult> for OperateResult {
    fn from(wire: v1::OperateResult) -> Self {
        Self {
            message_id: wire.message_id,
            result: match wire.error {
                None => Ok(()),
                Some(detail) => Err(error_of(detail, "operate on messages")),
            },
        }
    }
}
