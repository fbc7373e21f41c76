//! The command: exit status, tables, failure output and messages. Runs are faked where the command itself is meant, and
//! the real binary is started where a process's status and stderr are.

use std::process::Output;
use std::time::Duration;

use clap::Parser;
use scenarios::command::{Command, Terminal};
use scenarios::fault::FaultKind;
use scenarios::plan::{Plan, Workload};
use scenarios::run::{Exit, Outcome, RunOptions, RunReport, Runner, Strikes, Violation};
use scenarios::scenario::SCENARIOS;
use scenarios::scenario::find;
use scenarios::workload::Expected;

/// A world in which everything passes and every promised fault hits work in flight.
fn good(plan: &Plan, options: &RunOptions) -> RunReport {
    let mut report = RunReport::of(Outcome::Pass);
    report.trace_hash = plan.seed ^ 0xfeed;
    report.virtual_time = Duration::from_millis(12_500);
    report.records = 500;
    report.rebalances = 3;
    report.duplicates = 7;
    report.summary = vec!["500 published: 480 indexed, 20 dropped".to_owned()];
    if let Ok(scenario) = find(&plan.scenario) {
        for kind in scenario.kinds() {
            report.faults.insert(kind, Strikes { injected: 2, in_flight: 1, least: 0 });
        }
    }
    if let (Workload::File(_), Some(operations)) = (&plan.workload, &options.operations) {
        report.index = Expected::after(operations).index;
    }
    if options.trace {
        report.trace = vec!["0.001s publish doc-1".to_owned(), "0.002s index doc-1".to_owned()];
    }
    report
}

/// A world that loses a record on seed 17 and breaks down on seed 18.
fn flawed(plan: &Plan, options: &RunOptions) -> RunReport {
    let mut report = good(plan, options);
    if plan.seed == 17 {
        report.outcome = Outcome::Failed(vec![Violation {
            checker: "order",
            property: "delivery".to_owned(),
            words: "doc-004 was acknowledged and never reached the index".to_owned(),
            witness: vec![
                "1.204s publisher  publish doc-004 -> p_source-1@17 acknowledged".to_owned(),
                "1.310s worker-0   commit p_source-1@18, its output still pending".to_owned(),
                "1.311s worker-0   crash".to_owned(),
            ],
        }]);
    }
    if plan.seed == 18 {
        report.outcome = Outcome::Harness("the run passed its limit of polls".to_owned());
    }
    report
}

struct Said {
    exit: Exit,
    out: String,
    err: String,
}

fn sim(runner: &dyn Runner, words: &str) -> Said {
    let command = Command::try_parse_from(["sim"].into_iter().chain(words.split_whitespace())).expect("valid words");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut terminal = Terminal::new(&mut out, &mut err, false);
    let exit = command.execute(runner, &mut terminal);
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Said { exit, out: text(out), err: text(err) }
}

/// Real times out of a text that is compared.
fn without_times(text: &str) -> String {
    let lines = text.lines().map(|line| match line.find(" of virtual time in ") {
        Some(at) => format!("{} of virtual time in TIME", &line[..at]),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn list_names_every_scenario_with_a_sentence() {
    let said = sim(&good, "list");
    assert_eq!(said.exit, Exit::Pass);
    insta::assert_snapshot!(said.out);
}

#[test]
fn the_readme_shows_what_the_zoo_shows() {
    let command = "zoo --show no-drain";
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md")).expect("the front page");
    let (_, behind) = readme.split_once(&format!("cargo sim {command}\n```\n\n```text\n")).expect("it shows an animal");
    let (shown, _) = behind.split_once("```").expect("the block ends");
    let said = sim(&good, command);
    assert_eq!(said.exit, Exit::Failed);
    assert_eq!(shown.trim_end(), said.out.trim_end(), "README.md is to show what `cargo sim {command}` prints now");
}

#[test]
fn explore_passes_over_all_scenarios_with_a_row_each() {
    let said = sim(&good, "explore --seeds 100 --jobs 2");
    assert_eq!((said.exit, said.err.as_str()), (Exit::Pass, ""));
    let table = SCENARIOS.iter().all(|one| said.out.contains(&format!(" {} ", one.name)) == one.by_default());
    assert!(table, "{}", said.out);
    for told in ["crash 200 (100; 0)", "50,000", "20 min 50 s", "300", "700"] {
        assert!(said.out.contains(told), "{told} in\n{}", said.out);
    }
}

#[test]
fn the_closing_table_reads() {
    let said = sim(&good, "explore --scenario distributed-all --seeds 100 --jobs 1");
    // The last three columns are real time.
    let lines: Vec<&str> = said.out.lines().map(|line| line[..line.len().min(93)].trim_end()).collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn explore_prints_the_first_failing_seed_whole_and_exits_1() {
    let said = sim(&flawed, "explore --scenario distributed-crashes --seeds 30 --jobs 2");
    assert_eq!(said.exit, Exit::Failed);
    insta::assert_snapshot!(said.err);
}

#[test]
fn explore_exits_2_when_the_harness_fails() {
    let said = sim(&flawed, "explore --scenario distributed-calm --from 18 --seeds 5");
    assert_eq!(said.exit, Exit::Harness);
    insta::assert_snapshot!(said.err);
}

#[test]
fn explore_exits_2_when_a_promised_fault_never_hit_work_in_flight() {
    let toothless = |plan: &Plan, options: &RunOptions| {
        let mut report = good(plan, options);
        report.faults.insert(FaultKind::Join, Strikes { injected: 9, in_flight: 0, least: 0 });
        report
    };
    let long = sim(&toothless, "explore --scenario distributed-rebalances --seeds 20");
    assert_eq!(long.exit, Exit::Harness);
    let short = sim(&toothless, "explore --scenario distributed-rebalances --seeds 2");
    assert_eq!(short.exit, Exit::Pass);
    insta::assert_snapshot!(format!("{}---\n{}", long.err, short.err));
}

#[test]
fn explore_as_json_is_one_object_a_scenario() {
    let said = sim(&flawed, "explore --scenario distributed-crashes --seeds 18 --json");
    assert_eq!(said.exit, Exit::Failed);
    let mut told: serde_json::Value = serde_json::from_str(&said.out).expect("one object");
    for real_time in ["wall_ms", "seeds_per_second", "slowest_seed"] {
        assert!(told[real_time].is_number(), "{real_time}");
        told[real_time] = serde_json::Value::Null;
    }
    let plan = told["failures"][0]["plan"].take();
    assert!(Plan::from_toml(plan.as_str().expect("TOML")).is_ok());
    insta::assert_snapshot!(serde_json::to_string_pretty(&told).expect("JSON"));
}

#[test]
fn replay_tells_one_run_with_its_trace_when_asked() {
    let said = sim(&flawed, "replay 16 --scenario distributed-all --trace");
    assert_eq!((said.exit, said.err.as_str()), (Exit::Pass, ""));
    insta::assert_snapshot!(without_times(&said.out));
    let quiet = sim(&flawed, "replay 16 --scenario distributed-all");
    assert!(!quiet.out.contains("publish doc-1"));
    assert_eq!(sim(&flawed, "replay 17 --scenario distributed-all").exit, Exit::Failed);
    assert_eq!(sim(&flawed, "replay 18 --scenario distributed-all").exit, Exit::Harness);
}

fn file(text: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ops.jsonl");
    std::fs::write(&path, text).expect("written");
    let path = path.display().to_string();
    (folder, path)
}

const OPS: &str = r#"{"id":"b","op":"create","n":1}
{"id":"a","op":"create","n":2}
broken
{"id":"b","op":"update","n":3}
{"id":"c","op":"create"}
{"id":"c","op":"delete"}
"#;

#[test]
fn run_skips_bad_lines_when_told_and_dumps_the_index_in_id_order() {
    let (folder, path) = file(OPS);
    let dump = folder.path().join("index.jsonl");
    let words =
        format!("run --input {path} --on-error skip --workers 2 --indexers 1 --partitions 3 --dump {}", dump.display());
    let said = sim(&good, &words);
    assert_eq!(said.exit, Exit::Pass, "{}", said.err);
    insta::assert_snapshot!(format!("{}\n---\n{}", without_times(&said.out), said.err).replace(&path, "OPS"));
    let dumped = std::fs::read_to_string(dump).expect("dumped");
    assert_eq!(dumped, "{\"id\":\"a\",\"op\":\"create\",\"n\":2}\n{\"id\":\"b\",\"op\":\"update\",\"n\":3}\n");
}

#[test]
fn run_says_so_when_the_faults_that_were_asked_for_never_struck() {
    let (_folder, path) = file(r#"{"id":"b","op":"create"}"#);
    let said = sim(&good, &format!("run --input {path} --faults crashes"));
    assert_eq!(said.exit, Exit::Pass);
    assert_eq!(said.err, "note: no fault struck in this run; take another --seed or a longer file\n");
}

#[test]
fn run_gives_one_command_to_replay_a_failure() {
    let (_folder, path) = file(OPS);
    let said = sim(&flawed, &format!("run --input {path} --on-error skip --faults crashes --seed 17 --workers 3"));
    assert_eq!(said.exit, Exit::Failed);
    let again = format!(
        "cargo sim run --input {path} --mode distributed --faults crashes --seed 17 --workers 3 --on-error skip"
    );
    assert!(said.err.contains(&again), "{}", said.err);
}

#[test]
fn run_refuses_what_cannot_be_with_the_place_and_the_next_step() {
    let (folder, path) = file(OPS);
    let missing = folder.path().join("none/out.jsonl").display().to_string();
    let words = [
        format!("run --input {path} --workers 0"),
        format!("run --input {path} --indexers 0"),
        format!("run --input {path} --partitions 0"),
        format!("run --input {path} --mode local --faults rebalances"),
        format!("run --input {path} --mode local --faults network"),
        format!("run --input {path} --mode local --partitions 3"),
        format!("run --input {path} --mode distributed --pairs 3"),
        format!("run --input {path} --mode hybrid --pairs 0"),
        format!("run --input {path}"),
        format!("run --input {path} --on-error skip --dump {missing}"),
        format!("run --input {path} --on-error skip --dump {path}"),
        "explore --from 18446744073709551615 --seeds 2".to_owned(),
    ];
    let messages: Vec<String> = words
        .iter()
        .map(|words| {
            let said = sim(&good, words);
            assert_eq!(said.exit, Exit::Harness, "{words}");
            said.err.replace(&folder.path().display().to_string(), "FOLDER")
        })
        .collect();
    insta::assert_snapshot!(messages.join("---\n"));
}

fn process(words: &[&str]) -> Output {
    std::process::Command::new(env!("CARGO_BIN_EXE_sim")).args(words).output().expect("the binary starts")
}

/// What the real binary says on stderr when it refuses `words`, with status 2.
fn refusal(words: &[&str]) -> String {
    let output = process(words);
    assert_eq!(output.status.code(), Some(2), "{words:?}");
    assert!(output.stdout.is_empty(), "{words:?}");
    let text = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(!text.contains("panicked"), "{text}");
    text
}

#[test]
fn the_process_ends_with_status_2_and_a_message_on_bad_words() {
    let messages = [
        refusal(&["replay", "abc", "--scenario", "local-calm"]),
        refusal(&["replay", "-1", "--scenario", "local-calm"]),
        refusal(&["replay", "1", "--scenario", "local-clam"]),
        refusal(&["explore", "--scenario", "quux"]),
        refusal(&["explore", "--seeds", "0"]),
        refusal(&["explore", "--jobs", "0"]),
        refusal(&["run", "--input", "x", "--mode", "hybird"]),
    ];
    insta::assert_snapshot!(messages.join("---\n"));
}

#[test]
fn the_process_ends_with_status_2_and_a_message_on_bad_input() {
    let bad = [
        "nonsense",
        r#"{"op":"create"}"#,
        r#"{"id":"a","op":"upsert"}"#,
        r#"{"id":7,"op":"create"}"#,
        r#"{"id":"","op":"create"}"#,
        "",
    ];
    let mut messages = Vec::new();
    for line in bad {
        let (folder, path) = file(&format!("{}{line}\n", if line.is_empty() { "" } else { "\n" }));
        let text = refusal(&["run", "--input", &path]);
        messages.push(text.replace(&folder.path().display().to_string(), "FOLDER"));
    }
    let (folder, path) = file(OPS);
    let here = folder.path().display().to_string();
    for words in [
        vec!["run", "--input", &path, "--workers", "0"],
        vec!["run", "--input", &path, "--partitions", "0"],
        vec!["run", "--input", &here],
        vec!["run", "--input", "missing.jsonl"],
    ] {
        messages.push(refusal(&words).replace(&here, "FOLDER"));
    }
    insta::assert_snapshot!(messages.join("---\n"));
}

#[test]
fn list_ends_the_process_with_status_0() {
    let output = process(&["list"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&output.stdout).contains("distributed-all"));
}

fn start(words: &[&str], out: std::process::Stdio) -> std::process::Child {
    let mut sim = std::process::Command::new(env!("CARGO_BIN_EXE_sim"));
    sim.args(words).stdout(out).stderr(std::process::Stdio::piped()).spawn().expect("the binary starts")
}

#[test]
#[expect(clippy::disallowed_methods, reason = "no run can reach this process, which waits for another")]
fn ctrl_c_counts_what_was_run_and_ends_with_status_130() {
    for (words, told) in [
        (vec!["explore", "--scenario", "local-calm", "--seeds", "1000000"], "interrupted: only "),
        (vec!["zoo", "--ranges", "1000", "--only", "no-drain"], "interrupted: "),
    ] {
        let sim = start(&words, std::process::Stdio::piped());
        std::thread::sleep(std::time::Duration::from_secs(1));
        let kill = std::process::Command::new("kill").args(["-INT", &sim.id().to_string()]).status();
        assert!(kill.expect("there is a `kill`").success());
        let output = sim.wait_with_output().expect("it ends");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.status.code(), Some(130), "{words:?}: {out}{err}");
        assert!(out.contains("=====") && err.contains(told), "{words:?}: {out}{err}");
    }
}

#[test]
fn results_that_cannot_be_written_end_the_process_with_status_2_and_a_message() {
    let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else { return };
    let output = start(&["list"], full.into()).wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(2));
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(words.starts_with("error: the results could not be written to the output; is there room"), "{words}");
}

#[test]
fn a_reader_that_hung_up_misses_nothing() {
    let mut sim = start(&["list"], std::process::Stdio::piped());
    drop(sim.stdout.take());
    let output = sim.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
}
