//! Which partition a key lies in, by the rules that Kafka's clients use.
//!
//! A run pins its partition counts, so the publisher and the workers compute partitions themselves, by [`partition`]:
//! murmur2, exactly as Java producers do (Kafka's `Utils.murmur2` and `BuiltInPartitioner`). [`Partitioner`] is what a
//! *producer* does with a record that names no partition. librdkafka's own default hashes by CRC-32: a Java producer
//! and a default librdkafka producer on one topic split a key across partitions.

/// How a producer chooses partitions; the names are librdkafka's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Partitioner {
    /// CRC-32 of the key; without one, or with an empty one, any partition. librdkafka's default.
    ConsistentRandom,
    /// CRC-32 of the key; without one as for an empty one.
    Consistent,
    /// Murmur2 of the key; without one any partition. As Java producers do, and what this system relies on.
    #[default]
    Murmur2Random,
    /// Murmur2 of the key; without one as for an empty one.
    Murmur2,
    /// Any partition, whatever the key.
    Random,
}

/// Where a record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// To this partition.
    Partition(i32),
    /// To the partition that all such records of the topic keep to for a while.
    Sticky,
    /// To any partition, drawn for this record alone.
    Random,
}

impl Partitioner {
    /// Where a record with `key` goes among `count` partitions. A `count` of 0 is taken for 1.
    pub fn choose(self, key: Option<&[u8]>, count: u32) -> Choice {
        let bytes = key.unwrap_or_default();
        let by_crc = || Choice::Partition((crc32(bytes) % count.max(1)).cast_signed());
        match self {
            Partitioner::ConsistentRandom if bytes.is_empty() => Choice::Sticky,
            Partitioner::Murmur2Random | Partitioner::Random if key.is_none() => Choice::Sticky,
            Partitioner::ConsistentRandom | Partitioner::Consistent => by_crc(),
            Partitioner::Murmur2Random | Partitioner::Murmur2 => Choice::Partition(partition(bytes, count)),
            Partitioner::Random => Choice::Random,
        }
    }
}

/// The partition of `key` among `count`: the masked hash, modulo. A `count` of 0 is taken for 1.
pub fn partition(key: &[u8], count: u32) -> i32 {
    let masked = murmur2(key).cast_unsigned() & 0x7fff_ffff;
    // Below 2^31, being a remainder of the masked hash.
    (masked % count.max(1)).cast_signed()
}

/// CRC-32 as zlib and librdkafka compute it (reflected, polynomial `0xedb88320`).
pub fn crc32(key: &[u8]) -> u32 {
    const TABLE: [u32; 256] = crc_table();
    let step = |crc: u32, byte: &u8| (crc >> 8) ^ TABLE[((crc ^ u32::from(*byte)) & 0xff) as usize];
    !key.iter().fold(!0, step)
}

const fn crc_table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
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
    fn checksums_are_those_of_librdkafka() {
        let long = "this is another string with more length to it perhaps";
        for (key, crc) in [("23456", 0xb1b4_51d7_u32), ("hejsan", 0xd077_037e), (long, 0xb015_0df7), ("", 0)] {
            assert_eq!(crc32(key.as_bytes()), crc, "{key}");
        }
    }

    const KEYS: [&str; 6] = ["doc-1", "doc-2", "doc-3", "user:42", "kafka", "foobar"];

    /// Those of [`KEYS`] among so many partitions: by CRC-32, by murmur2. 6 and 17 were confirmed through a real
    /// producer.
    const PARTITIONS: [(u32, [i32; 6], [i32; 6]); 3] = [
        (6, [5, 1, 1, 4, 5, 5], [5, 5, 0, 1, 4, 0]),
        (12, [5, 7, 1, 10, 11, 5], [11, 5, 6, 1, 4, 6]),
        (17, [13, 14, 5, 1, 11, 6], [11, 11, 11, 8, 14, 9]),
    ];

    #[test]
    fn every_partitioner_places_as_librdkafka_and_java_do() {
        for (count, by_crc, by_murmur) in PARTITIONS {
            for (place, key) in KEYS.iter().enumerate() {
                let choose = |partitioner: Partitioner| partitioner.choose(Some(key.as_bytes()), count);
                let (crc, murmur) = (Choice::Partition(by_crc[place]), Choice::Partition(by_murmur[place]));
                assert_eq!(choose(Partitioner::ConsistentRandom), crc, "{key} of {count}");
                assert_eq!(choose(Partitioner::Consistent), crc, "{key} of {count}");
                assert_eq!(choose(Partitioner::Murmur2Random), murmur, "{key} of {count}");
                assert_eq!(choose(Partitioner::Murmur2), murmur, "{key} of {count}");
                assert_eq!(choose(Partitioner::Random), Choice::Random, "{key} of {count}");
            }
        }
        // What a topic of three that grows to six does to them: observed against a real broker.
        let at_three = |partitioner: Partitioner| KEYS.map(|key| partitioner.choose(Some(key.as_bytes()), 3));
        assert_eq!(at_three(Partitioner::ConsistentRandom), [2, 1, 1, 1, 2, 2].map(Choice::Partition));
        assert_eq!(at_three(Partitioner::Murmur2Random), [2, 2, 0, 1, 1, 0].map(Choice::Partition));
    }

    #[test]
    fn records_without_a_key_and_with_an_empty_one_go_where_the_table_says() {
        // murmur2 of nothing is 0x106e08d9, and its CRC-32 is 0.
        let hashed = Choice::Partition(0x106e_08d9 % 6);
        let table = [
            (Partitioner::ConsistentRandom, Choice::Sticky, Choice::Sticky),
            (Partitioner::Consistent, Choice::Partition(0), Choice::Partition(0)),
            (Partitioner::Murmur2Random, Choice::Sticky, hashed),
            (Partitioner::Murmur2, hashed, hashed),
            (Partitioner::Random, Choice::Sticky, Choice::Random),
        ];
        for (partitioner, without, empty) in table {
            assert_eq!(partitioner.choose(None, 6), without, "{partitioner:?} without a key");
            assert_eq!(partitioner.choose(Some(b""), 6), empty, "{partitioner:?} with an empty key");
        }
    }

    /// Of 100,000 keys, the share (of 1,000) for which `holds`.
    fn share(holds: impl Fn(&[u8]) -> bool) -> u32 {
        let held = (0..100_000_u32).filter(|number| holds(format!("key-{number}").as_bytes())).count();
        u32::try_from(held / 100).expect("at most 1,000")
    }

    #[test]
    fn the_two_hashes_agree_on_a_sixth_of_keys_and_growth_moves_as_many_with_either() {
        let crc = |key: &[u8], count| Partitioner::Consistent.choose(Some(key), count);
        let murmur = |key: &[u8], count| Partitioner::Murmur2.choose(Some(key), count);
        assert!((162..=172).contains(&share(|key| crc(key, 6) == murmur(key, 6))));
        for (from, to, moved) in [(3, 4, 750), (4, 8, 500), (3, 6, 500), (6, 12, 500), (8, 9, 889)] {
            for (name, of) in [
                ("crc32", share(|key| crc(key, from) != crc(key, to))),
                ("murmur2", share(|key| murmur(key, from) != murmur(key, to))),
            ] {
                assert!(of.abs_diff(moved) <= 5, "{name}, {from} to {to}: {of} of 1,000 moved, not {moved}");
            }
        }
    }

    #[test]
    fn partitions_are_those_of_java() {
        for (count, _, partitions) in PARTITIONS {
            assert_eq!(KEYS.map(|key| partition(key.as_bytes(), count)), partitions, "of {count}");
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
