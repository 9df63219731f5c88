//! Which messages of a queue: the options of `browse` and `redrive`.

use std::time::Duration;

use clap::Args;
use quorate_client::MessageFilter;

use crate::json::millis;
use crate::moment::now_ms;
use crate::values::{duration, header};

/// What is chosen. All that is given must hold.
#[derive(Debug, Args)]
#[command(next_help_heading = "Which messages")]
pub(crate) struct FilterArgs {
    /// Published longer ago than this, by the clock of this machine
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    older_than: Option<Duration>,
    /// Published no longer ago than this
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    newer_than: Option<Duration>,
    /// With this header; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Of this group
    #[arg(long)]
    group: Option<String>,
    /// With this dedup id
    #[arg(long, value_name = "DEDUP_ID")]
    dedup_id: Option<String>,
    /// Dead letters of this reason
    #[arg(long, value_parser = ["rejected", "max-deliveries", "expired", "dropped-by-limit"])]
    reason: Option<String>,
    /// With this message id; may be repeated
    #[arg(long, value_name = "MESSAGE_ID")]
    id: Vec<String>,
}

impl FilterArgs {
    /// The filter as of now.
    pub(crate) fn filter(&self) -> MessageFilter {
        // Zero would stand for no limit.
        let before = |age: Duration| now_ms().saturating_sub(millis(age)).max(1);
        let mut filter = MessageFilter::new().message_ids(self.id.iter().cloned());
        if let Some(age) = self.older_than {
            filter = filter.published_before_ms(before(age));
        }
        if let Some(age) = self.newer_than {
            filter = filter.published_from_ms(before(age));
        }
        for (name, value) in &self.header {
            filter = filter.header(name, value);
        }
        if let Some(group) = &self.group {
            filter = filter.group(group);
        }
        if let Some(dedup_id) = &self.dedup_id {
            filter = filter.dedup_id(dedup_id);
        }
        if let Some(reason) = &self.reason {
            filter = filter.reason(reason);
        }
        filter
    }
}
