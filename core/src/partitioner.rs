//! Which partition a key lies in: murmur2, exactly as Java producers compute it (Kafka's `Utils.murmur2` and
//! `BuiltInPartitioner`).
//!
//! A run pins its partition counts, so the publisher and the workers compute partitions themselves; the default of
//! other clients (CRC32 in librdkafka) would split a key across partitions.

/// The partition of `key` among `count`: the masked hash, modulo. A `count` of 0 is taken for 1.
pub fn partition(key: &[u8], count: u32) -> i32 {
    let masked = murmur2(key).cast_unsigned() & 0x7fff_ffff;
    // Below 2^31, being a remainder of the masked hash.
    (masked % count.max(1)).cast_signed()
}

/// Kafka's murmur2: 32 bits, seed `0x9747b28c`, little-endian words, signed as in Java.
pub fn murmur2(key: &[u8]) -> i32 {
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    // Java's lengths are 32-bit.
    let mut hash = 0x9747_b28c ^ key.len() as u32;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        for (index, byte) in rest.iter().enumerate() {
            hash ^= u32::from(*byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    (hash ^ (hash >> 15)).cast_signed()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hashes_are_those_of_java() {
        for (key, raw) in [("", 0x106e_08d9_u32), ("kafka", 0xd067_cf64), ("1234", 0x9fc9_7b14)] {
            assert_eq!(murmur2(key.as_bytes()).cast_unsigned(), raw, "{key}");
        }
        let long = "this is another string with more length to it perhaps";
        for (key, masked) in [("23456", 0x058d_780f), ("hejsan", 0x5ec1_9395), (long, 0x4f77_03da)] {
            assert_eq!(murmur2(key.as_bytes()) & 0x7fff_ffff, masked, "{key}");
        }
        let signed = [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("abc", 479_470_107),
            ("a-little-bit-long-string", -985_981_536),
        ];
        for (key, hash) in signed {
            assert_eq!(murmur2(key.as_bytes()), hash, "{key}");
        }
    }

    #[test]
    fn partitions_are_those_of_java() {
        let keys = ["doc-1", "doc-2", "doc-3", "user:42", "kafka", "foobar"];
        let columns = [(6, [5, 5, 0, 1, 4, 0]), (12, [11, 5, 6, 1, 4, 6]), (17, [11, 11, 11, 8, 14, 9])];
        for (count, partitions) in columns {
            assert_eq!(keys.map(|key| partition(key.as_bytes(), count)), partitions, "of {count}");
        }
    }

    /// Kafka's `Utils.murmur2`, transcribed line by line with Java's signed arithmetic and fall-through switch.
    fn transcribed(data: &[u8]) -> i32 {
        let (length, m, r) = (data.len(), 0x5bd1_e995_i32, 24);
        let mut h: i32 = 0x9747_b28c_u32.cast_signed() ^ length as i32;
        for i in 0..length / 4 {
            let byte = |at: usize| i32::from(data[i * 4 + at]);
            let mut k = byte(0).wrapping_add(byte(1) << 8).wrapping_add(byte(2) << 16).wrapping_add(byte(3) << 24);
            k = k.wrapping_mul(m);
            k ^= (k.cast_unsigned() >> r).cast_signed();
            k = k.wrapping_mul(m);
            h = h.wrapping_mul(m);
            h ^= k;
        }
        let tail = length & !3;
        if length % 4 == 3 {
            h ^= i32::from(data[tail + 2]) << 16;
        }
        if length % 4 >= 2 {
            h ^= i32::from(data[tail + 1]) << 8;
        }
        if length % 4 >= 1 {
            h ^= i32::from(data[tail]);
            h = h.wrapping_mul(m);
        }
        h ^= (h.cast_unsigned() >> 13).cast_signed();
        h = h.wrapping_mul(m);
        h ^ (h.cast_unsigned() >> 15).cast_signed()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn every_key_hashes_as_the_transcription(key in prop::collection::vec(any::<u8>(), 0..40), count in 1..500u32) {
            prop_assert_eq!(murmur2(&key), transcribed(&key));
            let partition = partition(&key, count);
            prop_assert!((0..count.cast_signed()).contains(&partition));
        }
    }
}
