//! Bodies that tell who they are, so that a damaged or mixed-up one is noticed.
//!
//! A body is its key in eight bytes, and then filler whose length and bytes
//! follow from the key.

/// Most bodies are small; one in this many is large.
const LARGE_EVERY: u64 = 64;
/// Keys with this bit have large bodies, all of them.
const LARGE: u64 = 1 << 63;
/// How large, in KiB: on either side of what a storage engine may treat apart.
const LARGE_KIB: [u64; 4] = [100, 300, 700, 1_200];

/// The key beside this one whose body has 100 to 1,200 KiB.
#[must_use]
pub fn large(key: u64) -> u64 {
    key | LARGE
}

/// The body of a key: mostly below a kilobyte, sometimes 40 KiB, so that both
/// one-chunk and many-chunk values are stored.
#[must_use]
pub fn of(key: u64) -> Vec<u8> {
    let drawn = scatter(key);
    let len = if key & LARGE != 0 {
        LARGE_KIB[(drawn % 4) as usize] * 1024
    } else if drawn.is_multiple_of(LARGE_EVERY) {
        40 * 1024
    } else {
        drawn % 1_000
    };
    let mut body = Vec::with_capacity(8 + usize::try_from(len).expect("small"));
    body.extend(key.to_be_bytes());
    body.extend((0..len).map(|place| (drawn >> (place % 8 * 8)).to_le_bytes()[0]));
    body
}

/// The key of a body; None if it is not the body of any key.
#[must_use]
pub fn key(body: &[u8]) -> Option<u64> {
    let key = u64::from_be_bytes(*body.first_chunk()?);
    (of(key) == body).then_some(key)
}

/// The finalizer of splitmix64: neighbours become strangers.
fn scatter(key: u64) -> u64 {
    let mixed = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_tells_its_key_and_nothing_else_does() {
        for number in (1..200).chain((1..5).map(large)) {
            let body = of(number);
            assert_eq!(key(&body), Some(number));
            assert_eq!(key(&body[..body.len() - 1]), None);
            let mut damaged = body.clone();
            *damaged.last_mut().expect("eight bytes or more") ^= 1;
            assert_eq!(key(&damaged), None);
        }
        assert_eq!(key(b""), None);
    }
}
