//! Records that a foreign program left on a topic, and that nobody here can read.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use seriatim_core::identity::Envelope;
use seriatim_core::transport::Header;
use seriatim_sim::World;

/// Leaves unreadable records, each with a key of its own.
#[derive(Debug, Default)]
pub(super) struct Poisoner {
    keys: Vec<String>,
}

impl Poisoner {
    /// Appends `count` records to `topic`, to its partitions in turn, the newest too.
    pub(super) fn poison(&mut self, world: &World, topic: &str, count: u32) {
        let mut partitions = world.partitions(topic);
        partitions.retain(|partition| world.is_open(partition));
        for _ in 0..count {
            let number = self.keys.len();
            let key = format!("poison-{number}");
            let header =
                |value: &'static [u8]| Header { name: Envelope::HEADER.into(), value: Bytes::from_static(value) };
            let (value, headers): (Option<&'static [u8]>, _) = match number % 4 {
                // Written by a program that knows nothing of envelopes.
                0 => (Some(br#"{"id":"poison","n":1}"#), vec![]),
                1 => (None, vec![]),
                2 => (Some(b"{\"id\": \xff"), vec![]),
                _ => (Some(b"[1,2"), vec![header(b"not an envelope")]),
            };
            let partition = &partitions[number % partitions.len()];
            world.append(partition, Some(key.clone().into()), value.map(Bytes::from_static), headers);
            self.keys.push(key);
        }
    }

    pub(super) fn into_keys(self) -> Vec<String> {
        self.keys
    }
}

/// Those of `keys` that are not among the dead letters.
pub(super) fn unburied(world: &World, dead_letters: &Arc<str>, keys: Vec<String>) -> Vec<String> {
    if keys.is_empty() {
        return keys;
    }
    let logs = world.log(dead_letters);
    let buried: BTreeSet<&[u8]> = logs.values().flatten().filter_map(|(_, record)| record.key.as_deref()).collect();
    keys.into_iter().filter(|key| !buried.contains(key.as_bytes())).collect()
}
