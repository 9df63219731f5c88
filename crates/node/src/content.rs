//! Properties and body of a message, as they stand in the log and in storage.
//!
//! ```text
//! u32 little endian: length of the properties | properties (protobuf) | body
//! ```
//! The state machine knows the length of the whole and nothing else, so a new
//! property needs no new command. Both parts come out as slices of what storage
//! returned, without a copy.

use std::collections::BTreeMap;

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use quorate_proto::internal::Properties;

use crate::config::{BODY_BYTES_MAX, HEADERS_BYTES_MAX};
use crate::error::BrokerError;

const LENGTH_BYTES: usize = 4;

/// A message as its publisher gave it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// Names and values; together up to 64 KiB.
    pub headers: BTreeMap<String, String>,
    /// Up to 16 MiB.
    pub body: Bytes,
    /// The exchange that it was published to; empty = straight to a queue.
    pub exchange: String,
    /// As it was published; may be empty.
    pub routing_key: String,
    /// 0 to 9.
    pub priority: u8,
    /// Empty = none.
    pub group: String,
    /// Empty = none.
    pub dedup_id: String,
}

impl Content {
    /// Checks the limits and lays the content out for the log.
    pub fn encode(self) -> Result<Bytes, BrokerError> {
        if self.body.len() > BODY_BYTES_MAX {
            return Err(BrokerError::MessageTooLarge {
                bytes: self.body.len(),
                limit: BODY_BYTES_MAX,
            });
        }
        let bytes = self.headers_bytes();
        if bytes > HEADERS_BYTES_MAX {
            return Err(BrokerError::HeadersTooLarge {
                bytes,
                limit: HEADERS_BYTES_MAX,
            });
        }
        let properties = Properties {
            headers: self.headers,
            exchange: self.exchange,
            routing_key: self.routing_key,
            priority: self.priority.into(),
            group: self.group,
            dedup_id: self.dedup_id,
        };
        let length = properties.encoded_len();
        let mut laid_out = BytesMut::with_capacity(LENGTH_BYTES + length + self.body.len());
        laid_out.put_u32_le(u32::try_from(length).expect("properties are bounded"));
        properties.encode(&mut laid_out).expect("BytesMut grows");
        laid_out.put(self.body);
        Ok(laid_out.freeze())
    }

    /// Reads what [`encode`](Self::encode) laid out.
    pub fn decode(laid_out: &Bytes) -> Result<Self, BrokerError> {
        let damaged = |what: &str| BrokerError::Internal(format!("the stored content is damaged: {what}"));
        let (length, _) = laid_out
            .split_first_chunk::<LENGTH_BYTES>()
            .ok_or_else(|| damaged("too short"))?;
        let end = LENGTH_BYTES + u32::from_le_bytes(*length) as usize;
        if end > laid_out.len() {
            return Err(damaged("properties past its end"));
        }
        let properties = if end == LENGTH_BYTES {
            Properties::default()
        } else {
            Properties::decode(laid_out.slice(LENGTH_BYTES..end))
                .map_err(|error| damaged(&error.to_string()))?
        };
        Ok(Self {
            headers: properties.headers,
            body: laid_out.slice(end..),
            exchange: properties.exchange,
            routing_key: properties.routing_key,
            priority: u8::try_from(properties.priority).map_err(|error| damaged(&error.to_string()))?,
            group: properties.group,
            dedup_id: properties.dedup_id,
        })
    }

    /// Bytes of names and values of the headers.
    pub(crate) fn headers_bytes(&self) -> usize {
        let headers = self.headers.iter();
        headers.map(|(name, value)| name.len() + value.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        for body in [
            Bytes::new(),
            Bytes::from_static(b"x"),
            Bytes::from(vec![7; 100_000]),
        ] {
            for headers in [
                BTreeMap::new(),
                BTreeMap::from([("a".to_owned(), "b".to_owned())]),
            ] {
                let content = Content {
                    headers,
                    body: body.clone(),
                    ..Content::default()
                };
                let laid_out = content.clone().encode().unwrap();
                assert_eq!(Content::decode(&laid_out).unwrap(), content);
            }
        }
    }

    #[test]
    fn round_trip_of_every_property() {
        let content = Content {
            headers: BTreeMap::from([("a".to_owned(), "b".to_owned())]),
            body: Bytes::from_static(b"x"),
            exchange: "orders".to_owned(),
            routing_key: "eu.new".to_owned(),
            priority: 9,
            group: "tenant".to_owned(),
            dedup_id: "id".to_owned(),
        };
        let laid_out = content.clone().encode().unwrap();
        assert_eq!(Content::decode(&laid_out).unwrap(), content);
    }

    #[test]
    fn layout_is_as_documented() {
        let content = Content {
            body: Bytes::from_static(b"hi"),
            ..Content::default()
        };
        assert_eq!(&content.encode().unwrap()[..], b"\0\0\0\0hi");
    }

    #[test]
    fn limits_are_named_in_the_error() {
        let body = Bytes::from(vec![0; BODY_BYTES_MAX + 1]);
        let error = Content {
            body,
            ..Content::default()
        }
        .encode()
        .unwrap_err();
        assert!(error.to_string().contains("16777216"), "{error}");
        let headers = BTreeMap::from([("n".to_owned(), "v".repeat(HEADERS_BYTES_MAX))]);
        let error = Content {
            headers,
            ..Content::default()
        }
        .encode()
        .unwrap_err();
        assert!(error.to_string().contains("65536"), "{error}");
    }

    #[test]
    fn damaged_bytes_are_an_error() {
        for bytes in [
            &b""[..],
            b"\x01",
            b"\x09\0\0\0x",
            b"\x02\0\0\0\xff\xff",
            b"\x03\0\0\0\x20\x80\x02",
        ] {
            assert!(
                Content::decode(&Bytes::copy_from_slice(bytes)).is_err(),
                "{bytes:?}"
            );
        }
    }
}
