//! For every property a history that violates it and nothing else, and its near miss. A property without fails.

use super::*;

type Options = fn(&mut CheckOptions);

fn as_told(_: &mut CheckOptions) {}

/// A history that violates `property` when `broken`, and else one that is as like it as can be and does not.
fn told(property: &str, broken: bool) -> (Story, Options) {
    match property {
        "commit-ahead" | "commit-regression" | "commit-unowned" | "lag-left" | "record-vanished" => {
            offsets(property, broken)
        }
        "completed-early"
        | "completed-never"
        | "counted-early"
        | "summary-mismatch"
        | "sink-unseen"
        | "write-after-completion" => completion(property, broken),
        "nonmonotonic-poll" | "poll-skip" | "poll-unowned" | "epoch-start" => polls(property, broken),
        "effect-after-release" | "write-order" | "write-overlap" | "key-moved" => order(property, broken),
        "final-index" | "sink-lost-write" | "sink-nonmonotonic" => sink(property, broken),
        "ambiguous-family" | "digest-missing" | "outcome-conflict" => attempts(property, broken),
        "dead-letter-missing" | "dead-letter-twice" => letters(property, broken),
        other => panic!("{other} has no history that violates it: tell one here"),
    }
}

/// A worker that was given one record, which it dropped where `dropped`.
fn worker(dropped: bool) -> Story {
    let mut story = Story::default();
    story.join("worker-1", 1, "p_workers");
    story.gives("p_workers", "worker-1", source());
    story.assigned("worker-1", 1, source(), 1, None);
    story.publish(0, "a");
    story.polled("worker-1", 1, source(), 1, &[(0, "a", ticket(0, 0, 0))]);
    if dropped {
        story.event("worker-1", ticket(0, 7, 0), LifecycleKind::Dropped);
    }
    story
}

fn offsets(property: &str, broken: bool) -> (Story, Options) {
    let mut story = worker(!matches!(property, "commit-ahead" | "record-vanished"));
    match property {
        "commit-ahead" => {
            let call = story.event_sent("worker-1", ticket(0, 7, 0), LifecycleKind::Dropped, true);
            if broken {
                story.offset_committed("worker-1", source(), 1);
            }
            story.produce_resolved("worker-1", call, vec![Ack::Ok((0, 0))]);
            story.offset_committed("worker-1", source(), 1);
        }
        "commit-regression" => {
            story.offset_committed("worker-1", source(), 1);
            story.offset_committed("worker-1", source(), if broken { 0 } else { 1 });
        }
        "commit-unowned" => {
            story.gives("p_workers", "worker-2", source());
            story.offset_committed(if broken { "worker-1" } else { "worker-2" }, source(), 1);
        }
        "record-vanished" => {
            story.event("worker-1", ticket(0, 7, 0), LifecycleKind::Dropped);
            story.polled_foreign("worker-1", 1, source(), 1, "poison");
            // Of another record, where it is broken.
            let call =
                story.dead_letter("worker-1", "poison", Ticket::default(), Some((0, if broken { 9 } else { 1 })));
            story.produce_resolved("worker-1", call, vec![Ack::Ok((0, 0))]);
            story.offset_committed("worker-1", source(), 2);
        }
        _ => {
            if !broken {
                story.offset_committed("worker-1", source(), 1);
            }
            story.complete(RunSummary { published: 1, dropped: 1, ..RunSummary::default() });
            return (story, |options| options.settled = true);
        }
    }
    (story, as_told)
}

fn completion(property: &str, broken: bool) -> (Story, Options) {
    let mut story = Story::default();
    let indexed = |story: &mut Story| {
        let write = IndexWrite { position: None, ..write("a", 0, 7, 0) };
        let call = story.bulk("local", vec![write.clone()]);
        story.applied(write);
        story.answered("local", call, vec![WriteOutcome::Applied]);
        let events =
            vec![Lifecycle { ticket: ticket(0, 7, 0), kind: LifecycleKind::Indexed, is_parent: true, digest: 0 }];
        story.tell("local", What::LifecycleSent { events });
    };
    story.publish_only(0, "a");
    if property == "sink-unseen" {
        let call = story.event_sent("worker-1", ticket(0, 7, 0), LifecycleKind::Failed, true);
        story.complete(RunSummary { published: 1, failed: 1, ..RunSummary::default() });
        if !broken {
            story.produce_resolved("worker-1", call, vec![Ack::Ok((0, 0))]);
        }
        return (story, as_told);
    }
    if (property, broken) == ("completed-early", true) {
        // The index took it, but nobody knew.
        story.applied(IndexWrite { position: None, ..write("a", 0, 7, 0) });
        story.complete(all_indexed(1));
    }
    let counted = What::RecordCounted { run: RUN, sequence: 0 };
    if (property, broken) == ("counted-early", true) {
        story.tell("publisher", counted.clone());
    }
    indexed(&mut story);
    if (property, broken) == ("counted-early", false) {
        story.tell("publisher", counted);
    }
    match (property, broken) {
        ("completed-early", true) => {
            // Its second application was refused by version: only the first counts.
            story.events.retain({
                let mut applied = 0;
                move |event| {
                    applied += u32::from(matches!(event.what, What::IndexApplied { .. }));
                    applied < 2 || !matches!(event.what, What::IndexApplied { .. })
                }
            });
        }
        ("completed-never", true) => return (story, |options| options.expect_completion = true),
        ("summary-mismatch", true) => drop(story.complete(RunSummary { published: 1, dropped: 1, ..all_indexed(0) })),
        _ => drop(story.complete(all_indexed(1))),
    }
    if property == "write-after-completion" {
        let late = Box::new(IndexWrite { version: Some(version(1)), ..write("a", 0, 6, 0) });
        story.tell("index", What::IndexApplied { sender: None, write: late, changed: broken });
    }
    (story, |options| options.expect_completion = true)
}

fn polls(property: &str, broken: bool) -> (Story, Options) {
    let mut story = Story::default();
    let at = |offset: i64| (offset, "a", ticket(offset as u64, 0, 0));
    story.join("worker-1", 1, "p_workers");
    for sequence in 0..3 {
        story.publish(sequence, "a");
    }
    let (committed, start) = if property == "epoch-start" { (Some(1), if broken { 2 } else { 1 }) } else { (None, 0) };
    story.assigned_at("worker-1", 1, source(), 1, committed, start);
    match property {
        "nonmonotonic-poll" => {
            story.polled("worker-1", 1, source(), 1, &[at(0), at(1)]);
            story.polled("worker-1", 1, source(), 1, &if broken { vec![at(1), at(2)] } else { vec![at(2)] });
        }
        "poll-skip" => {
            story.polled("worker-1", 1, source(), 1, &[at(0)]);
            story.polled("worker-1", 1, source(), 1, &if broken { vec![at(2)] } else { vec![at(1), at(2)] });
        }
        "poll-unowned" => {
            if broken {
                story.revoking("worker-1", 1, source(), 1);
            }
            story.polled("worker-1", 1, source(), 1, &[at(0)]);
            if !broken {
                story.revoking("worker-1", 1, source(), 1);
            }
        }
        _ => {}
    }
    (story, as_told)
}

fn order(property: &str, broken: bool) -> (Story, Options) {
    let mut story = Story::default();
    story.join("indexer-1", 2, "p_indexers");
    story.assigned("indexer-1", 2, dest(), 1, None);
    story.polled("indexer-1", 2, dest(), 1, &[(0, "a", ticket(0, 7, 0)), (1, "a", ticket(1, 7, 0))]);
    match property {
        "effect-after-release" => {
            story.revoking("indexer-1", 2, dest(), 1);
            if broken {
                story.release("indexer-1", 2, 1);
            }
            story.bulk("indexer-1", vec![write("a", 0, 7, 0)]);
        }
        "write-order" => {
            let (first, second) = if broken { (1, 0) } else { (0, 1) };
            story.bulk("indexer-1", vec![write("a", first, 7, first as i64), write("a", second, 7, second as i64)]);
        }
        "write-overlap" => {
            let call = story.bulk("indexer-1", vec![write("a", 0, 7, 0)]);
            if !broken {
                story.tell("indexer-1", What::BulkResolved { call, outcome: Ack::Unknown("NO_ANSWER".into()) });
            }
            story.bulk("indexer-1", vec![write("a", 1, 7, 1)]);
        }
        _ => {
            story.publish_to(0, 0, "a");
            story.publish_to(i32::from(broken), 1, "a");
            story.publish_to(1, 2, "b");
        }
    }
    (story, as_told)
}

fn sink(property: &str, broken: bool) -> (Story, Options) {
    let mut story = Story::default();
    match property {
        "sink-nonmonotonic" => {
            story.publish_only(0, "a");
            story.publish_only(1, "a");
            let unversioned = |sequence| IndexWrite { version: None, ..write("a", sequence, 7, 0) };
            story.applied(unversioned(u64::from(broken)));
            story.applied(unversioned(u64::from(!broken)));
            let strict: Options = |options| {
                options.versions_on = false;
                options.strict_order = true;
            };
            return (story, strict);
        }
        "sink-lost-write" => {
            story.applied(write("a", u64::from(!broken), 7, 0));
            let call = story.bulk("indexer-1", vec![write("a", 1, 7, 1)]);
            story.answered("indexer-1", call, vec![WriteOutcome::Applied]);
        }
        _ => drop(story.applied(write("a", u64::from(!broken), 7, 0))),
    }
    (story, |options| options.actual = Some(BTreeMap::from([("a".into(), body(1))])))
}

/// Two attempts at one document, which both dropped it.
fn attempts(property: &str, broken: bool) -> (Story, Options) {
    let mut story = worker(false);
    let differs = u64::from(broken && property == "ambiguous-family");
    let second = if broken && property == "digest-missing" { 0 } else { 3 + differs };
    for (attempt, digest) in [(7, 3), (8, second)] {
        let told = Lifecycle { ticket: ticket(0, attempt, 0), kind: LifecycleKind::Dropped, is_parent: true, digest };
        story.event_of("worker-1", told);
    }
    let conflicts = u64::from(broken && property == "outcome-conflict");
    story.complete(RunSummary { published: 1, dropped: 1, conflicts, ..RunSummary::default() });
    (story, |options| options.repeatable = true)
}

/// A document that a worker failed, or that two attempts of an indexer's did.
fn letters(property: &str, broken: bool) -> (Story, Options) {
    let mut story = worker(false);
    let letter = |story: &mut Story| {
        let call = story.dead_letter("worker-1", "a", ticket(0, 7, 0), Some((0, 0)));
        story.produce_resolved("worker-1", call, vec![Ack::Ok((0, 0))]);
    };
    story.event("worker-1", ticket(0, 7, 0), LifecycleKind::Failed);
    if property == "dead-letter-twice" {
        letter(&mut story);
        if !broken {
            // It was taken twice under this ticket, at the second hop.
            story.join("indexer-1", 2, "p_indexers");
            for (consumer, epoch) in [(2, 1), (3, 2)] {
                story.join("indexer-1", consumer, "p_indexers");
                story.assigned("indexer-1", consumer, dest(), epoch, None);
                story.polled("indexer-1", consumer, dest(), epoch, &[(0, "a", ticket(0, 7, 0))]);
                story.lost("indexer-1", consumer, dest(), epoch);
                story.release("indexer-1", consumer, epoch);
            }
        }
        letter(&mut story);
    } else if !broken {
        letter(&mut story);
    }
    story.offset_committed("worker-1", source(), 1);
    story.complete(RunSummary { published: 1, failed: 1, ..RunSummary::default() });
    let settled: Options = |options| options.settled = true;
    (story, if property == "dead-letter-missing" { settled } else { as_told })
}

#[test]
fn every_property_has_a_history_that_violates_it_alone() {
    for property in PROPERTIES {
        let (story, options) = told(property, true);
        let found: BTreeSet<&str> = story.check_with(options).iter().map(|one| one.property).collect();
        assert_eq!(found, BTreeSet::from([property]));
    }
}

#[test]
fn every_property_has_a_near_miss() {
    for property in PROPERTIES {
        let (story, options) = told(property, false);
        assert_eq!(story.check_with(options), [], "{property}");
    }
}

#[test]
fn every_property_has_a_meaning() {
    for property in PROPERTIES {
        assert!(crate::explain::meaning(property).is_some(), "{property} is not explained");
    }
    assert!(PROPERTIES.is_sorted());
    assert_eq!(crate::explain::meaning("no-such-property"), None);
}
