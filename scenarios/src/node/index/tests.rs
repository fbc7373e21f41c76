//! The index over its socket: outcomes, what a lost connection means, and what its history says.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use seriatim_core::env::Env;
use seriatim_core::identity::{RunId, Ticket, Version};
use seriatim_core::index::{Action, Backend, BackendError, IndexOp, ItemOutcome};
use seriatim_core::stop::Stop;
use seriatim_ingest::env::TokioEnv;
use seriatim_sim::history::{Keep, Recorder, What};

use super::{IndexServer, RemoteIndex, Serving};
use crate::node::history::clock;

/// Runs `test` beside an index.
fn with_index<F: Future<Output = ()>>(delay: Duration, test: impl FnOnce(TokioEnv, String, Stop, Recorder) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("threads");
    runtime.block_on(async {
        let (env, stop) = (TokioEnv::new(), Stop::new());
        let recorder = Recorder::new(Keep::Events, clock(env.clone()));
        let server = IndexServer::new(env.clone(), Serving { delay }, recorder.node("index", 0));
        let address = server.listen("127.0.0.1:0", stop.clone()).await.expect("a free port").to_string();
        test(env, address, stop, recorder).await;
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
}

fn op(id: &str, version: i64, body: Option<&'static str>) -> IndexOp {
    let action = body.map_or(Action::Delete, |body| Action::Upsert(Bytes::from(body).into()));
    let ticket = Ticket { run: RunId(1), sequence: version as u64, attempt: 7, ordinal: 0 };
    IndexOp { index: None, id: id.into(), version: Some(Version(version)), action, ticket, position: None }
}

#[test]
fn writes_of_several_clients_meet_in_one_index_and_its_history() {
    with_index(Duration::ZERO, |env, address, _, recorder| async move {
        let one = RemoteIndex::new(env.clone(), &address, "indexer-0");
        let other = RemoteIndex::new(env, &address, "indexer-1");
        let batch =
            [op("a", 1, Some("{\"x\":\"\\u00e9\"}")), op("b", 5, Some("{}")), op("c", 2, Some("{\"reject\":true}"))];
        let outcomes = one.bulk(&batch).await.expect("it answers");
        let refused = ItemOutcome::Rejected { reason: "the document says so".into() };
        assert_eq!(outcomes, [ItemOutcome::Applied, ItemOutcome::Applied, refused]);
        let outcomes =
            other.bulk(&[op("b", 5, Some("{}")), op("b", 4, None), op("a", 3, None)]).await.expect("it answers");
        let superseded = ItemOutcome::Superseded { current: Version(5) };
        assert_eq!(outcomes, [ItemOutcome::Duplicate, superseded, ItemOutcome::Applied]);
        let documents = other.documents().await.expect("it answers");
        let documents: Vec<_> = documents.iter().map(|one| (one.id.as_str(), one.version, one.body.as_str())).collect();
        assert_eq!(documents, [("b", Version(5), "{}")]);
        let applied = recorder.events().into_iter().filter_map(|event| match event.what {
            What::IndexApplied { sender, write, .. } => Some(format!("{} {}", sender.unwrap_or_default(), write.id)),
            _ => None,
        });
        assert_eq!(applied.collect::<Vec<_>>(), ["indexer-0 a", "indexer-0 b", "indexer-1 a"]);
    });
}

#[test]
fn a_request_that_arrived_is_applied_although_nobody_waits_for_it() {
    with_index(Duration::from_millis(100), |env, address, _, _| async move {
        let index = RemoteIndex::new(env.clone(), &address, "indexer-0");
        let batch = [op("a", 1, Some("{}"))];
        let sent = env.timeout(Duration::from_millis(30), index.bulk(&batch));
        assert!(sent.await.is_none(), "it was given up before it was applied");
        // Another request does not take the answer of the one that was given up.
        assert_eq!(index.documents().await.expect("it answers"), []);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(index.documents().await.expect("it answers").len(), 1);
    });
}

#[test]
fn without_an_index_nothing_was_sent_and_a_connection_that_breaks_leaves_the_outcome_unknown() {
    with_index(Duration::ZERO, |env, _, _, _| async move {
        let absent = RemoteIndex::new(env.clone(), "127.0.0.1:1", "indexer-0");
        let error = absent.bulk(&[op("a", 1, None)]).await.expect_err("nobody is there");
        assert!(
            matches!(&error, BackendError::Unavailable(words) if words.contains("is the index running there?")),
            "{error}"
        );
        // A server that takes a request and hangs up.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it has one").to_string();
        let index = RemoteIndex::new(env, &address, "indexer-0");
        let hang_up = tokio::task::spawn_blocking(move || drop(listener.accept()));
        let error = index.bulk(&[op("a", 1, None)]).await.expect_err("it hung up");
        assert!(matches!(error, BackendError::UnknownOutcome(_)), "{error}");
        hang_up.await.expect("it did");
    });
}

#[test]
fn nonsense_ends_its_connection_and_nothing_else() {
    with_index(Duration::ZERO, |env, address, _, _| async move {
        for nonsense in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0, 0, 0, 2, b'{', b'}'], &[255; 8]] {
            let mut connection = std::net::TcpStream::connect(&address).expect("it listens");
            connection.write_all(nonsense).expect("it reads");
        }
        let index: Arc<dyn Backend> = Arc::new(RemoteIndex::new(env, &address, "indexer-0"));
        assert_eq!(index.bulk(&[op("a", 1, None)]).await, Ok(vec![ItemOutcome::Applied]));
    });
}
