//! Which partition a key goes to: murmur2, as Java producers do.

/// Java's `Utils.murmur2`.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut hash = 0x9747_b28c ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k = (k ^ k >> 24).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ k;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        for (place, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * place);
        }
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    hash ^ hash >> 15
}

/// The partition of `key` among `partitions`.
pub(super) fn partition_of(key: &[u8], partitions: u32) -> i32 {
    i32::try_from((murmur2(key) & 0x7fff_ffff) % partitions.max(1)).expect("it is below 2^31")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_lie_where_java_puts_them() {
        assert_eq!(murmur2(b"kafka"), 0xd067_cf64);
        assert_eq!(murmur2(b"").cast_signed(), 0x106e_08d9);
        assert_eq!(murmur2(b"abc").cast_signed(), 479_470_107);
        let keys = ["doc-1", "doc-2", "doc-3", "user:42", "kafka", "foobar"];
        let six: Vec<_> = keys.iter().map(|key| partition_of(key.as_bytes(), 6)).collect();
        assert_eq!(six, [5, 5, 0, 1, 4, 0]);
    }
}
