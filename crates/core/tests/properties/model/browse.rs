//! What can be seen of messages.

use quorate_core::browse::MessageView;
use quorate_core::command::Selector;
use quorate_core::ids::Timestamp;

use super::{Message, Model, Queue, State};

impl Model {
    /// The messages of a queue, without what it does not know: since when they are
    /// dead, and their leases.
    pub(crate) fn browse(&self, queue: &Queue) -> Vec<MessageView> {
        let messages = self.messages.iter().filter(|m| m.queue == queue.id);
        messages.map(|message| view(queue, message)).collect()
    }

    /// Where a message is in a queue.
    pub(crate) fn find_selected(&self, queue: &Queue, selector: &Selector) -> Option<u64> {
        let i = self.selected(queue.id, selector)?;
        Some(self.messages[i].position)
    }
}

fn view(queue: &Queue, message: &Message) -> MessageView {
    let mut view = MessageView {
        queue: queue.name.clone(),
        position: message.position,
        id: message.id,
        state: message.state(),
        ready_at: None,
        lease: None,
        priority: message.priority,
        group: message.group.clone(),
        dedup_id: message.dedup_id.clone(),
        failures: message.failures,
        grants: message.grants,
        published_at: Timestamp(message.published_at),
        expires_at: (message.expires_at != u64::MAX).then_some(Timestamp(message.expires_at)),
        content_bytes: message.bytes,
        first_error: message.first_error.clone(),
        last_error: message.last_error.clone(),
        dead: None,
        backlog: false,
        dead_letter: message.dead_letter.clone(),
        redrive: message.redrive.as_ref().map(|redrive| redrive.began),
    };
    match message.state {
        State::Delayed(until) => view.ready_at = Some(Timestamp(until)),
        State::Dead { reason, backlog } => {
            view.dead = Some((reason, Timestamp(0)));
            view.backlog = backlog;
        }
        State::Ready | State::Leased { .. } => {}
    }
    view
}
