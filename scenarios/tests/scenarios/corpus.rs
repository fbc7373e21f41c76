//! Plans that once failed, or nearly did, and must pass for ever. Each file says in its comment what it showed.

use std::path::Path;

use scenarios::drive::{Correct, Simulated};
use scenarios::plan::Plan;
use scenarios::report;
use scenarios::run::{Outcome, RunOptions, run_fresh};

#[test]
fn every_plan_of_the_corpus_passes() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let entries = std::fs::read_dir(&folder).expect("the corpus is there");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    paths.sort();
    assert!(!paths.is_empty(), "{} holds no plan", folder.display());
    let mut failed = String::new();
    for path in paths {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("UTF-8");
        let plan = Plan::from_toml(&text).unwrap_or_else(|error| panic!("corpus/{name}: {error}"));
        let report = run_fresh(&Simulated(Correct), &plan, &RunOptions::default());
        if report.outcome != Outcome::Pass {
            failed += &report::failure_block(&plan, &report, &format!("the plan is scenarios/corpus/{name}"));
        }
    }
    assert!(failed.is_empty(), "\n{failed}");
}
