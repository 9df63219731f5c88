//! "Where is my message?", as far as this node's journal reaches.

use quorate_node::{Broker, BrokerError};
use quorate_proto::v1;

use crate::convert;

pub(crate) async fn trace(
    broker: &Broker,
    request: v1::TraceRequest,
) -> Result<v1::TraceResponse, BrokerError> {
    let trace = broker.trace(convert::trace_of(request)?).await?;
    let gap = |gap: &std::ops::RangeInclusive<u64>| v1::JournalGap {
        from: *gap.start(),
        to: *gap.end(),
    };
    let (begins_at_index, begins_at_ms) = trace.begins.map_or((0, 0), |(index, at)| (index, at.0));
    Ok(v1::TraceResponse {
        gaps: trace.gaps.iter().map(gap).collect(),
        events: trace.events.into_iter().map(convert::traced).collect(),
        begins_at_index,
        begins_at_ms,
        read_index: trace.read_index,
        node_id: broker.node_id().0,
        truncated: trace.truncated,
    })
}
